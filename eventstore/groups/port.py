"""The port of persistent subscriptions: what consumers and operators can ask of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from eventstore.groups.model import GivenEvents, GroupStanding, Parked, Settled, Terms
from eventstore.store import EventFilter
from kernel.positions import Position
from schemas.records import RecordedEvent


class SubscriptionGroups(Protocol):
    """Groups of consumers, each group with a memory of what was handled.

    At least once: every event that the filter lets pass is given out until it is acknowledged or
    parked, whatever crashes. An event whose acknowledgement was answered is never given again.
    Within a stream, events are given one after the other. What an answer says is durable. All
    methods may be called concurrently, by several processes; each raises `NotFound` for a group
    that is not there and `Unavailable` when PostgreSQL does not answer (repeat it: a repeated
    acknowledgement changes nothing).
    """

    async def create(
        self, name: str, *, filter_: EventFilter, start: Position | None, terms: Terms
    ) -> bool:
        """Make a group that begins behind `start` (None: behind the head); True when it is new.

        For one that is there, only the terms change; `start` None goes with any. Raises
        `SubscriptionDiffers` for another filter or start, `BeyondHead`, `InvalidRequest`.
        """
        ...

    async def delete(self, name: str) -> None:
        """Forget a group, and what it has out and parked. Events are not touched."""
        ...

    async def standings(self) -> list[GroupStanding]:
        """Return how all groups stand, by name."""
        ...

    async def standing(self, name: str) -> GroupStanding:
        """Return how one group stands."""
        ...

    async def next(
        self,
        name: str,
        *,
        consumer: str,
        limit: int,
        per_stream: int = 1,
        wait_s: float = 0.0,
        gone: Callable[[], Awaitable[bool]] | None = None,
        ready: Callable[[RecordedEvent], Awaitable[None]] | None = None,
    ) -> GivenEvents:
        """Give up to `limit` events to a consumer, or wait for some; in order of position.

        Of one stream up to `per_stream` consecutive events are given together; no more of it until
        they are finished. Handle and acknowledge them in order. What is given again is given alone,
        so that an event which its consumer never survives takes no others with it. `gone` tells
        that nobody waits any more. `ready` is told of each event before it counts as given: when
        that raises, none is. Raises `Overloaded` when too many wait.
        """
        ...

    async def ack(self, name: str, ids: Sequence[UUID]) -> Settled:
        """Finish events for good, parked ones too. Repeating it is harmless."""
        ...

    async def nack(
        self,
        name: str,
        ids: Sequence[UUID],
        *,
        reason: str,
        consumer: str | None = None,
        delay: timedelta | None = None,
    ) -> Settled:
        """Give events back, to be given again after `delay` (None: the group's back-off).

        With `consumer`, only those that it still holds.
        """
        ...

    async def park(
        self, name: str, ids: Sequence[UUID], *, reason: str, consumer: str | None = None
    ) -> Settled:
        """Give up on events at once, all or none. Raises `Overloaded` when that finds no room."""
        ...

    async def parked(self, name: str, *, after: int = 0, limit: int = 100) -> list[Parked]:
        """Return parked events behind a position."""
        ...

    async def replay_parked(self, name: str, ids: Sequence[UUID] | None = None) -> tuple[int, int]:
        """Let parked events (all, or those named) be given again, as if never given before.

        Returns how many, and how many remain parked: as many come back as the group can keep
        track of, oldest first; repeat it when those are through.
        """
        ...
