"""Persistent subscriptions in PostgreSQL: every call is one short transaction.

1. Lock the group's row; read what it has not finished, or the events that the call names.
2. Decide (`eventstore.groups.rules`), reading further events of the store as needed.
3. Save what changed, commit, then answer.

The row lock makes the calls of all services one after the other, per group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from uuid import UUID

import psycopg

from eventstore.archive import Archive, NoArchive, fetched
from eventstore.feed import Head
from eventstore.groups.model import (
    MAX_GROUPS,
    MAX_IDS,
    Delivery,
    GivenEvents,
    GroupEntry,
    GroupStanding,
    Parked,
    Settled,
    Terms,
    check_consumer,
    check_name,
)
from eventstore.groups.waiting import Waiters
from eventstore.postgres.archived_events import lacking
from eventstore.postgres.connect import Connection, StoreIdentity
from eventstore.postgres.group_rounds import GroupRounds, check_known, rows_of, unknown
from eventstore.postgres.group_rows import OpenRound, standing_of, subscription_of
from eventstore.postgres.queries import query
from eventstore.postgres.rows import of_row, recorded
from eventstore.sizes import PAGE_BYTES, bytes_of
from eventstore.store import EventFilter, EventStore
from kernel.errors import BeyondHead, InvalidRequest, SubscriptionDiffers
from kernel.positions import Position
from schemas.records import RecordedEvent

Ready = Callable[[RecordedEvent], Awaitable[None]]
_CONNECTIONS = 4
_PAGES = 4
"""Reads of the store within one transaction: bounds how long the group's row is locked."""
_SCAN_S = 1.0
"""How long a call that does not wait looks for an event that the filter lets pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one look brought. `more`: there is more to look at right now."""

    given: GivenEvents
    scanned_to: Position
    more: bool
    due_in: timedelta | None


