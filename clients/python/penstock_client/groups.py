"""Persistent subscriptions: what is asked of them, what they give, and how they stand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock_client.model import Event
from penstock_client.wire import event_of, reader_of, understood


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a group hands out events; None leaves it as the service has it.

    An event is given `max_deliveries` times at most, then parked. One that is not acknowledged
    within `ack_timeout_s` is given again; one that was given back, after `backoff_s`, doubled by
    each delivery up to `backoff_cap_s`.
    """

    max_deliveries: int | None = None
    ack_timeout_s: float | None = None
    backoff_s: float | None = None
    backoff_cap_s: float | None = None
    max_in_flight: int | None = None
    look_ahead: int | None = None
    max_parked: int | None = None

    def body(self) -> dict[str, Any]:
        """Return what is given, as the service takes it."""
        given = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """An event to handle. `attempt` is 1 the first time; acknowledge it before `ack_by`."""

    event: Event
    attempt: int
    ack_by: datetime

    @property
    def id(self) -> UUID:
        """The event's id, by which it is acknowledged."""
        return self.event.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The answer to a consumer. `caught_up`: all of the store was looked at."""

    deliveries: tuple[Delivery, ...]
    caught_up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of the ids that a consumer named.

    `already`: finished before. `refused`: not this consumer's now; its time is over.
    """

    done: tuple[UUID, ...]
    already: tuple[UUID, ...]
    refused: tuple[UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """An event that the group gave up on, and why."""

    id: UUID
    stream: str
    position: int
    deliveries: int
    reason: str
    parked_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a group stands: everything at or below `checkpoint` is finished.

    `lag_events` counts all positions behind that; `lag_seconds` is the age of the first.
    """

    name: str
    state: str
    started_after: int
    checkpoint: int
    head: int
    lag_events: int
    lag_seconds: float
    in_flight: int
    waiting: int
    parked: int
    redelivered: int


Handled = UUID | Delivery | Event
"""What may be named to `ack`, `nack` and `park`."""


def ids_body(handled: Handled | Iterable[Handled]) -> list[str]:
    """Return the ids of events."""
    several = (handled,) if isinstance(handled, UUID | Delivery | Event) else tuple(handled)
    return [str(each if isinstance(each, UUID) else each.id) for each in several]


def _ids(texts: Iterable[str]) -> tuple[UUID, ...]:
    return tuple(map(UUID, texts))


settled_of = reader_of(Settled, done=_ids, already=_ids, refused=_ids)
parked_of = reader_of(Parked, id=UUID)
standing_of = reader_of(Standing)
_delivery_of = reader_of(Delivery, event=event_of)


@understood
def given_of(document: Mapping[str, Any]) -> Given:
    """Return what was given."""
    return Given(
        deliveries=tuple(map(_delivery_of, document["events"])), caught_up=document["caught_up"]
    )
