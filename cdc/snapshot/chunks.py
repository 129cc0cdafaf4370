"""A table cut into chunks of about equal size, by ranges of its key.

Ranges of keys hold the same rows at every LSN, which places on disk (`ctid`) do not: a row that is
updated moves. So a chunk may be read at another LSN than its neighbours when a copy is resumed.
Ranges are the source's own, in the order of its index: nobody else needs to tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc.database import Connection, Row, split_table
from cdc.row_policies import heed_policies
from kernel.errors import NotFound
from schemas.key_ranges import (
    WHOLE,
    Bound,
    KeyColumn,
    KeyOrder,
    KeyRange,
    cut_at,
)

CHUNK_BYTES = 64 * 2**20
MOST_CHUNKS = 1024
_PAGES_PER_CHUNK = 16
_LEAST_PAGES = 400
_PAGE_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPlan:
    """How a table is read. `rows` is an estimate, `bytes` its size on disk."""

    ranges: tuple[KeyRange, ...]
    rows: int
    bytes: int


def plan_chunks(
    connection: Connection,
    table: str,
    key: Sequence[str],
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> ChunkPlan:
    """Cut a table by a sample of its keys, in the transaction that the connection is in.

    A table has one chunk when it is small, and when no index serves its key. Raises `NotFound`.
    """
    heed_policies(connection, table)
    size = _size(connection, table)
    wanted = min(MOST_CHUNKS, size["bytes"] // chunk_bytes + 1)
    if wanted > 1 and key and any(True for _ in _indexes(connection, table, key)):
        bounds, rows = _bounds(connection, table, key, chunks=wanted, size=size)
        if bounds:
            return ChunkPlan(ranges=cut_at(bounds), rows=rows, bytes=size["bytes"])
    return ChunkPlan(ranges=(WHOLE,), rows=size["rows"], bytes=size["bytes"])


def chunk_condition(range_: KeyRange, key: Sequence[str]) -> sql.Composed:
    """Return what WHERE takes for a range of a plan; TRUE for all.

    Whole keys are compared as the index has them, each bound read as its column's type.
    """
    columns = sql.SQL(", ").join(map(sql.Identifier, key))
    parts = [
        sql.SQL("({}) {} ({})").format(
            columns, sql.SQL(operator), sql.SQL(", ").join(map(sql.Literal, bound))
        )
        for bound, operator in ((range_.low, ">="), (range_.high, "<"))
        if bound is not None
    ]
    return sql.SQL(" AND ").join(parts) if parts else sql.Composed([sql.SQL("TRUE")])


def from_clause(connection: Connection, table: str) -> sql.Composed:
    """Return what FROM takes: a partitioned table whole, an ordinary one without its heirs."""
    schema, name = split_table(table)
    found = sql.Identifier(schema, name)
    only = "" if _facts(connection, table)["kind"] == "p" else "ONLY "
    return sql.SQL("{}{}").format(sql.SQL(only), found)


def _facts(connection: Connection, table: str) -> Row:
    schema, name = split_table(table)
    row = connection.execute(
        """
        SELECT c.oid, c.relkind::text AS kind FROM pg_class c
          JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = %s AND c.relname = %s
        """,
        (schema, name),
    ).fetchone()
    if row is None:
        raise NotFound(f"no table {schema}.{name} in the source database")
    return row


def _size(connection: Connection, table: str) -> Mapping[str, int]:
    row = connection.execute(
        """
        SELECT coalesce(sum(pg_table_size(c.oid)), 0)::bigint AS bytes,
               coalesce(sum(pg_relation_size(c.oid)), 0)::bigint AS heap,
               coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint AS rows
          FROM pg_class c
         WHERE c.oid = %(table)s
            OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::oid::regclass) WHERE isleaf)
        """,
        {"table": _facts(connection, table)["oid"]},
    ).fetchone()
    assert row is not None, "an aggregate has one row"
    return {name: int(str(value)) for name, value in row.items()}


def served_by_index(connection: Connection, table: str, key: Sequence[KeyColumn]) -> bool:
    """Say whether an index of a key without nulls orders it as the lake does."""
    names = [column.name for column in key]
    return any(
        all(
            column.order is not KeyOrder.TEXT or collation in ("C", "POSIX", "ucs_basic")
            for column, collation in zip(key, collations, strict=False)
        )
        for collations in _indexes(connection, table, names)
    )


def _indexes(
    connection: Connection, table: str, names: Sequence[str]
) -> Iterator[Sequence[str | None]]:
    """Yield, per unique index without nulls that begins with these columns, their collations."""
    rows = connection.execute(
        """
        SELECT array_agg(a.attname::text ORDER BY k.place) AS names,
               array_agg(
                 CASE WHEN co.collname = 'default' THEN d.datcollate ELSE co.collname::text END
                 ORDER BY k.place) AS collations,
               bool_and(a.attnotnull) AS filled
          FROM pg_index i
          JOIN pg_database d ON d.datname = current_database()
          CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
          JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
          LEFT JOIN pg_collation co ON co.oid = a.attcollation
         WHERE i.indrelid = %s AND i.indisvalid AND i.indisunique AND i.indpred IS NULL
           AND k.place <= i.indnkeyatts
         GROUP BY i.indexrelid
        """,
        (_facts(connection, table)["oid"],),
    ).fetchall()
    for row in rows:
        found, collations = row["names"], row["collations"]
        assert isinstance(found, list)
        assert isinstance(collations, list)
        if row["filled"] and found[: len(names)] == list(names):
            yield collations


def _bounds(
    connection: Connection,
    table: str,
    key: Sequence[str],
    *,
    chunks: int,
    size: Mapping[str, int],
) -> tuple[list[Bound], int]:
    """Return ascending bounds from a sample of pages, and the number of rows that it implies."""
    pages = max(size["heap"] // _PAGE_BYTES, 1)
    percent = min(100.0, 100.0 * max(_LEAST_PAGES, _PAGES_PER_CHUNK * chunks) / pages)
    rows = connection.execute(
        sql.SQL(
            """
            SELECT bound, total FROM (
                SELECT {texts} AS bound, row_number() OVER (ORDER BY {order}) AS place,
                       count(*) OVER () AS total
                  FROM {table} TABLESAMPLE SYSTEM ({percent})
            ) sampled
             WHERE place * {chunks} / total <> (place - 1) * {chunks} / total AND place < total
             ORDER BY place
            """
        ).format(
            texts=sql.SQL("ARRAY[{}]").format(
                sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(k)) for k in key)
            ),
            order=sql.SQL(", ").join(map(sql.Identifier, key)),
            table=from_clause(connection, table),
            percent=sql.Literal(percent),
            chunks=sql.Literal(chunks),
        )
    ).fetchall()
    bounds: list[Bound] = []
    for row in rows:
        found = row["bound"]
        assert isinstance(found, list)
        bound = tuple(str(text) for text in found)
        if not bounds or bounds[-1] != bound:
            bounds.append(bound)
    total = int(str(rows[0]["total"])) if rows else 0
    return bounds, round(total * 100.0 / percent)
