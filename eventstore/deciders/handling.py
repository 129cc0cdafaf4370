"""A command, from its arrival to its answer.

1. With a key: hold it, and look whether the command was answered before.
2. Load the entity's state.
3. `decide`; a refusal ends here, and nothing was changed.
4. Append its events with the version that was decided on. When somebody else was first, begin
   again, a few times, each after a longer pause of random length.
5. Read the events back as they were recorded: that is the answer.

With a key, event ids are made from it. A repeat finds them, and whatever a crash left behind is
either a whole command or nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol
from uuid import UUID, uuid5

import orjson

from eventstore.deciders.answers import KeptAnswer, KeptAnswers
from eventstore.deciders.decided_events import DecidedLimits, mistaken
from eventstore.deciders.decider import Event
from eventstore.deciders.entities import Entities, Entity, LoadedDecider
from eventstore.deciders.tasks import Decide
from eventstore.deciders.workers import Workers
from eventstore.ids import new_id
from eventstore.names import category_of
from eventstore.store import (
    AppendRequest,
    EncodedEvent,
    EventFilter,
    EventStore,
    Expected,
    StreamAppend,
)
from kernel.clock import Clock
from kernel.errors import (
    DeciderFailed,
    IdReused,
    NotFound,
    PenstockError,
    SchemaViolation,
    UnknownType,
    VersionConflict,
)
from kernel.retry import Backoff
from schemas.json_text import dump
from schemas.records import NewEvent, RecordedEvent

ATTEMPTS = Backoff(attempts=8, base_s=0.005, cap_s=0.25)
_IDS = UUID("6c1f3f0b-5f0e-4d6c-9a2b-8d5f4f9b7f52")
"""Namespace of the ids that are made from keys. It may never change."""
_READ_AT_ONCE = 100


class Encoder(Protocol):
    """Turns new events into bytes (see `Intake.encode`)."""

    async def encode(self, category: str, events: Sequence[NewEvent]) -> tuple[EncodedEvent, ...]:
        """Encode events of one category, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRequest:
    """A command to one entity. `expected` None: whatever version it has.

    `metadata` goes into every event. `key` makes a repeat safe; it counts for the whole store.
    """

    stream: str
    name: str
    data: Mapping[str, Any]
    metadata: Mapping[str, object]
    key: str | None = None
    expected: Expected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handled:
    """The events of a command, maybe none, and where the stream was after them.

    `repeated`: a command with this key was handled before, and this is what it led to.
    """

    stream: str
    version: int | None
    position: int | None
    events: tuple[RecordedEvent, ...]
    repeated: bool