class PostgresSubscriptionGroups:
    """`SubscriptionGroups` in the database of an event store. Use as an async context manager.

    `poll_s` is how soon a waiting consumer notices what another process finished.
    """

    def __init__(
        self,
        dsn: str,
        *,
        store: EventStore,
        head: Head,
        poll_s: float = 1.0,
        archive: Archive | None = None,
    ) -> None:
        self._archive = archive or NoArchive()
        self._poll_s = poll_s
        self._store = store
        self._head = head
        self._waiters = Waiters(head)
        self._identity = StoreIdentity()
        self._rounds = GroupRounds(dsn, connections=_CONNECTIONS)

    async def __aenter__(self) -> PostgresSubscriptionGroups:
        await self._rounds.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._rounds.close()

    @property
    def waiting(self) -> int:
        """Consumers of this process that ask or wait for events now."""
        return self._waiters.count

    async def create(
        self, name: str, *, filter_: EventFilter, start: Position | None, terms: Terms
    ) -> bool:
        """Make a group or change its terms; see `SubscriptionGroups.create`."""
        check_name(name)
        if filter_.stream is not None:
            raise InvalidRequest(
                "a subscription takes no single stream", remedy="Name a stream_prefix or a tag."
            )
        head = await self._store.head()
        if start is not None and start > head:
            raise BeyondHead(f"position {start} is beyond the head {head}", after=start, head=head)
        values = asdict(terms) | {
            "group": name,
            "category": filter_.category,
            "type": filter_.type,
            "stream_prefix": filter_.stream_prefix,
            "tag": filter_.tag,
            "started_after": head if start is None else start,
            "max_groups": MAX_GROUPS,
        }
        async with self._rounds.connection("making a subscription") as connection:
            if await rows_of(connection, "group_insert", values):
                return True
            rows = await rows_of(connection, "group_standings", {"group": name})
            if not rows:
                raise InvalidRequest(
                    f"there are {MAX_GROUPS} subscriptions, which is the most",
                    remedy="Delete one that nobody uses: penstock subscription list",
                )
            there = subscription_of(rows[0])
            if there.filter != filter_ or start not in (None, there.started_after):
                raise SubscriptionDiffers(
                    f"subscription {name} exists with another filter or start",
                    subscription=name,
                    started_after=there.started_after,
                )
            await connection.execute(query("group_terms"), values)
        self._waiters.stir(name)
        return False

    async def delete(self, name: str) -> None:
        """Forget a group."""
        check_known(name)
        async with self._rounds.connection("deleting a subscription") as connection:
            cursor = await connection.execute(
                "DELETE FROM es.subscriptions WHERE name = %s", (name,)
            )
            if cursor.rowcount == 0:
                raise unknown(name)
        self._waiters.stir(name)

    async def standings(self) -> list[GroupStanding]:
        """Return how all groups stand."""
        async with self._rounds.connection("reading subscriptions") as connection:
            rows = await rows_of(connection, "group_standings", {"group": None})
        return [standing_of(row) for row in rows]

    async def standing(self, name: str) -> GroupStanding:
        """Return how one group stands."""
        check_known(name)
        async with self._rounds.connection("reading a subscription") as connection:
            rows = await rows_of(connection, "group_standings", {"group": name})
        if not rows:
            raise unknown(name)
        return standing_of(rows[0])

    async def next(
        self,
        name: str,
        *,
        consumer: str,
        limit: int,
        per_stream: int = 1,
        wait_s: float = 0.0,
        gone: Callable[[], Awaitable[bool]] | None = None,
        ready: Ready | None = None,
    ) -> GivenEvents:
        """Give events to a consumer, or wait for some; see `SubscriptionGroups.next`."""
        check_consumer(consumer)
        if not 1 <= limit <= MAX_IDS:
            raise InvalidRequest(f"limit: {limit} is not in 1 to {MAX_IDS}")
        if not 1 <= per_stream <= MAX_IDS:
            raise InvalidRequest(f"per_stream: {per_stream} is not in 1 to {MAX_IDS}")
        time = asyncio.get_running_loop().time
        give_up = time() + wait_s
        scan_until = max(give_up, time() + _SCAN_S)
        with self._waiters.joined(name) as place:
            while True:
                known, stirred = self._head.position, place.stirred
                async with place.turn:
                    look = await self._look(name, consumer, limit, per_stream, ready)
                left = (scan_until if look.more else give_up) - time()
                over = left <= 0 or self._head.closed
                if look.given.deliveries or over:
                    return look.given
                if not look.more:
                    due_s = self._poll_s if look.due_in is None else look.due_in.total_seconds()
                    await self._waiters.woken(
                        stirred,
                        beyond=max(known, look.scanned_to),
                        timeout_s=max(0.001, min(left, due_s, self._poll_s)),
                    )
                # Before the next look: what that gives to nobody comes again after its time alone.
                if gone is not None and await gone():
                    return look.given

    async def ack(self, name: str, ids: Sequence[UUID]) -> Settled:
        """Finish events for good; see `SubscriptionGroups.ack`."""
        async with self._rounds.round(name, _checked(ids)) as open_round:
            settled = open_round.round.ack(ids)
            if settled.refused:
                settled = await self._others(open_round, settled)
        self._waiters.stir(name)
        return settled

    async def nack(
        self,
        name: str,
        ids: Sequence[UUID],
        *,
        reason: str,
        consumer: str | None = None,
        delay: timedelta | None = None,
    ) -> Settled:
        """Give events back; see `SubscriptionGroups.nack`."""
        _checked(ids)
        async with self._rounds.round(name, None) as open_round:
            settled = open_round.round.nack(ids, consumer=consumer, delay=delay, reason=reason)
        self._waiters.stir(name)
        return settled

    async def park(
        self, name: str, ids: Sequence[UUID], *, reason: str, consumer: str | None = None
    ) -> Settled:
        """Give up on events at once; see `SubscriptionGroups.park`."""
        async with self._rounds.round(name, _checked(ids)) as open_round:
            settled = open_round.round.park(ids, consumer=consumer, reason=reason)
        self._waiters.stir(name)
        return settled

    async def parked(self, name: str, *, after: int = 0, limit: int = 100) -> list[Parked]:
        """Return parked events behind a position."""
        await self.standing(name)
        async with self._rounds.connection("reading parked events") as connection:
            rows = await rows_of(
                connection, "group_parked", {"group": name, "after": after, "limit": limit}
            )
        return [of_row(Parked, row) for row in rows]

    async def replay_parked(self, name: str, ids: Sequence[UUID] | None = None) -> tuple[int, int]:
        """Let parked events be given again; see `SubscriptionGroups.replay_parked`."""
        async with self._rounds.round(name, None) as open_round:
            look_ahead = open_round.subscription.terms.look_ahead
            values = {
                "group": name,
                "number": open_round.number,
                "ids": None if ids is None else _checked(ids),
                # Beside the events on their way as many again: a full group takes them back too.
                "limit": max(0, 2 * look_ahead - open_round.round.unfinished),
                "now": open_round.round.now,
            }
            ((replayed, remaining),) = await rows_of(
                open_round.connection, "group_replay_parked", values
            )
        self._waiters.stir(name)
        return int(replayed), int(remaining)

    async def _look(
        self, name: str, consumer: str, limit: int, per_stream: int, ready: Ready | None
    ) -> _Look:
        fresh: dict[Position, RecordedEvent] = {}
        more = caught_up = False
        size = 0
        async with self._rounds.round(name, None) as open_round:
            round_ = open_round.round
            round_.settle()
            for page_number in range(_PAGES + 1):
                wanted = min(round_.room, round_.missing(limit, per_stream))
                if wanted <= 0:
                    break
                more = page_number == _PAGES
                if more:
                    break
                page = await self._store.read_all(
                    after=open_round.scanned_to,
                    limit=wanted,
                    filter_=open_round.subscription.filter,
                )
                round_.take_in(page.events)
                fresh |= {event.position: event for event in page.events}
                size += sum(map(bytes_of, page.events))
                open_round.scanned_to = max(page.scanned_to, open_round.scanned_to)
                self._head.advance(page.head)
                caught_up = open_round.scanned_to >= page.head
                if caught_up or size >= PAGE_BYTES:
                    break
            fitting = await self._fitting(open_round, limit, per_stream, fresh)
            given = round_.give(consumer, fitting, per_stream)
            wanted_now = {entry.position for entry in given}
            events = {at: event for at, event in fresh.items() if at in wanted_now}
            events |= await self._again(open_round.connection, given, fresh)
            missing = [entry for entry in given if entry.position not in events]
            round_.drop_missing(missing)
            more = more or bool(missing)
            due_in = round_.due_in()
            if ready is not None:
                for event in events.values():
                    await ready(event)
        if round_.newly_parked:
            self._waiters.stir(name)
        deliveries = tuple(
            Delivery(event=events[entry.position], attempt=entry.deliveries, ack_by=entry.due_at)
            for entry in given
            if entry.position in events
        )
        return _Look(
            given=GivenEvents(deliveries=deliveries, caught_up=caught_up),
            scanned_to=open_round.scanned_to,
            more=more,
            due_in=due_in,
        )

    async def _fitting(
        self,
        open_round: OpenRound,
        limit: int,
        per_stream: int,
        fresh: dict[Position, RecordedEvent],
    ) -> int:
        """Return how many of the events that may be given go into one answer for their bytes."""
        entries = open_round.round.givable(limit, per_stream)
        sizes = {at: bytes_of(event) for at, event in fresh.items()}
        others = [entry.position for entry in entries if entry.position not in fresh]
        if len(others) > 1:
            values = {"positions": others}
            sizes |= dict(await rows_of(open_round.connection, "group_sizes", values))
        before = 0
        for count, entry in enumerate(entries):
            if before >= PAGE_BYTES:
                return count
            before += sizes.get(entry.position, 0)
        return limit

    async def _again(
        self,
        connection: Connection,
        given: Sequence[GroupEntry],
        fresh: dict[Position, RecordedEvent],
    ) -> dict[Position, RecordedEvent]:
        positions = [entry.position for entry in given if entry.position not in fresh]
        if not positions:
            return {}
        store_id = await self._identity.of(connection)
        async with psycopg.AsyncCursor(connection) as binary:
            values = {"positions": positions}
            await binary.execute(query("group_events"), values, binary=True)
            rows = await binary.fetchall()
        archived = await lacking(connection, "group_events", values, rows, position=0)
        events = [recorded(row, store_id) for row in rows]
        events += await fetched(self._archive, archived)
        return {event.position: event for event in events}

    async def _others(self, open_round: OpenRound, settled: Settled) -> Settled:
        """Acknowledge what was parked; tell what was finished before from what never was given."""
        values = {
            "group": open_round.subscription.name,
            "ids": list(settled.refused),
            "started_after": open_round.subscription.started_after,
            "scanned_to": open_round.scanned_to,
        }
        unparked = {id_ for (id_,) in await rows_of(open_round.connection, "group_unpark", values)}
        open_round.round.unpark(len(unparked))
        before = {id_ for (id_,) in await rows_of(open_round.connection, "group_settled", values)}
        before -= unparked
        return replace(
            settled,
            done=(*settled.done, *(id_ for id_ in settled.refused if id_ in unparked)),
            already=tuple(id_ for id_ in settled.refused if id_ in before),
            refused=tuple(id_ for id_ in settled.refused if id_ not in unparked | before),
        )


def _checked(ids: Sequence[UUID]) -> list[UUID]:
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidRequest(f"ids: expected 1 to {MAX_IDS} event ids, found {len(ids)}")
    return list(ids)
