"""The event store in PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from eventstore.appender import Appender, AppendLimits, AppendObserver
from eventstore.archive import Archive, Archived, NoArchive, fetched
from eventstore.conditions import Query
from eventstore.decision import MAX_CATEGORIES, SameData, same_bytes
from eventstore.feed import Head
from eventstore.filters import Wanted, wanted_by_filter, wanted_by_query
from eventstore.lifecycle import StreamStanding, check_readable
from eventstore.listing import CategorySummary, StreamRange, StreamSummary
from eventstore.names import unknown_event
from eventstore.postgres.archived_events import lacking, merged, plain_of, within
from eventstore.postgres.commit import PostgresGroupCommit
from eventstore.postgres.connect import Connection, Pool, StoreIdentity
from eventstore.postgres.listing import categories_of, streams_of
from eventstore.postgres.matching import probe
from eventstore.postgres.old_snapshots import OpenSnapshot, oldest_snapshot
from eventstore.postgres.reading import (
    POSITION,
    PlainPage,
    PlainRow,
    head_of,
    locate,
    page_of,
    page_rows,
)
from eventstore.postgres.rows import recorded
from eventstore.postgres.streams import shown_from, standing_of
from eventstore.store import (
    EVERYTHING,
    Appended,
    AppendRequest,
    Direction,
    EventFilter,
    EventPage,
    StreamPage,
)
from kernel.positions import Position, Version
from schemas.records import RecordedEvent

_MAX_BIGINT = 2**63 - 1


class PostgresEventStore:
    """An `EventStore` in a migrated database. Use as an async context manager.

    Survives a restart of PostgreSQL: readers get `Unavailable` meanwhile, appends wait for their
    deadline. Several processes may open the same store; one of them is the writer.
    """

    def __init__(
        self,
        dsn: str,
        *,
        limits: AppendLimits | None = None,
        observer: AppendObserver | None = None,
        same_data: SameData = same_bytes,
        max_categories: int = MAX_CATEGORIES,
        lease_ttl_s: float = 10.0,
        readers: int = 4,
        archive: Archive | None = None,
    ) -> None:
        self.feed_head = Head()
        self._archive = archive or NoArchive()
        self._identity = StoreIdentity()
        self._group = PostgresGroupCommit(
            dsn,
            holder=f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}",
            same_data=same_data,
            max_categories=max_categories,
            lease_ttl_s=lease_ttl_s,
            archive=self._archive,
        )
        self.appender = Appender(self._group, self.feed_head, limits=limits, observer=observer)
        self._pool = Pool(dsn, name="readers", connections=readers)

    async def __aenter__(self) -> PostgresEventStore:
        await self._pool.open()
        self.appender.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.appender.stop()
        await self._pool.close()

    def enqueue(self, request: AppendRequest) -> asyncio.Future[Appended]:
        """Queue a request; see `Appender.enqueue`."""
        return self.appender.enqueue(request)

    async def append(self, request: AppendRequest) -> Appended:
        """Commit a request; see `EventStore.append`."""
        if request.condition is not None:
            # Nobody waits for the lock meanwhile; under it only what is newer is searched.
            async with self.reader("judging a condition") as connection:
                request = replace(request, probed=await probe(connection, request.condition))
        return await self.appender.append(request)

    async def read_stream(
        self, stream: str, *, from_version: int | None, direction: Direction, limit: int
    ) -> StreamPage:
        """Return part of a stream; see `EventStore.read_stream`."""
        async with self.reader("reading a stream") as connection:
            version, part = await self._part(connection, stream, from_version, direction)
            name, backward = f"read_stream_{direction}", direction == "backward"
            values = part | {"limit": limit}
            found = await self._read(connection, name, values, backward=backward)
        events = (await self._events(found, backward=backward))[:limit]
        last = max([version, *(event.version for event in events)])
        return StreamPage(version=Version(last), events=events)

    async def rows_of_stream(
        self, stream: str, *, from_version: int | None, direction: Direction, limit: int
    ) -> tuple[Version, list[PlainRow]]:
        """Return what `read_stream` does, as rows that are quick to render."""
        async with self.reader("reading a stream") as connection:
            version, part = await self._part(connection, stream, from_version, direction)
            name, backward = f"read_stream_{direction}", direction == "backward"
            values = part | {"limit": limit}
            found = await self._read(connection, name, values, plain=True, backward=backward)
        rows = await self._plain(found, backward=backward)
        return version, rows[:limit]

    async def _part(
        self, connection: Connection, stream: str, from_version: int | None, direction: Direction
    ) -> tuple[Version, dict[str, object]]:
        """Return a stream's version and the bounds of what is asked and may be shown."""
        standing = await standing_of(connection, stream)
        check_readable(standing)
        floor = await shown_from(connection, standing)
        if direction == "forward":
            start = max(from_version or 0, floor)
        else:
            start = _MAX_BIGINT if from_version is None else from_version
        bounds = {
            "stream": stream,
            "from_version": start,
            "floor": floor,
            "version": standing.version,
        }
        return standing.version, bounds

    async def standing(self, stream: str) -> StreamStanding:
        """Return how a stream stands; see `EventStore.standing`."""
        async with self.reader("reading a stream's policy") as connection:
            return await standing_of(connection, stream)

    async def read_all(
        self,
        *,
        after: int,
        limit: int,
        filter_: EventFilter = EVERYTHING,
        up_to: Position | None = None,
    ) -> EventPage:
        """Return part of the store; see `EventStore.read_all`, and `Pages.read_all`."""
        return await self._page(wanted_by_filter(filter_), after, limit, up_to)

    async def query(self, query: Query, *, after: int, limit: int) -> EventPage:
        """Return events that match; see `EventStore.query`."""
        return await self._page(wanted_by_query(query), after, limit)

    async def _page(
        self, wanted: Sequence[Wanted], after: int, limit: int, up_to: Position | None = None
    ) -> EventPage:
        async with self.reader("reading events") as connection:
            head = await self._head_of(connection) if up_to is None else up_to
            place = await locate(connection, wanted, after=after, head=head, limit=limit)
            found = await self._read(connection, *place.statement)
        events = (await self._events(found))[:limit]
        full = len(events) == limit or found.cut
        scanned_to = events[-1].position if full else place.scanned_to
        return EventPage(events=events, scanned_to=Position(scanned_to), head=Position(head))

    async def rows_of_all(
        self, *, after: int, up_to: int, limit: int, filter_: EventFilter = EVERYTHING
    ) -> PlainPage:
        """Return up to `limit` events behind `after` as rows that are quick to render."""
        async with self.reader("reading events") as connection:
            wanted = wanted_by_filter(filter_)
            place = await locate(connection, wanted, after=after, head=up_to, limit=limit)
            found = await self._read(connection, *place.statement, plain=True)
        rows = (await self._plain(found))[:limit]
        full = len(rows) == limit or found.cut
        scanned_to = rows[-1][POSITION] if full else place.scanned_to
        return PlainPage(rows=rows, scanned_to=scanned_to)

    async def event(self, event_id: UUID) -> RecordedEvent:
        """Return one event; see `EventStore.event`."""
        async with self.reader("reading an event") as connection:
            found = await self._read(connection, "read_event", {"id": event_id})
        events = await self._events(found)
        if not events:
            raise unknown_event(event_id)
        return events[0]

    async def streams(self, range_: StreamRange, *, limit: int) -> tuple[StreamSummary, ...]:
        """Return streams by name; see `EventStore.streams`."""
        async with self.reader("listing streams") as connection:
            return await streams_of(connection, range_, limit)

    async def categories(self) -> tuple[CategorySummary, ...]:
        """Return all categories; see `EventStore.categories`."""
        async with self.reader("listing categories") as connection:
            return await categories_of(connection)

    async def oldest_snapshot(self) -> OpenSnapshot | None:
        """Return the oldest snapshot that others keep open in this database, None for none."""
        async with self.reader("looking for open snapshots") as connection:
            return await oldest_snapshot(connection)

    async def head(self) -> Position:
        """Return the last position."""
        async with self.reader("reading the head") as connection:
            return Position(await self._head_of(connection))

    async def store_id(self) -> str:
        """Return the store's id: under which the lake keeps how far it has come."""
        async with self.reader("reading the store's id") as connection:
            return await self._identity.of(connection)

    def reader(self, doing: str) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection of the readers' pool; its errors become `Unavailable`."""
        return self._pool.lend(doing)

    async def _head_of(self, connection: Connection) -> int:
        known = self.feed_head.position
        head = await head_of(connection)
        self.feed_head.check(known, head)
        return head

    async def _read(
        self,
        connection: Connection,
        name: str,
        values: Mapping[str, object],
        *,
        plain: bool = False,
        backward: bool = False,
    ) -> _Found:
        store_id = await self._identity.of(connection)
        statement = page_of(name, plain=plain, backward=backward)
        rows = await page_rows(connection, statement, values)
        position = POSITION if plain else 0
        archived = await lacking(connection, name, values, rows, position=position)
        end = within(rows, archived, position=position, backward=backward)
        if end is not None and archived:
            sign = -1 if backward else 1
            rows = [row for row in rows if sign * row[position] <= sign * end]
            archived = [each for each in archived if sign * each.position <= sign * end]
        return _Found(rows, archived, store_id, end is not None)

    async def _events(self, found: _Found, *, backward: bool = False) -> tuple[RecordedEvent, ...]:
        store_id = found.store_id
        if not found.archived:
            return tuple([recorded(row, store_id) for row in found.rows])
        archived = await fetched(self._archive, found.archived)
        return tuple(
            merged(
                found.rows,
                lambda row: recorded(row, store_id),
                ((event.position, event) for event in archived),
                position=0,
                backward=backward,
            )
        )

    async def _plain(self, found: _Found, *, backward: bool = False) -> list[PlainRow]:
        if not found.archived:
            return found.rows
        archived = await fetched(self._archive, found.archived)
        return merged(
            found.rows,
            lambda row: cast(PlainRow, row),
            ((event.position, plain_of(event)) for event in archived),
            position=POSITION,
            backward=backward,
        )


class _Found(NamedTuple):
    """Rows of a read, and what belongs between them but is in the archive.

    `cut`: they end where they do for their bytes.
    """

    rows: list[Any]
    archived: list[Archived]
    store_id: str
    cut: bool
