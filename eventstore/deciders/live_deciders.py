"""A workspace's deciders and upcasters in a service: those of the files as they are now.

changed files -> a process that loads them -> a new `Deciders` in the place of the old one

What is under way keeps the object that it began with, so no command sees two versions of the code.
Files that cannot be loaded change nothing: the code before goes on, and `trouble` says why.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from eventstore.deciders.decided_events import DecidedLimits
from eventstore.deciders.entities import Entities
from eventstore.deciders.handling import CommandHandler, Encoder
from eventstore.deciders.processes import Processes, StoppedDecider
from eventstore.deciders.tasks import DeciderTask, Upcast
from eventstore.deciders.workers import Workers
from eventstore.deciders.workspace_code import PATTERNS, ToldCode
from eventstore.postgres.snapshots import PostgresAnswers, PostgresSnapshots, PostgresVersions
from eventstore.postgres.store import PostgresEventStore
from eventstore.upcasting import Data, Upcaster, Upcasting
from eventstore.workspace_files import Stamp, changes, stamp_of
from kernel.clock import SystemClock
from kernel.errors import PenstockError, Unavailable
from schemas.records import RecordedEvent
from schemas.registry import SchemaRegistry

_log = logging.getLogger("penstock.deciders")
_PROCESS = "eventstore.deciders.decider_process"
_LOOK_S = 1.0
_RETIRED_S = 120.0
"""How long old code can still be called: far longer than any command is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciders:
    """A workspace's code of one moment, running over a store."""

    handler: CommandHandler
    entities: Entities
    upcasting: Upcasting
    workers: Workers

    async def decode(self, event: RecordedEvent) -> dict[str, Any]:
        """Return an event's data in the newest shape of its type, as JSON values.

        Only a type with upcasters is read where their code runs; all others are read here. Raises
        what `Upcasting.learn`, `Upcasting.data` and `Workers.run` raise.
        """
        await self.upcasting.learn([event])
        if not self.upcasting.upcasts(event):
            return self.upcasting.data(event)
        types = self.upcasting.types_of([event])
        (data,) = await self.workers.run(Upcast(events=(event,), types=types))
        return data


def begin_code(
    workspace: Path,
    *,
    most: int,
    limit_s: float,
    memory_bytes: int,
    killed: Callable[[str], None],
) -> Processes | None:
    """Load a workspace's code in a process of its own; None where there is no code.

    At most so many calls run at once, each for so long and with so much memory. Blocks until the
    code is loaded. Raises what `Processes.begin` raises.
    """
    if not stamp_of(workspace, PATTERNS):
        return None
    command = [sys.executable, "-m", _PROCESS, str(workspace), str(memory_bytes)]
    return Processes.begin(command, most=most, limit_s=limit_s, killed=killed)


class LiveDeciders:
    """Deciders that follow their files. Use as an async context manager.

    `processes` run what the files held when they had the stamp `seen`; `begin` loads them anew.
    """

    def __init__(
        self,
        workspace: Path,
        processes: Processes | None,
        begin: Callable[[], Processes | None],
        seen: Stamp,
        store: PostgresEventStore,
        registry: SchemaRegistry,
        encoder: Encoder,
        *,
        dsn: str,
        limits: DecidedLimits | None = None,
    ) -> None:
        self.trouble: str | None = None
        self._again = False
        self._workspace = workspace
        self._processes = processes
        self._begin = begin
        self._seen = seen
        self._store = store
        self._registry = registry
        self._encoder = encoder
        self._limits = limits
        self._answers = PostgresAnswers(store, dsn)
        self._loading = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._retired: dict[Processes, asyncio.TimerHandle] = {}
        self.current = self._over(processes)

    async def __aenter__(self) -> LiveDeciders:
        self._tasks = [
            asyncio.create_task(self._watch(), name="watch deciders"),
            asyncio.create_task(self._revive(), name="revive deciders"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for old, timer in self._retired.items():
            timer.cancel()
            await asyncio.to_thread(old.close)
        if self._processes is not None:
            await asyncio.to_thread(self._processes.close)
        await self._answers.close()

    @property
    def stopped(self) -> Mapping[str, StoppedDecider]:
        """Whose calls had to be killed within the last minutes."""
        return {} if self._processes is None else self._processes.stopped

    async def decode(self, event: RecordedEvent) -> dict[str, Any]:
        """Return an event's data in its newest shape; see `Deciders.decode`."""
        return await self.current.decode(event)

    async def _watch(self) -> None:
        async for _ in changes(self._workspace, PATTERNS, self._seen):
            await self._load()

    async def _revive(self) -> None:
        """Load the code again when its process was lost, as somebody killed it, or when there was
        no room for one.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._again or (self._processes is not None and self._processes.lost):
                await self._load()

    async def _load(self) -> None:
        async with self._loading:
            try:
                processes = await asyncio.to_thread(self._begin)
            except Exception as error:  # Files are followed further, whatever it was.
                self._again = isinstance(error, Unavailable)
                self._tell(error)
                return
            self._again = False
            old, self._processes = self._processes, processes
            self.current, self.trouble = self._over(processes), None
        if old is not None:
            old.retire()
            loop = asyncio.get_running_loop()
            self._retired[old] = loop.call_later(_RETIRED_S, self._end, old)
        names = sorted(self.current.entities.deciders)
        _log.info("deciders loaded anew: %s", ", ".join(names) or "none")

    def _tell(self, error: Exception) -> None:
        """Say why the deciders stay as they were; in the log once for as long as it is the same."""
        before, unknown = self.trouble, None
        if isinstance(error, PenstockError):
            self.trouble = f"{error.message} ({error.remedy})"
        else:
            self.trouble, unknown = f"{type(error).__name__}: {error}", error
        if self.trouble != before:
            _log.error("deciders stay as they were: %s", self.trouble, exc_info=unknown)

    def _end(self, old: Processes) -> None:
        del self._retired[old]
        old.close()

    def _over(self, processes: Processes | None) -> Deciders:
        """Set code to work over the store. Snapshots carry its version, so each has its own."""
        told: ToldCode = ToldCode() if processes is None else processes.told
        workers: Workers = _NoWorkers() if processes is None else processes
        store = self._store
        upcasters = [Upcaster(event=e, version=v, upcast=_elsewhere) for e, v in told.upcasters]
        upcasting = Upcasting(upcasters, self._registry, PostgresVersions(store))
        deciders = {each.category: each for each in told.deciders}
        entities = Entities(deciders, store, upcasting, PostgresSnapshots(store), workers)
        handler = CommandHandler(
            entities,
            store,
            self._encoder,
            self._answers,
            workers,
            SystemClock(),
            limits=self._limits,
        )
        return Deciders(handler=handler, entities=entities, upcasting=upcasting, workers=workers)


class _NoWorkers:
    """Runs the code of a workspace that has none."""

    async def run(self, task: DeciderTask[Any]) -> NoReturn:
        """Be asked nothing: without deciders and upcasters there are no tasks."""
        raise AssertionError(f"unreachable: there is no code for {task.of}")


def _elsewhere(_: Data) -> NoReturn:
    raise AssertionError("unreachable: upcasters run in a process of their own")
