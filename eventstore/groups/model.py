"""What a group is made of: its terms, the events it has out, the events it gave up on."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from eventstore.store import EVERYTHING, EventFilter
from kernel.errors import InvalidRequest
from kernel.positions import Position
from schemas.json_values import shown
from schemas.records import RecordedEvent

MAX_GROUPS = 200
"""Groups in one store: each is a row that every list and every scrape of the metrics reads."""
MAX_IDS = 1_000
"""Event ids in one request, and events in one answer."""
MAX_REASON_CHARS = 500
_Size = TypeVar("_Size", int, timedelta)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_CONSUMER = re.compile(r"[^\s\x00-\x1f\x7f]{1,128}")


def is_name(name: str) -> bool:
    """Say whether a group may be called so."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return a group's name, or raise `InvalidRequest`."""
    if is_name(name):
        return name
    raise InvalidRequest(
        f"{shown(name)} cannot name a subscription",
        remedy=f"A name matches {_NAME.pattern}. Example: orders-to-shop",
    )


def check_consumer(name: str) -> str:
    """Return a consumer's name, or raise `InvalidRequest`."""
    if _CONSUMER.fullmatch(name):
        return name
    raise InvalidRequest(
        f"{shown(name)} cannot name a consumer",
        remedy="Use 1 to 128 characters without blanks, as worker-1",
    )


def short_reason(text: str) -> str:
    """Return a reason as it is kept: one line, bounded, without what PostgreSQL cannot store."""
    return " ".join(text.replace("\x00", " ").split())[:MAX_REASON_CHARS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a group hands out events; may be changed at any time.

    An event is given `max_deliveries` times at most, then parked. One that is not acknowledged
    within `ack_timeout` is given again at once; a refused one after `backoff`, doubled by each
    delivery up to `backoff_cap`. `max_in_flight` events are with consumers at most. `look_ahead`
    is how many unfinished events are kept track of: behind a stream that is stuck, that many
    others can pass. `max_parked` events are parked at most; what finds no room waits.
    """

    max_deliveries: int = 10
    ack_timeout: timedelta = timedelta(seconds=30)
    backoff: timedelta = timedelta(seconds=1)
    backoff_cap: timedelta = timedelta(minutes=5)
    max_in_flight: int = 100
    look_ahead: int = 1_000
    max_parked: int = 10_000

    def __post_init__(self) -> None:
        day, milli = timedelta(days=1), timedelta(milliseconds=1)
        _between("max_deliveries", self.max_deliveries, 1, 1_000)
        _between("ack_timeout_s", self.ack_timeout, 100 * milli, day)
        _between("backoff_s", self.backoff, timedelta(0), day)
        _between("backoff_cap_s", self.backoff_cap, self.backoff, day)
        _between("max_in_flight", self.max_in_flight, 1, 10_000)
        _between("look_ahead", self.look_ahead, self.max_in_flight, 20_000)
        _between("max_parked", self.max_parked, 0, 100_000)

    def backoff_after(self, deliveries: int) -> timedelta:
        """Return the pause before the next delivery, `deliveries` having failed."""
        doubled = min(max(deliveries - 1, 0), 40)
        return min(self.backoff_cap, self.backoff * 2**doubled) if self.backoff else self.backoff


def _between(name: str, value: _Size, least: _Size, most: _Size) -> None:
    if not least <= value <= most:
        raise InvalidRequest(f"{name}: {_plain(value)} is not in {_plain(least)} to {_plain(most)}")


def _plain(value: int | timedelta) -> str:
    return f"{value.total_seconds():g}" if isinstance(value, timedelta) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """An event that the group has looked at and that nobody has finished.

    With a consumer (`consumer` set) until `due_at`, when it counts as lost; or waiting, and not
    given before `due_at`. `deliveries` counts how often it was given. `reason` is why the last
    delivery failed.
    """

    position: Position
    event_id: UUID
    stream: str
    due_at: datetime
    deliveries: int = 0
    consumer: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """An event that the group gave up on, and why; it waits for a person."""

    position: Position
    event_id: UUID
    stream: str
    deliveries: int
    reason: str
    parked_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event as it is handed to a consumer: `attempt` is 1 the first time."""

    event: RecordedEvent
    attempt: int
    ack_by: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenEvents:
    """The answer to a consumer that asked for work. `caught_up`: all of the store was looked at."""

    deliveries: tuple[Delivery, ...]
    caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of event ids that a consumer named.

    `done`: as asked. `already`: finished before, nothing to do. `refused`: not with this consumer
    now (its time is over, or it was never given).
    """

    done: tuple[UUID, ...] = ()
    already: tuple[UUID, ...] = ()
    refused: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a group was asked to be. `started_after`: the position that it began behind."""

    name: str
    started_after: Position
    filter: EventFilter = EVERYTHING
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStanding:
    """How a group stands.

    All events at or below `checkpoint` that the filter lets pass are acknowledged or parked.
    `lag_events` counts every position behind it, wanted or not, so it is never less than the true
    lag; `lag_seconds` is the age of the first of them. `redelivered` counts deliveries after an
    event's first, since the group was made.
    """

    subscription: Subscription
    head: Position
    checkpoint: Position
    lag_events: int
    lag_seconds: float
    in_flight: int
    waiting: int
    parked: int
    redelivered: int

    @property
    def state(self) -> str:
        """`parked-full` (needs a person), `behind`, or `caught-up`."""
        if self.parked >= self.subscription.terms.max_parked and self.waiting:
            return "parked-full"
        return "behind" if self.lag_events else "caught-up"
