"""The events of a store from its database, archived ones from the log, as Arrow tables."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from eventstore.archive import Archived, fetched
from eventstore.lake_archive import LakeArchive
from eventstore.postgres.connect import Connection, connect, half_filled, wrapped
from eventstore.postgres.restoring import Contents
from eventstore.recovery.events import COLUMNS
from kernel.positions import Position
from schemas.records import RecordedEvent

_EVENTS = """
SELECT position, store_id::text, id::text, stream, version, category, type, schema_id, data_format,
       data, subject, key_id, metadata::text, tags, occurred_at, recorded_at
    FROM es.events WHERE position BETWEEN %s AND %s ORDER BY position
"""
_ARCHIVED = """
SELECT position, store_id::text FROM es.archived WHERE position BETWEEN %s AND %s ORDER BY position
"""


class StoredEvents:
    """Reads one database, as the service's role."""

    def __init__(self, connection: Connection, lake: str) -> None:
        self._connection = connection
        self._archive = LakeArchive(lake)

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, lake: str) -> AsyncIterator[StoredEvents]:
        """Connect."""
        async with await connect(dsn) as connection:
            yield cls(connection, lake)

    async def contents(self) -> Contents:
        """Return what the store is now, apart from its events.

        Raises `Unavailable` for a store that is being filled.
        """
        ((store_id, head, filling),) = await self.rows(
            "SELECT store_id::text, position, to_regclass('es.restoring') IS NOT NULL"
            " FROM es.store, es.counter"
        )
        if filling:
            raise half_filled()
        schemas = await self.rows("SELECT schema_id, schema FROM es.schemas ORDER BY schema_id")
        types = await self.rows("SELECT subject, schema_id FROM es.types ORDER BY subject")
        return Contents(store_id=store_id, head=head, schemas=dict(schemas), subjects=dict(types))

    async def type_schemas(self) -> dict[str, list[int]]:
        """Return the schemas by id that events of each type were written with."""
        found: dict[str, list[int]] = {}
        statement = "SELECT subject, schema_id FROM es.type_schemas ORDER BY subject, schema_id"
        for subject, schema_id in await self.rows(statement):
            found.setdefault(subject, []).append(schema_id)
        return found

    async def between(self, low: int, high: int) -> pa.Table:
        """Return the events of some positions. Raises `Unavailable` without their archive."""
        rows = await self.rows(_EVENTS, low, high)
        if len(rows) < high - low + 1:
            # An archiver may have worked between both statements: what was read is not read again.
            rows += await self._archived(low, high, {row[0] for row in rows})
            rows.sort()
        columns = list(zip(*rows, strict=True)) or [()] * len(COLUMNS)
        return pa.table(
            [pa.array(values, field.type) for values, field in zip(columns, COLUMNS, strict=True)],
            schema=COLUMNS,
        )

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement."""
        with wrapped("reading the event store"):
            async with self._connection.cursor(binary=True) as cursor:
                await cursor.execute(statement.encode(), values)
                return await cursor.fetchall()

    async def _archived(self, low: int, high: int, read: set[int]) -> list[tuple[Any, ...]]:
        # Looked up after the events: what was archived meanwhile is in either, or in both.
        places = [
            Archived(store_id=store_id, position=Position(position))
            for position, store_id in await self.rows(_ARCHIVED, low, high)
            if position not in read
        ]
        return _rows(await fetched(self._archive, places))


def _rows(events: Sequence[RecordedEvent]) -> list[tuple[Any, ...]]:
    return [
        (
            *(e.position, e.store_id, str(e.id), e.stream, e.version, e.category, e.type),
            *(e.schema_id, e.data_format, e.data, e.subject, e.key_id),
            *(json.dumps(e.metadata), list(e.tags), e.occurred_at, e.recorded_at),
        )
        for e in events
    ]
