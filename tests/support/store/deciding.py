"""A counter's decider over a store in memory: for tests of what runs deciders."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from eventstore.codecs import Codecs
from eventstore.deciders import Command, Decider, Event, Refused
from eventstore.deciders.entities import Entities, LoadedDecider
from eventstore.deciders.handling import CommandHandler, CommandRequest
from eventstore.deciders.tasks import Code, DeciderTask
from eventstore.deciders.workers import perform
from eventstore.ids import new_id
from eventstore.intake import Intake
from eventstore.store import AppendRequest, StreamAppend
from eventstore.upcasting import MemoryVersions, Upcaster, Upcasting
from kernel.retry import Backoff
from schemas.records import NewEvent
from schemas.registry import MemoryRegistry
from tests.support.store.memory import (
    MemoryAnswers,
    MemoryEventStore,
    MemorySchemaCache,
    MemorySnapshots,
)

T = TypeVar("T")
BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
STREAM = "counter-1"


class TickingClock:
    """A clock that moves on by a second each time it is asked."""

    def __init__(self) -> None:
        self._now = BEGIN

    def now(self) -> datetime:
        """Return a later moment than the last time."""
        self._now += timedelta(seconds=1)
        return self._now


@dataclass(frozen=True)
class Count:
    """What was added, in order and in all."""

    total: int = 0
    steps: tuple[int, ...] = ()


def decide(command: Command, state: Count) -> Iterable[Event]:
    by = command.data.get("by", 1)
    if state.total + by < 0:
        raise Refused("a count does not go below zero")
    return [Event("added", {"by": by})] * (by != 0) * command.data.get("times", 1)


def evolve(state: Count, event: Event) -> Count:
    by = event.data["by"]
    return Count(total=state.total + by, steps=(*state.steps, by))


def counter(*, every: int = 3, **parts: Any) -> Decider[Any]:
    """Make the decider; `parts` replace some of it."""
    whole: dict[str, Any] = {
        "category": "counter",
        "version": 1,
        "commands": {"add": None},
        "initial_state": Count(),
        "decide": decide,
        "evolve": evolve,
        "snapshot_every": every,
    }
    return Decider(**(whole | parts))


def schema(**fields: object) -> str:
    """Return a schema of `added` with these fields; a value beside `...` is a default."""
    made: list[dict[str, object]] = []
    for name, default in fields.items():
        made.append(
            {"name": name, "type": "long"} | ({} if default is ... else {"default": default})
        )
    return json.dumps({"type": "record", "name": "added", "fields": made})


@dataclass(frozen=True)
class HereWorkers:
    """Does tasks in threads of this process, after the way that they have to another one."""

    code: Code

    async def run(self, task: DeciderTask[T]) -> T:
        """Do a task; it may have to wait for what the test does on the event loop."""
        return await asyncio.to_thread(self._done, pickle.dumps(task))

    def _done(self, task: bytes) -> Any:
        answer = perform(pickle.loads(task), self.code)
        return pickle.loads(pickle.dumps(answer))


@dataclass(slots=True, kw_only=True)
class World:
    """All parts of a service with deciders, in memory."""

    store: MemoryEventStore
    registry: MemoryRegistry
    intake: Intake
    snapshots: MemorySnapshots
    answers: MemoryAnswers
    upcasters: tuple[Upcaster, ...] = ()
    versions: MemoryVersions = field(default_factory=MemoryVersions)

    def entities(self, decider: Decider[Any], *, code: str = "1") -> Entities:
        """Make what folds; it knows no schemas yet, like a service that has just started."""
        return self._over(decider, self.workers(decider), code)

    def workers(self, decider: Decider[Any]) -> HereWorkers:
        """Make what runs a decider."""
        upcasting = Upcasting(self.upcasters, MemoryRegistry(), MemoryVersions())
        return HereWorkers(Code(deciders={decider.category: decider}, upcasting=upcasting))

    def _over(self, decider: Decider[Any], workers: HereWorkers, code: str) -> Entities:
        return Entities(
            {decider.category: LoadedDecider.of(decider, code)},
            self.store,
            Upcasting(self.upcasters, self.registry, self.versions),
            self.snapshots,
            workers,
        )

    def handler(self, decider: Decider[Any], *, attempts: int = 8) -> CommandHandler:
        """Make what handles commands."""
        workers = self.workers(decider)
        return CommandHandler(
            self._over(decider, workers, "1"),
            self.store,
            self.intake,
            self.answers,
            workers,
            TickingClock(),
            attempts=Backoff(attempts=attempts, base_s=0.001, cap_s=0.01),
        )

    async def append(self, *events: dict[str, Any], type_: str = "added") -> None:
        """Append events without any decider."""
        new = [
            NewEvent(id=new_id(), type=type_, data=data, metadata={}, tags=(), occurred_at=None)
            for data in events
        ]
        encoded = await self.intake.encode("counter", new)
        append = StreamAppend(stream=STREAM, category="counter", expected="any", events=encoded)
        await self.store.append(AppendRequest(appends=(append,)))


@asynccontextmanager
async def world(**parts: Any) -> AsyncIterator[World]:
    """Open a world and close it again."""
    registry = MemoryRegistry()
    codecs = Codecs()
    async with MemoryEventStore(clock=TickingClock(), same_data=codecs.same_data) as store:
        made = World(
            store=store,
            registry=registry,
            intake=Intake(registry, MemorySchemaCache(), "infer", codecs),
            snapshots=MemorySnapshots(),
            answers=MemoryAnswers(),
        )
        yield replace(made, **parts)


def add(by: int, *, key: str | None = None, **more: Any) -> CommandRequest:
    """Ask the counter to add."""
    return CommandRequest(stream=STREAM, name="add", data={"by": by}, metadata={}, key=key, **more)
