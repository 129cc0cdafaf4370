"""Schemas kept beside the events they were used for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eventstore.intake import KeptSchemas
from eventstore.postgres.locks import TYPES_LOCK
from eventstore.postgres.queries import query
from eventstore.postgres.store import PostgresEventStore


class PostgresSchemaCache:
    """A `SchemaCache` in the tables `es.schemas` and `es.types`."""

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store
        self._lock = asyncio.Lock()

    async def load(self) -> KeptSchemas:
        """Return all of them."""
        async with self._store.reader("reading schemas") as connection:
            schemas = await connection.execute("SELECT schema_id, schema FROM es.schemas")
            texts: dict[int, str] = dict(await schemas.fetchall())
            types = await connection.execute("SELECT subject, schema_id FROM es.types")
            return KeptSchemas(schemas=texts, subjects=dict(await types.fetchall()))

    async def schema(self, schema_id: int) -> str | None:
        """Return the text of a schema, None when it is not kept."""
        async with self._store.reader("reading a schema") as connection:
            cursor = await connection.execute(
                "SELECT schema FROM es.schemas WHERE schema_id = %s", (schema_id,)
            )
            row = await cursor.fetchone()
        return None if row is None else str(row[0])

    async def written(self, subject: str) -> tuple[int, str] | None:
        """Return what `subject` is written with now."""
        async with self._store.reader("reading the schema of a type") as connection:
            cursor = await connection.execute(
                "SELECT schema_id, schema FROM es.types JOIN es.schemas USING (schema_id)"
                " WHERE subject = %s",
                (subject,),
            )
            row = await cursor.fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    async def keep(self, subject: str, schema_id: int, schema_json: str) -> None:
        """Keep a schema and write `subject` with it from now on."""
        values = {"subject": subject, "schema_id": schema_id, "schema": schema_json}
        async with (
            self._store.reader("keeping a schema") as connection,
            connection.transaction(),
        ):
            await connection.execute(query("keep_schema"), values)
            await connection.execute(query("keep_type"), values)
            await connection.execute(query("keep_type_schema"), values)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold a lock of the database: other services infer schemas too."""
        async with (
            # Of this process one task at a time: waiting ones must not hold all connections.
            self._lock,
            self._store.reader("locking schemas") as connection,
            connection.transaction(),
        ):
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (TYPES_LOCK,))
            yield
