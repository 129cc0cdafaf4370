"""What is asked of users' code, as values that travel to the process in which it runs.

    Unfolded (state or snapshot, events) -> Decide | Freeze | Snapshot | … -> plain values

A state never leaves that process as an object: it comes back as bytes that only such a process
reads, and for most commands it does not come back at all.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

import orjson

from eventstore.deciders.decided_events import DecidedLimits, decided
from eventstore.deciders.decider import Command, Decider, Event, plain
from eventstore.deciders.explanation import FieldChange, changed_fields
from eventstore.upcasting import Data, Upcasting
from kernel.errors import DeciderFailed, Refused, SchemaViolation
from schemas.records import RecordedEvent
from schemas.registry import RegisteredSchema

Types = Mapping[str, tuple[RegisteredSchema, ...]]
"""All versions of each event type that a task meets."""
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A workspace's code in the process that runs it. Deciders by category."""

    deciders: Mapping[str, Decider[Any]]
    upcasting: Upcasting


class DeciderTask(Protocol[T_co]):
    """One question to users' code."""

    @property
    def of(self) -> str:
        """Say whose code it asks, for messages: `decider account`."""
        ...

    def done_by(self, code: Code) -> T_co:
        """Return the answer, in plain values. Users' code may raise anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfolded:
    """A state with events that are still to be folded into it.

    It begins with `state`, which an earlier task gave, or with a snapshot's text, or without
    either with the decider's initial state.
    """

    category: str
    state: bytes | None = None
    snapshot: str | None = None
    events: tuple[RecordedEvent, ...] = ()
    types: Types = field(default_factory=dict)

    @property
    def of(self) -> str:
        """Name the decider."""
        return f"decider {self.category}"

    def folded(self, code: Code) -> Any:
        """Return the state after all events."""
        decider = code.deciders[self.category]
        if self.state is not None:
            state = pickle.loads(self.state)
        elif self.snapshot is not None:
            state = decider.shape.thaw(orjson.loads(self.snapshot))
        else:
            state = decider.start()
        code.upcasting.know(self.types)
        try:
            return decider.fold(state, (_seen(event, code) for event in self.events))
        except Refused as error:
            raise DeciderFailed(
                f"{self.of}: evolve refused an event: {error}",
                remedy="Only decide may refuse: an event has happened.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfEntity:
    """What every question about a state has."""

    entity: Unfolded

    @property
    def of(self) -> str:
        """Name the decider."""
        return self.entity.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold(_OfEntity):
    """Fold, and keep the state for the next task."""

    def done_by(self, code: Code) -> bytes:
        """Return the state, for `Unfolded.state`."""
        state = self.entity.folded(code)
        try:
            return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            raise DeciderFailed(
                f"{self.of}: its state cannot be copied: {error}",
                remedy="Define the classes of a state at the top level of a module.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeSnapshot(_OfEntity):
    """Fold, and write the state as JSON from which it comes back as it was."""

    def done_by(self, code: Code) -> tuple[str | None, str]:
        """Return the state's JSON text, or None and why there is none."""
        state = self.entity.folded(code)
        shape = code.deciders[self.entity.category].shape
        try:
            text = orjson.dumps(shape.freeze(state))
            same = orjson.dumps(shape.freeze(shape.thaw(orjson.loads(text)))) == text
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        if not same:
            return None, "a state read back from JSON is another one"
        return text.decode(), ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freeze(_OfEntity):
    """Fold, and show the state as JSON values."""

    def done_by(self, code: Code) -> Any:
        """Return the state. Raises `DeciderFailed` when it has not the shape of its decider."""
        decider = code.deciders[self.entity.category]
        state = self.entity.folded(code)
        try:
            return decider.shape.freeze(state)
        except SchemaViolation as error:
            raise DeciderFailed(
                f"{self.of}: the state has not the shape that evolve declares: {error.message}",
                remedy="Let evolve return exactly the type that it is annotated with.",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide(_OfEntity):
    """Fold, and decide a command on the state."""

    name: str
    data: Mapping[str, Any]
    id: str
    at: datetime
    limits: DecidedLimits

    def done_by(self, code: Code) -> list[Event]:
        """Return the events, of plain values. Raises `Refused` and what `decided` raises."""
        decider = code.deciders[self.entity.category]
        state = self.entity.folded(code)
        data = decider.data_of(self.name, self.data)
        command = Command(self.name, data, entity=self.id, at=self.at)
        return [_plain_event(event) for event in decided(decider, command, state, self.limits)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain(_OfEntity):
    """Fold up to a state, and then event by event."""

    events: tuple[RecordedEvent, ...]
    types: Types

    def done_by(self, code: Code) -> tuple[Any, list[tuple[FieldChange, ...]], Any]:
        """Return the state before `events`, what each of them changed, and the state behind."""
        decider = code.deciders[self.entity.category]
        state = self.entity.folded(code)
        code.upcasting.know(self.types)
        first = before = _as_json(decider, state)
        steps = []
        for event in self.events:
            state = decider.fold(state, (_seen(event, code),))
            after = _as_json(decider, state)
            steps.append(tuple(changed_fields(before, after)))
            before = after
        return first, steps, before


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcast:
    """Bring events into the newest shapes of their types."""

    events: tuple[RecordedEvent, ...]
    types: Types

    @property
    def of(self) -> str:
        """Name what is asked."""
        return "upcasters"

    def done_by(self, code: Code) -> list[Data]:
        """Return the data of each event."""
        code.upcasting.know(self.types)
        return [code.upcasting.data(event) for event in self.events]


def _plain_event(event: Event) -> Event:
    """Return an event of no classes but Python's own: others exist where they were loaded alone."""
    at = plain(event.occurred_at)
    return Event(
        plain(event.type),
        plain(event.data),
        tags=tuple(plain(list(event.tags))),
        metadata=plain(event.metadata),
        occurred_at=None if at is None else datetime.fromisoformat(at),
    )


def _as_json(decider: Decider[Any], state: Any) -> Any:
    """Return a state as JSON values that share nothing with it: evolve may change it in place."""
    return orjson.loads(orjson.dumps(decider.shape.freeze(state)))


def _seen(event: RecordedEvent, code: Code) -> Event:
    return Event(
        event.type,
        code.upcasting.data(event),
        tags=event.tags,
        metadata=event.metadata,
        occurred_at=event.occurred_at,
    )
