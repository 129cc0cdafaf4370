"""Taking events out of the database, under the one role that may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg

from eventstore.archiving import Candidate, Leaving
from eventstore.lifecycle import StreamPolicy, StreamStanding, is_metadata
from eventstore.names import category_of, unknown_stream
from eventstore.postgres.archived_events import plain_of
from eventstore.postgres.connect import Connection, connect, wrapped
from eventstore.postgres.locks import APPEND_LOCK
from eventstore.postgres.queries import query
from eventstore.postgres.rows import of_row, recorded
from eventstore.postgres.streams import shown_from
from kernel import failpoints
from kernel.errors import InvalidRequest, Overloaded
from kernel.positions import Position, Version
from schemas.records import RecordedEvent

ARCHIVE_ROLE = "penstock_archive"
_STREAMS = 500
_LOCK_TIMEOUT = "SET lock_timeout = '5s'"


class PostgresHolder:
    """A `Holder` of one stream, or of all that hide something. Use as an async context manager.

    `before`: of the stream also versions that it shows, up to below this one.
    """

    def __init__(self, dsn: str, *, stream: str | None = None, before: int | None = None) -> None:
        if stream is not None and category_of(stream) and is_metadata(stream):
            raise InvalidRequest(f"stream {stream} records the life of another stream")
        self._dsn = dsn
        self._stream = stream
        self._before = before
        self._opened: Connection | None = None

    async def __aenter__(self) -> PostgresHolder:
        self._opened = await connect(self._dsn, role=ARCHIVE_ROLE, cursor=psycopg.AsyncClientCursor)
        await self._opened.execute(_LOCK_TIMEOUT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    @property
    def _connection(self) -> Connection:
        assert self._opened is not None, "not entered"
        return self._opened

    async def leaving(self) -> AsyncIterator[Leaving]:
        """Yield streams by name; see `Holder.leaving`. Raises `NotFound` for an unknown one."""
        if self._stream is not None:
            rows = await self._rows("archivable_stream", stream=self._stream)
            if not rows:
                raise unknown_stream(self._stream)
            found = await self._leaving_of(rows[0])
            if found.count:
                yield found
            return
        after = ""
        while rows := await self._rows("archivable_streams", after=after, limit=_STREAMS):
            for row in rows:
                found = await self._leaving_of(row)
                if found.count:
                    yield found
            after = rows[-1][0]

    async def events(
        self, stream: str, *, from_version: int, below: int, limit: int, limit_bytes: int
    ) -> list[Candidate]:
        """Return the next events of a stream; see `Holder.events`."""
        values = {
            "stream": stream,
            "from_version": from_version,
            "below": below,
            "limit": limit,
            "bytes": limit_bytes,
        }
        with wrapped("reading what may be archived"):
            async with psycopg.AsyncCursor(self._connection) as cursor:
                await cursor.execute(query("archivable_events"), values, binary=True)
                rows: list[tuple[Any, ...]] = await cursor.fetchall()
        return [
            Candidate(event=recorded(row, str(row[15])), metadata_text=row[16], tags_text=row[17])
            for row in rows
        ]

    async def move(self, positions: Sequence[Position]) -> int:
        """Take events out; see `Holder.move`. Raises `Overloaded` when appends hold the lock."""
        values = {"positions": list(positions), "append_lock": APPEND_LOCK}
        connection = self._connection
        with wrapped("archiving"):
            try:
                cursor = await connection.execute(query("archive_events"), values)
                moved = cursor.rowcount
                while cursor.nextset():
                    moved = cursor.rowcount
                failpoints.hit(failpoints.ARCHIVE_BEFORE_COMMIT)
                await connection.execute("COMMIT")
            except psycopg.errors.LockNotAvailable as error:
                await connection.execute("ROLLBACK")
                raise Overloaded("appends held the lock for five seconds") from error
        return moved

    async def _leaving_of(self, row: Sequence[Any]) -> Leaving:
        stream, version, *policy, first = row
        # Nothing is there of a stream that is in the archive as a whole.
        standing = StreamStanding(
            stream=stream,
            version=Version(version),
            policy=of_row(StreamPolicy, policy),
            metadata_version=None,
        )
        with wrapped("reading what may be archived"):
            hidden = await shown_from(self._connection, standing)
        below = max(hidden, standing.policy.archived_up_to, self._before or 0)
        return Leaving(
            standing=standing,
            first=version + 1 if first is None else first,
            below=min(below, version + 1),
        )

    async def _rows(self, name: str, **values: object) -> list[tuple[Any, ...]]:
        with wrapped("reading what may be archived"):
            cursor = await self._connection.execute(query(name), values)
            return await cursor.fetchall()


def same_text(candidate: Candidate, found: RecordedEvent) -> bool:
    """Say whether an archived event's line of JSON would be the same, to the byte."""
    _, _, _, _, _, _, _, _, _, metadata, tags, _, _, _ = plain_of(found)
    return (candidate.metadata_text, candidate.tags_text) == (metadata, tags)
