"""Indexes of large tables that are set aside while the tables are filled, and built afterwards.

An index that is kept up while rows come is written at a random place for each row; one that is
built afterwards is sorted once. What is set aside is written down in `es.restoring_indexes`, in the
transaction that drops it, and goes from there in the one that builds it.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from eventstore.postgres.connect import Connection
from eventstore.postgres.rows import of_row

_FIND = """
CREATE TABLE es.restoring_indexes AS
    SELECT relation.relname::text AS of_table, class.relname::text AS name,
           pg_get_indexdef(index.indexrelid) AS definition, kept.contype::text AS kind
    FROM pg_index AS index
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_class AS relation ON relation.oid = index.indrelid
    LEFT JOIN pg_constraint AS kept
        ON kept.conindid = index.indexrelid AND kept.conrelid = index.indrelid
    WHERE index.indrelid IN ('es.events'::regclass, 'es.streams'::regclass, 'es.tags'::regclass)
"""
_KINDS = {"p": sql.SQL("PRIMARY KEY"), "u": sql.SQL("UNIQUE")}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredIndex:
    """One of them. `kind`: that of the constraint that it belongs to, None for a plain index."""

    table: str
    name: str
    definition: str
    kind: str | None


async def set_aside(connection: Connection) -> None:
    """Write down the indexes of events, streams and tags, and drop them."""
    await connection.execute(_FIND.encode())
    for index in await of(connection, None):
        name, table = sql.Identifier(index.name), sql.Identifier(index.table)
        dropping = sql.SQL("DROP INDEX es.{}").format(name)
        if index.kind is not None:
            dropping = sql.SQL("ALTER TABLE es.{} DROP CONSTRAINT {}").format(table, name)
        await connection.execute(dropping)


async def of(connection: Connection, table: str | None) -> list[DeferredIndex]:
    """Return those that are still to be built; of one table, or of all."""
    cursor = await connection.execute(
        "SELECT of_table, name, definition, kind FROM es.restoring_indexes"
        " WHERE coalesce(of_table = %s::text, true) ORDER BY name",
        (table,),
    )
    return [of_row(DeferredIndex, row) for row in await cursor.fetchall()]


async def build(connection: Connection, index: DeferredIndex) -> None:
    """Build one, in the transaction that the connection is in."""
    name, table = sql.Identifier(index.name), sql.Identifier(index.table)
    await connection.execute(index.definition.encode())
    if index.kind is not None:
        await connection.execute(
            sql.SQL("ALTER TABLE es.{} ADD CONSTRAINT {} {} USING INDEX {}").format(
                table, name, _KINDS[index.kind], name
            )
        )
    await connection.execute("DELETE FROM es.restoring_indexes WHERE name = %s", (index.name,))
