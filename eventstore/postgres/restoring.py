"""Fills an empty database with the events of a store, as they were, and makes the rest of them.

1. The database is marked: the table `es.restoring` says what is being filled in, and the store's
   known head lies beyond its events, so that no writer takes the lease and nobody appends. A
   writer that had the lease before has it no longer.
2. Events are copied in ascending order, a commit for each part. Whoever comes after a crash goes on
   behind the last one.
3. One commit makes streams, categories, tags and types of the events, sets what streams show, and
   takes the mark away. Before it nothing serves the store, after it the store is whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from psycopg import sql

from eventstore.lifecycle import METADATA_SUFFIX
from eventstore.postgres.connect import Connection, connect, wrapped
from eventstore.postgres.locks import APPEND_LOCK
from eventstore.postgres.queries import query
from eventstore.postgres.rows import COPY_EVENTS
from eventstore.restoring import PolicyFold
from kernel.errors import Conflict, Incompatible, Unavailable

_EMPTY_FIRST = "Give an empty database: CREATE DATABASE …, and its DSN with --into"
_ALWAYS_FILLED = ["migrations", "store", "lease", "counter"]
"""Tables that have rows before anybody has used the store."""
_TABLES = """
SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace('es') AND relkind = 'r' AND relname <> ALL (%s)
    ORDER BY relname <> 'events', relname
"""
_NO_WRITER = """
UPDATE es.lease SET number = number + 1, holder = '', expires_at = '-infinity'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a store is to become: its id, its last position, its schemas by id.

    `subjects`: which schema each type is written with; of other types that of the last event.
    """

    store_id: str
    head: int
    schemas: Mapping[int, str]
    subjects: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What is in a store that was filled."""

    store_id: str
    events: int
    streams: int
    tags: int


def half_filled() -> Unavailable:
    """Return the error for whoever would use a store while it is filled."""
    return Unavailable(
        "the store is being filled, and has only a part of its events",
        remedy="Wait until that is done. If it died, give the same command again, which goes on "
        "where it was: penstock store rebuild, or penstock store import FOLDER",
    )


async def refuse_used(dsn: str) -> None:
    """Raise `Conflict` for a database that has a store already; of any schema, or none at all."""
    async with await connect(dsn, role=None) as connection:
        with wrapped("looking whether the event store is empty"):
            await _refuse_used(connection)


async def _refuse_used(connection: Connection) -> None:
    cursor = await connection.execute(_TABLES.encode(), (_ALWAYS_FILLED,))
    tables = [cast(str, name) for (name,) in await cursor.fetchall()]
    if "restoring" in tables:
        return  # What is there was filled in, or is looked at when it goes on.
    for name in tables:
        one = sql.SQL("SELECT FROM es.{} LIMIT 1").format(sql.Identifier(name))
        if await (await connection.execute(one)).fetchone() is not None:
            raise Conflict(
                f"the database has a store already: es.{name} has rows", remedy=_EMPTY_FIRST
            )


