"""Fills an empty database with the events of a store, as they were, and makes the rest of them.

1. The database is marked: the table `es.restoring` says what is being filled in. From here on no
   role may use the schema, so that nobody reads or appends. The store's known head lies beyond its
   events, and who had the lease has it no longer: that keeps out those who need no role. Indexes of
   the large tables are set aside (`deferred_indexes`).
2. Events are copied by several connections, each part of positions in one commit with a row in
   `es.restoring_parts`. Whoever comes after a crash copies the positions that have no such row.
3. The indexes of events are built, a commit for each.
4. One commit makes streams, categories, tags and types of the events, sets what streams show, gives
   the roles their rights back and takes the mark away. After it the store is whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql

from eventstore.lifecycle import METADATA_SUFFIX
from eventstore.postgres import deferred_indexes
from eventstore.postgres.connect import Connection, connect, wrapped
from eventstore.postgres.locks import APPEND_LOCK, RESTORE_LOCK
from eventstore.postgres.queries import query
from eventstore.postgres.rows import COPY_EVENTS, policy_values
from eventstore.restored_streams import PolicyFold
from kernel.errors import Conflict, Incompatible, Unavailable

_EMPTY_FIRST = "Give an empty database: CREATE DATABASE …, and its DSN with --into"
_ALWAYS_FILLED = ["migrations", "store", "lease", "renewals", "counter"]
"""Tables that have rows before anybody has used the store."""
_TABLES = """
SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace('es') AND relkind = 'r' AND relname <> ALL (%s)
    ORDER BY relname <> 'events', relname
"""
_NO_WRITER = """
UPDATE es.lease SET number = number + 1, holder = '', expires_at = '-infinity'
"""
_MARK = """
CREATE TABLE es.restoring (store_id uuid NOT NULL);
CREATE TABLE es.restoring_parts (
    positions int8range NOT NULL,
    EXCLUDE USING gist (positions WITH &&)
);
CREATE TABLE es.restoring_roles AS
    SELECT pg_get_userbyid(given.grantee)::text AS role, given.number
        FROM pg_namespace, aclexplode(nspacl)
            WITH ORDINALITY AS given (grantor, grantee, privilege_type, is_grantable, number)
        WHERE nspname = 'es' AND given.privilege_type = 'USAGE'
            AND given.grantee NOT IN (0, nspowner);
