"""Rows of a table as Arrow blocks of text, by COPY.

COPY sends CSV, a row per message; a null is nothing, an empty text is `""`. Blocks of whole rows
are parsed by Arrow, off the interpreter's lock, so that several connections keep several cores
busy. Values are PostgreSQL's own text (`cdc.columns.TEXT_SETTINGS`): nothing is lost on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as csv
from psycopg import sql

from cdc.columns import columns_of, set_text_output
from cdc.database import Connection, connected
from cdc.masking import select_list
from cdc.options import PLAIN, TableOptions
from cdc.snapshot.chunks import from_clause
from cdc.snapshot.slot import adopt
from cdc.verification.ranges import where
from kernel.errors import SchemaViolation
from schemas.key_ranges import WHOLE, KeyColumn, KeyRange
from schemas.pg_types import SourceColumn

BLOCK_BYTES = 4 * 2**20
_PARSE = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


def copied_columns(
    connection: Connection, table: str, options: TableOptions = PLAIN
) -> tuple[SourceColumn, ...]:
    """Return the columns that a copy has: all but generated and excluded ones, in table order.

    A hashed or masked column is text, as the connector sends it.
    """
    return tuple(
        SourceColumn(name=column.name, type="text") if column.name in options.veiled else column
        for column in columns_of(connection, table)
        if not column.generated and column.name not in options.exclude
    )


def read_range(
    dsn: str,
    snapshot: str,
    table: str,
    columns: Sequence[SourceColumn],
    range_: KeyRange = WHOLE,
    *,
    key: Sequence[KeyColumn] = (),
    options: TableOptions = PLAIN,
    salt: str = "",
) -> Iterator[pa.Table]:
    """Read the rows of a range of keys as of an exported snapshot, on a connection of its own.

    Yields tables of at most about `BLOCK_BYTES`, all columns text, null where the row has null; in
    no order. Raises what `cdc.database.connected` raises, and `SchemaViolation` for bytes that are
    no UTF-8 (a database in SQL_ASCII).
    """
    with connected(dsn) as connection:
        prepare(connection, snapshot)
        yield from read(connection, table, columns, range_, key=key, options=options, salt=salt)


def prepare(connection: Connection, snapshot: str) -> None:
    """Make a connection ready to read in an exported snapshot."""
    set_text_output(connection)
    connection.execute("SET client_encoding = 'UTF8'")
    # A policy that hides rows from this role is an error, not a smaller table.
    connection.execute("SET row_security = off")
    adopt(connection, snapshot)


def read(
    connection: Connection,
    table: str,
    columns: Sequence[SourceColumn],
    range_: KeyRange = WHOLE,
    *,
    key: Sequence[KeyColumn] = (),
    options: TableOptions = PLAIN,
    salt: str = "",
) -> Iterator[pa.Table]:
    """Read a range on a connection that was prepared; see `read_range`."""
    names = [column.name for column in columns]
    query = sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT (FORMAT csv)").format(
        select_list(table, names, options, salt=salt),
        from_clause(connection, table),
        where(range_, key),
    )
    convert = csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    for block in _blocks(connection, query):
        try:
            yield csv.read_csv(
                pa.py_buffer(block),
                read_options=csv.ReadOptions(
                    column_names=names, block_size=len(block) + 1, use_threads=False
                ),
                parse_options=_PARSE,
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            raise SchemaViolation(f"{table}: rows that are not CSV in UTF-8: {error}") from error


def _blocks(connection: Connection, query: sql.Composed) -> Iterator[bytes]:
    rows: list[bytes | bytearray | memoryview] = []
    size = 0
    with connection.cursor().copy(query) as copy:
        for row in copy:
            rows.append(row)
            size += len(row)
            if size >= BLOCK_BYTES:
                yield b"".join(rows)
                rows, size = [], 0
    if rows:
        yield b"".join(rows)
