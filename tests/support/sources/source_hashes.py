"""The hash of `schemas.row_hash` of all rows of a table, computed by PostgreSQL.

Text is what the lake holds (`cdc.canonical`), so that equal hashes mean equal rows. Generated
columns, which are not captured, are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from cdc.canonical import cell, has_text, md5_of, recoded
from cdc.columns import columns_of, set_text_output
from cdc.database import Connection, split_table
from schemas.pg_types import SourceColumn
from schemas.row_hash import TableHash, hash_text


def hash_of(connection: Connection, table: str, columns: Sequence[SourceColumn]) -> TableHash:
    """Hash the rows that this connection's transaction sees, over `columns` in their order."""
    set_text_output(connection)
    query = source_hash_sql(table, columns, recoded=recoded(connection))
    row = connection.execute(query).fetchone()
    assert row is not None, "an aggregate without GROUP BY has one row"
    return int(str(row["rows"])), hash_text(int(str(row["high"])), int(str(row["low"])))


def compared_columns(connection: Connection, table: str) -> tuple[SourceColumn, ...]:
    """Return the columns that have a canonical text, sorted by name. Raises `NotFound`."""
    columns = columns_of(connection, table)
    # Sorted as Python sorts, by code point: the database's collation may differ.
    return tuple(sorted((c for c in columns if has_text(c)), key=lambda c: c.name))


def source_hash_sql(
    table: str, columns: Sequence[SourceColumn], *, recoded: bool = False
) -> sql.Composed:
    """Return the query for `rows`, `high` and `low`: count, and sums of the halves of row hashes.

    Sums are numerics, not yet modulo 2^64. Columns without a canonical text are a mistake of the
    caller (`compared_columns` leaves them out).
    """
    cells = sql.SQL(" || ',' || ").join(cell(column) for column in columns)
    # A bit string turns into a signed number: adding 2^64 to negative ones undoes that.
    half = "sum(mod(('x' || substr(h, {}, 16))::bit(64)::bigint::numeric + {}, {}))"
    high, low = (sql.SQL(half.format(start, 2**64, 2**64)) for start in (1, 17))
    return sql.SQL(
        "SELECT count(*) AS rows, coalesce({high}, 0) AS high, coalesce({low}, 0) AS low"
        " FROM (SELECT {hash} AS h FROM {table}) hashed"
    ).format(
        high=high,
        low=low,
        hash=md5_of(cells, recoded=recoded),
        table=sql.Identifier(*split_table(table)),
    )
