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
from cdc.database import Connection, split_table
from cdc.masking import hand_salt, select_list
from cdc.options import PLAIN, TableOptions
from cdc.ranges import where
from cdc.row_policies import heed_policies
from cdc.snapshot.chunks import from_clause
from cdc.snapshot.slot import adopt
from kernel.errors import Conflict, SchemaViolation
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


def prepare(connection: Connection, snapshot: str) -> None:
    """Make a connection ready to read in an exported snapshot, in one transaction."""
    set_up(connection)
    adopt(connection, snapshot)


def set_up(connection: Connection) -> None:
    """Set up a session for reading: what follows is `adopt`, `read`, and a ROLLBACK per chunk."""
    set_text_output(connection)
    connection.execute("SET client_encoding = 'UTF8'")


def read(
    connection: Connection,
    table: str,
    columns: Sequence[SourceColumn],
    range_: KeyRange = WHOLE,
    *,
    key: Sequence[KeyColumn] = (),
    options: TableOptions = PLAIN,
    salt: str = "",
    condition: sql.Composed | None = None,
) -> Iterator[pa.Table]:
    """Read the rows of a range of keys in the transaction of a connection that adopted a snapshot.

    `condition` is the range in SQL where it is not one of `schemas.key_ranges` (a chunk's). Yields
    tables of at most about `BLOCK_BYTES`, all columns text under their lake names, null where the
    row has null; in no order.

    Raises `Conflict` for a table that was rewritten since: an old snapshot sees nothing in it.
    `SchemaViolation` for bytes that are no UTF-8 (a database in SQL_ASCII).
    """
    _refuse_rewritten(connection, table)
    heed_policies(connection, table)
    hand_salt(connection, options, salt)
    names = [column.name for column in columns]
    called = [column.lake_name for column in columns]
    # Arrow drops U+FEFF from the beginning of what it parses, which each block is to it: quoted,
    # a first value that begins so stays whole. Nulls are not quoted.
    query = sql.SQL(
        "COPY (SELECT {} FROM {} WHERE {}) TO STDOUT (FORMAT csv, FORCE_QUOTE ({}))"
    ).format(
        select_list(table, names, options),
        from_clause(connection, table),
        where(range_, key) if condition is None else condition,
        sql.Identifier(names[0]),
    )
    convert = csv.ConvertOptions(
        column_types={name: pa.string() for name in called},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    for block in _blocks(connection, query):
        try:
            yield csv.read_csv(
                pa.py_buffer(block),
                read_options=csv.ReadOptions(
                    column_names=called, block_size=len(block) + 1, use_threads=False
                ),
                parse_options=_PARSE,
                convert_options=convert,
            )
        except pa.ArrowInvalid as error:
            raise SchemaViolation(f"{table}: rows that are not CSV in UTF-8: {error}") from error


def _refuse_rewritten(connection: Connection, table: str) -> None:
    # TRUNCATE and most ALTER TABLE put new files in place of those that the snapshot is about.
    # The lock keeps them out from here on; the catalog's row is of the snapshot, the function's
    # answer of now.
    name = sql.Identifier(*split_table(table))
    connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(name))
    row = connection.execute(
        """
        SELECT coalesce(bool_or(c.relfilenode <> pg_relation_filenode(c.oid)), false) AS rewritten
          FROM pg_class c
         WHERE c.relkind = 'r' AND (c.oid = %(table)s::regclass
            OR c.oid IN (SELECT relid FROM pg_partition_tree(%(table)s::regclass)))
        """,
        {"table": name.as_string(connection)},
    ).fetchone()
    if row is None or row["rewritten"]:
        raise Conflict(
            f"{table} was rewritten (TRUNCATE, ALTER TABLE, VACUUM FULL) while it was copied",
            remedy="Nothing: it is copied again, as it is now.",
        )


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