"""
_UNMARK = "DROP TABLE es.restoring, es.restoring_parts, es.restoring_roles, es.restoring_indexes"
_MISSING = """
SELECT lower(part), upper(part) - 1 FROM unnest(
    int8multirange(int8range(1, %s, '[]')) - coalesce(
        (SELECT range_agg(positions) FROM es.restoring_parts), '{}'::int8multirange)
) AS part ORDER BY part
"""
_WAIT_FOR_ANOTHER = "15s"
"""A process that was killed may still be building an index: its server process notices soon."""
_SESSION = (
    "SET client_connection_check_interval = '2s'",
    "SET idle_in_transaction_session_timeout = 0",
    "SET maintenance_work_mem = '256MB'",
    "SET work_mem = '128MB'",
)


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

    def __init__(self, dsn: str, connection: Connection, contents: Contents) -> None:
        self._dsn = dsn
        self._connection = connection
        self._contents = contents

    async def begin(self) -> list[tuple[int, int]]:
        """Mark the database; return the first and last positions of what is to be copied.

        Raises `Conflict` for one that is not empty, or is being filled with another store;
        `Unavailable` while another process fills it.
        """
        contents = self._contents
        await self._take_turn()
        async with self._step():
            await _refuse_used(self._connection)
            if await self._value("SELECT to_regclass('es.restoring')::text") is None:
                await self._mark()
            else:
                await self._refuse_other()
            await self._execute(
                "UPDATE es.store SET store_id = %s, known_head = %s",
                contents.store_id,
                contents.head + 1,
            )
            await self._keep_schemas()
            cursor = await self._connection.execute(_MISSING.encode(), (contents.head,))
            missing = cast("list[tuple[int, int]]", await cursor.fetchall())
        return missing if contents.head else []

    @asynccontextmanager
    async def copier(self) -> AsyncIterator[Copier]:
        """Open a connection that adds events beside others."""
        async with await _connected(self._dsn) as connection:
            yield Copier(connection)

    async def finish(self) -> Restored:
        """Make the rest, and open the store.

        Raises `Incompatible` where the events are not the whole of a store: nothing is opened.
        """
        try:
            with wrapped("filling the event store"):
                for index in await deferred_indexes.of(self._connection, "events"):
                    async with self._step():
                        await deferred_indexes.build(self._connection, index)
                async with self._step():
                    await self._make_rest()
                await self._connection.execute("ANALYZE es.events, es.streams, es.tags")
                streams = await self._value("SELECT count(*) FROM es.streams")
                tags = await self._value("SELECT count(*) FROM es.tags")
        except psycopg.errors.UniqueViolation as error:
            raise Incompatible(
                f"two events are one: {error.diag.message_primary}, {error.diag.message_detail}",
                remedy="Look for it where the events come from.",
            ) from error
        contents = self._contents
        return Restored(
            store_id=contents.store_id, events=contents.head, streams=streams, tags=tags
        )

    async def _take_turn(self) -> None:
        with wrapped("filling the event store"):
            await self._execute("SELECT set_config('lock_timeout', %s, false)", _WAIT_FOR_ANOTHER)
            try:
                await self._execute("SELECT pg_advisory_lock(%s)", RESTORE_LOCK)
            except psycopg.errors.LockNotAvailable as error:
                raise Unavailable(
                    "another process fills the event store", remedy="Wait until it is done."
                ) from error
            await self._connection.execute("SET lock_timeout = 0")

    async def _mark(self) -> None:
        await self._connection.execute(_MARK.encode())
        await self._execute("INSERT INTO es.restoring VALUES (%s)", self._contents.store_id)
        await self._connection.execute(_NO_WRITER.encode())
        await deferred_indexes.set_aside(self._connection)
        for role in await self._roles():
            await self._connection.execute(
                sql.SQL("REVOKE USAGE ON SCHEMA es FROM {}").format(role)
            )

    async def _refuse_other(self) -> None:
        begun = await self._value("SELECT store_id::text FROM es.restoring")
        if await self._value("SELECT to_regclass('es.restoring_parts')::text") is None:
            raise Conflict(
                "the database was half filled by an older version of Penstock",
                remedy=_EMPTY_FIRST,
            )
        reached = await self._value(
            "SELECT coalesce(max(upper(positions)) - 1, 0) FROM es.restoring_parts"
        )
        if begun != self._contents.store_id or reached > self._contents.head:
            raise Conflict(
                f"the database is half filled with store {begun}, up to {reached}",
                remedy=_EMPTY_FIRST,
            )

    async def _make_rest(self) -> None:
        """Make what follows from the events, and take the mark away."""
        await self._connection.execute(query("restore_summary"))
        await self._refuse_incomplete()
        # A service that ran beside may have been told of types, which it could not append.
        await self._execute("DELETE FROM es.type_schemas")
        await self._execute("DELETE FROM es.types")
        await self._connection.execute(query("restore_from_events"))
        for subject, schema_id in self._contents.subjects.items():
            given = {"subject": subject, "schema_id": schema_id}
            await self._connection.execute(query("keep_type"), given)
            await self._connection.execute(query("keep_type_schema"), given)
        for table in ("streams", "tags"):
            for index in await deferred_indexes.of(self._connection, table):
                await deferred_indexes.build(self._connection, index)
        await self._set_policies()
        for role in await self._roles():
            await self._connection.execute(sql.SQL("GRANT USAGE ON SCHEMA es TO {}").format(role))
        await self._connection.execute(_NO_WRITER.encode())
        await self._connection.execute("UPDATE es.store SET known_head = NULL")
        await self._connection.execute(_UNMARK.encode())

    async def _roles(self) -> list[sql.Identifier]:
        cursor = await self._connection.execute(
            "SELECT role FROM es.restoring_roles ORDER BY number"
        )
        return [sql.Identifier(cast(str, role)) for (role,) in await cursor.fetchall()]

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
        counted = await self._value("SELECT coalesce(sum(events), 0)::bigint FROM kinds")
        if counted != self._contents.head:
            raise Incompatible(
                f"the store has {self._contents.head} events and {counted} were found",
                remedy="Look for the positions that are missing where the events come from.",
            )
        broken = await self._value(
            "SELECT stream FROM lives WHERE events <> last + 1 ORDER BY stream LIMIT 1"
        )
        if broken is not None:
            raise Incompatible(f"stream {broken} has versions that are missing")
        unknown = await self._value(
            "SELECT schema_id FROM kinds EXCEPT SELECT schema_id FROM es.schemas LIMIT 1"
        )
        if unknown is not None:
            raise Incompatible(
                f"the schema with id {unknown} is missing, which events need",
                remedy="Add its id and text to log/_schemas, as the registry or an older version "
                "of that table has them, and give the same command again: what was copied stays.",
            )

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
        await self._connection.execute(query("set_policies"), policy_values(policies))

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


class Copier:
    """Adds events to a database that is marked, beside others that do the same."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def copy(self, first: int, last: int, lines: Sequence[memoryview]) -> None:
        """Add the events of some positions, in COPY's text format.

        Fails where another process has added one of them, or does it at this moment.
        """
        with wrapped("filling the event store"):
            async with self._connection.transaction(), self._connection.cursor() as cursor:
                # What a lost machine takes back is copied again.
                await cursor.execute("SET LOCAL synchronous_commit = off")
                await cursor.execute(
                    "INSERT INTO es.restoring_parts VALUES (int8range(%s, %s, '[]'))", (first, last)
                )
                async with cursor.copy(COPY_EVENTS) as copy:
                    for part in lines:
                        await copy.write(part)


@asynccontextmanager
async def restoring(dsn: str, contents: Contents) -> AsyncIterator[PostgresRestore]:
    """Connect to a database whose schema is the newest one."""
    async with await _connected(dsn) as connection:
        yield PostgresRestore(dsn, connection, contents)


async def _connected(dsn: str) -> Connection:
    connection = await connect(dsn, role=None)
    try:
        with wrapped("filling the event store"):
            for setting in _SESSION:
                await connection.execute(setting.encode())
    except BaseException:
        # One of several that copy may be cancelled here, because another one failed.
        await connection.close()
        raise
    return connection