class PostgresRestore:
    """Fills one database. Needs a login that owns the store."""

    def __init__(self, connection: Connection, contents: Contents) -> None:
        self._connection = connection
        self._contents = contents

    async def begin(self) -> int:
        """Mark the database; return the position up to which it was filled before.

        Raises `Conflict` for one that is not empty, or is being filled with another store.
        """
        contents = self._contents
        async with self._step():
            await _refuse_used(self._connection)
            mark = await self._value("SELECT to_regclass('es.restoring')::text")
            reached = cast(int, await self._value("SELECT position FROM es.counter"))
            if mark is None:
                await self._connection.execute("CREATE TABLE es.restoring (store_id uuid)")
                await self._execute("INSERT INTO es.restoring VALUES (%s)", contents.store_id)
            else:
                begun = await self._value("SELECT store_id::text FROM es.restoring")
                if begun != contents.store_id or reached > contents.head:
                    raise Conflict(
                        f"the database is half filled with store {begun}, up to {reached}",
                        remedy=_EMPTY_FIRST,
                    )
            await self._execute(
                "UPDATE es.store SET store_id = %s, known_head = %s",
                contents.store_id,
                contents.head + 1,
            )
            await self._execute(_NO_WRITER)
            await self._keep_schemas()
        return reached

    async def copy(self, lines: Sequence[memoryview]) -> None:
        """Add events, behind those that are there, in COPY's text format."""
        async with self._step():
            # What a lost machine takes back is copied again.
            await self._connection.execute("SET LOCAL synchronous_commit = off")
            async with self._connection.cursor() as cursor, cursor.copy(COPY_EVENTS) as copy:
                for part in lines:
                    await copy.write(part)

    async def finish(self) -> Restored:
        """Make the rest, and open the store.

        Raises `Incompatible` where the events are not the whole of a store: nothing is opened.
        """
        contents = self._contents
        async with self._step():
            await self._refuse_incomplete()
            # A service that runs beside may have been told of types, which it could not append.
            await self._execute("DELETE FROM es.type_schemas")
            await self._execute("DELETE FROM es.types")
            await self._connection.execute(query("restore_from_events"))
            for subject, schema_id in contents.subjects.items():
                await self._connection.execute(
                    query("keep_type"), {"subject": subject, "schema_id": schema_id}
                )
                await self._connection.execute(
                    query("keep_type_schema"), {"subject": subject, "schema_id": schema_id}
                )
            await self._set_policies()
            await self._execute(_NO_WRITER)
            await self._connection.execute("UPDATE es.store SET known_head = NULL")
            await self._connection.execute("DROP TABLE es.restoring")
            counts = [
                cast(int, await self._value(f"SELECT count(*) FROM es.{table}"))
                for table in ("events", "streams", "tags")
            ]
        await self._connection.execute("ANALYZE es.events, es.streams, es.tags")
        events, streams, tags = counts
        return Restored(store_id=contents.store_id, events=events, streams=streams, tags=tags)

    async def _keep_schemas(self) -> None:
        contents = self._contents
        for schema_id, text in contents.schemas.items():
            await self._connection.execute(
                query("keep_schema"), {"schema_id": schema_id, "schema": text}
            )
        cursor = await self._connection.execute("SELECT schema_id, schema FROM es.schemas")
        for schema_id, text in await cursor.fetchall():
            if contents.schemas.get(schema_id, text) != text:
                raise Conflict(
                    f"the database has another schema with id {schema_id} than the store",
                    remedy=_EMPTY_FIRST,
                )

    async def _refuse_incomplete(self) -> None:
        counted = await self._value("SELECT count(*) FROM es.events")
        if counted != self._contents.head:
            raise Incompatible(
                f"the store has {self._contents.head} events and {counted} were found",
                remedy="Look for the positions that are missing where the events come from.",
            )
        broken = await self._value(
            "SELECT stream FROM es.events GROUP BY stream"
            " HAVING count(*) <> max(version) + 1 ORDER BY stream LIMIT 1"
        )
        if broken is not None:
            raise Incompatible(f"stream {broken} has versions that are missing")
        unknown = await self._value(
            "SELECT DISTINCT schema_id FROM es.events"
            " EXCEPT SELECT schema_id FROM es.schemas LIMIT 1"
        )
        if unknown is not None:
            raise Incompatible(f"the schema with id {unknown} is missing, which events need")

    async def _set_policies(self) -> None:
        fold = PolicyFold(self._contents.schemas)
        cursor = await self._connection.execute(
            "SELECT stream, type, schema_id, data FROM es.events"
            " WHERE right(stream, %s) = %s ORDER BY position",
            (len(METADATA_SUFFIX), METADATA_SUFFIX),
        )
        for row in await cursor.fetchall():
            fold.add(*row)
        names = fold.streams
        cursor = await self._connection.execute(
            "SELECT stream, version FROM es.heads WHERE stream = ANY(%s)", (names,)
        )
        heads: dict[str, int] = dict(await cursor.fetchall())
        policies = {name: fold.policy(name, heads[name]) for name in names}
        values: dict[str, object] = {"streams": names}
        for field in _POLICY:
            values[field] = [getattr(policies[name], field) for name in names]
        await self._connection.execute(query("set_policies"), values)

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[None]:
        """One transaction, with nobody appending meanwhile."""
        with wrapped("filling the event store"):
            async with self._connection.transaction():
                await self._execute("SELECT pg_advisory_xact_lock(%s)", APPEND_LOCK)
                yield

    async def _execute(self, statement: str, *values: object) -> None:
        await self._connection.execute(statement.encode(), values)

    async def _value(self, statement: str) -> Any:
        cursor = await self._connection.execute(statement.encode())
        row = await cursor.fetchone()
        return None if row is None else row[0]


_POLICY = (
    "deleted",
    "tombstoned",
    "truncate_before",
    "max_age_s",
    "max_count",
    "archived_up_to",
)


@asynccontextmanager
async def restoring(dsn: str, contents: Contents) -> AsyncIterator[PostgresRestore]:
    """Connect to a database whose schema is the newest one."""
    async with await connect(dsn, role=None) as connection:
        # The end makes an index' worth of rows of all events.
        await connection.execute("SET idle_in_transaction_session_timeout = 0")
        yield PostgresRestore(connection, contents)