class CommandHandler:
    """Runs deciders over a store. One per service."""

    def __init__(
        self,
        entities: Entities,
        store: EventStore,
        encoder: Encoder,
        answers: KeptAnswers,
        workers: Workers,
        clock: Clock,
        *,
        limits: DecidedLimits | None = None,
        attempts: Backoff = ATTEMPTS,
    ) -> None:
        self.entities = entities
        self._store = store
        self._encoder = encoder
        self._answers = answers
        self._workers = workers
        self._clock = clock
        self._limits = limits or DecidedLimits()
        self._attempts = attempts

    async def handle(self, request: CommandRequest) -> Handled:
        """Handle a command; what it led to is durable when this returns.

        Raises `NotFound` without a decider or such a command, `SchemaViolation` for data that do
        not fit, `Refused`, `VersionConflict` when `expected` is not met or others were always
        quicker, `IdReused` for a key of another command, `DeciderFailed`, and what appending
        raises.
        """
        decider = self.entities.decider(category_of(request.stream))
        if request.name not in decider.commands:
            raise NotFound(
                f"decider {decider.category} takes no command {request.name}; it takes: "
                + ", ".join(decider.commands),
                remedy="Check the command's name.",
            )
        at = self._clock.now()
        async with self._held(request.key):
            return await self._repeat(decider, at, request)

    def _held(self, key: str | None) -> AbstractAsyncContextManager[None]:
        return nullcontext() if key is None else self._answers.alone(key)

    async def _repeat(
        self, decider: LoadedDecider, at: datetime, request: CommandRequest
    ) -> Handled:
        for attempt in range(self._attempts.attempts):
            before = await self._before(request)
            if before is not None:
                return before
            entity = await self.entities.load(decider.category, request.stream)
            _check_expected(request, entity)
            try:
                return await self._attempt(decider, at, request, entity)
            except (VersionConflict, IdReused) as error:
                # With a key, somebody else may have brought the same command: look again.
                last = attempt == self._attempts.attempts - 1
                if last or (isinstance(error, IdReused) and request.key is None):
                    raise
                await asyncio.sleep(self._attempts.delay_s(attempt, uniform=random.uniform))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _attempt(
        self, decider: LoadedDecider, at: datetime, request: CommandRequest, entity: Entity
    ) -> Handled:
        task = Decide(
            entity=entity.state,
            name=request.name,
            data=request.data,
            id=request.stream.partition("-")[2],
            at=at,
            limits=self._limits,
        )
        made = await self._workers.run(task)
        if not made:
            return await self._keep_nothing(request, entity)
        events = _new_events(made, request)
        try:
            encoded = await self._encoder.encode(decider.category, events)
        except (SchemaViolation, UnknownType) as error:
            raise _unfit(decider, request.name, error) from error
        appended = await self._store.append(
            AppendRequest(
                appends=(
                    StreamAppend(
                        stream=request.stream,
                        category=decider.category,
                        expected="no_stream" if entity.head is None else entity.head,
                        events=encoded,
                    ),
                )
            )
        )
        (place,) = appended.appends
        recorded = await self._recorded(place.first_position, len(events))
        # The registry has just been there: later folds shall not need it.
        with suppress(PenstockError):
            await self.entities.upcasting.learn(recorded)
        return Handled(
            stream=request.stream,
            version=place.last_version,
            position=place.last_position,
            events=recorded,
            repeated=appended.repeated,
        )

    async def _recorded(self, first: int, count: int) -> tuple[RecordedEvent, ...]:
        """Read a command's events back, which have `count` positions from `first` on.

        By position, not by version: what a stream hides by now was recorded all the same.
        """
        events: list[RecordedEvent] = []
        while len(events) < count:
            page = await self._store.read_all(
                after=first - 1 + len(events), limit=count - len(events)
            )
            if not page.events:
                break
            events += page.events
        return tuple(events)

    async def _recorded_with(self, key: str, first: RecordedEvent) -> tuple[RecordedEvent, ...]:
        """Read the events of the command with a key, of which the first one is known."""
        events = [first]
        alone = EventFilter(stream=first.stream)
        while True:
            page = await self._store.read_all(
                after=events[-1].position, limit=_READ_AT_ONCE, filter_=alone
            )
            for event in page.events:
                if event.id != event_id(key, len(events)):
                    return tuple(events)
                events.append(event)
            if not page.events:
                return tuple(events)

    async def _before(self, request: CommandRequest) -> Handled | None:
        """Return what a command with this key led to, if there was one.

        Raises `IdReused` when that was another command.
        """
        if request.key is None:
            return None
        kept = await self._answers.find(request.key)
        if kept is not None:
            if kept.fingerprint != fingerprint(request):
                raise _other_command(request.key)
            document = orjson.loads(kept.answer)
            return Handled(
                stream=request.stream,
                version=document["version"],
                position=document["position"],
                events=(),
                repeated=True,
            )
        try:
            first = await self._store.event(event_id(request.key, 0))
        except NotFound:
            return None
        if first.metadata.get("command_sha256") != fingerprint(request):
            raise _other_command(request.key)
        ours = await self._recorded_with(request.key, first)
        return Handled(
            stream=request.stream,
            version=ours[-1].version,
            position=ours[-1].position,
            events=ours,
            repeated=True,
        )

    async def _keep_nothing(self, request: CommandRequest, entity: Entity) -> Handled:
        """Answer a command that led to nothing, the same for every repeat of its key."""
        if request.key is not None:
            document = {"version": entity.version, "position": entity.position}
            await self._answers.keep(
                KeptAnswer(
                    key=request.key,
                    fingerprint=fingerprint(request),
                    answer=orjson.dumps(document).decode(),
                )
            )
        return Handled(
            stream=request.stream,
            version=entity.version,
            position=entity.position,
            events=(),
            repeated=False,
        )


def event_id(key: str, number: int) -> UUID:
    """Return the id of event `number`, from 0, of the command with a key."""
    return uuid5(_IDS, f"{number}:{key}")


def fingerprint(request: CommandRequest) -> str:
    """Tell commands apart that came with the same key."""
    content = [request.stream, request.name, request.data]
    return sha256(dump(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def _new_events(made: Sequence[Event], request: CommandRequest) -> list[NewEvent]:
    metadata = {"command": request.name, **request.metadata}
    if request.key is not None:
        metadata["command_sha256"] = fingerprint(request)
    return [
        NewEvent(
            id=new_id() if request.key is None else event_id(request.key, number),
            type=event.type,
            data=event.data,
            metadata={**event.metadata, **metadata},
            tags=tuple(dict.fromkeys(event.tags)),
            occurred_at=event.occurred_at,
        )
        for number, event in enumerate(made)
    ]


def _check_expected(request: CommandRequest, entity: Entity) -> None:
    match request.expected:
        case None | "any":
            met = True
        case "no_stream":
            met = entity.head is None
        case "stream_exists":
            met = entity.head is not None
        case version:
            met = entity.head == version
    if not met:
        found = "does not exist" if entity.head is None else f"is at version {entity.head}"
        raise VersionConflict(
            f"stream {request.stream} {found}, expected {request.expected}",
            stream=request.stream,
            expected=request.expected,
            actual=entity.head,
        )


def _other_command(key: str) -> IdReused:
    return IdReused(
        f"Idempotency-Key {key} was used for another command",
        remedy="Give every command a key of its own; repeat a key only for the same command.",
        key=key,
    )


def _unfit(decider: LoadedDecider, command: str, error: PenstockError) -> DeciderFailed:
    what = f"made an event that its schema refuses: {error.message}"
    failed = mistaken(decider.category, decider.place, command, what)
    failed.remedy = f"Mend decide or the schema. {error.remedy}"
    return failed
