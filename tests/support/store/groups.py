"""A store with persistent subscriptions, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from eventstore.groups.model import GivenEvents, Terms
from eventstore.postgres.groups import PostgresSubscriptionGroups
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import EVERYTHING, EventFilter
from kernel.positions import Position
from tests.contracts.events import event, request, to

FAST = Terms(
    max_deliveries=3,
    ack_timeout=timedelta(seconds=30),
    backoff=timedelta(0),
    backoff_cap=timedelta(seconds=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """An open store and its groups."""

    store: PostgresEventStore
    groups: PostgresSubscriptionGroups

    async def append(self, *streams: str) -> list[UUID]:
        """Append one event to each stream named, in order; return their ids."""
        ids = []
        for stream in streams:
            new = event()
            await self.store.append(request(to(stream, [new])))
            ids.append(new.id)
        return ids

    async def create(
        self,
        name: str = "g",
        *,
        terms: Terms = FAST,
        start: int | None = 0,
        filter_: EventFilter = EVERYTHING,
    ) -> bool:
        """Make a group."""
        at = None if start is None else Position(start)
        return await self.groups.create(name, filter_=filter_, start=at, terms=terms)

    async def take(
        self, limit: int = 10, *, consumer: str = "a", wait_s: float = 0, name: str = "g"
    ) -> list[tuple[UUID, int]]:
        """Take events; return their ids and how often each was given."""
        given = await self.groups.next(name, consumer=consumer, limit=limit, wait_s=wait_s)
        return pairs(given)


def pairs(given: GivenEvents) -> list[tuple[UUID, int]]:
    """Return ids and delivery counts."""
    return [(each.event.id, each.attempt) for each in given.deliveries]


def first(ids: Sequence[UUID]) -> list[tuple[UUID, int]]:
    """Return ids as given for the first time."""
    return [(id_, 1) for id_ in ids]


@asynccontextmanager
async def world(dsn: str, *, poll_s: float = 1.0) -> AsyncIterator[World]:
    """Open a store and its groups."""
    async with (
        PostgresEventStore(dsn) as store,
        PostgresSubscriptionGroups(dsn, store=store, head=store.feed_head, poll_s=poll_s) as groups,
    ):
        yield World(store=store, groups=groups)
