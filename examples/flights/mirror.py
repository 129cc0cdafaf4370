"""The rows of a source table and of its mirror in the lake, compared one by one.

Beside the comparison by row hash that users have, and independent of it: the source is read as
text by COPY, the mirror as a Delta table, and DuckDB compares them.
"""

from __future__ import annotations

import io

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from examples.flights import source_database
from examples.flights.comparison import TableComparison, compare
from examples.flights.tables import rows_of
from kernel.errors import Unavailable
from lake.layout import Lake

KEYS = {
    "airlines": ("carrier",),
    "airports": ("faa",),
    "planes": ("tailnum",),
    "weather": ("origin", "time_hour"),
}


def mirrored(dsn: str, lake: Lake, table: str) -> TableComparison:
    """Compare a table of the source database with its `current` table."""
    current = rows_of(lake, f"current/{source_database.NAME}.public.{table}")
    columns = source_database.TABLES[table]
    source = _source_rows(dsn, table, columns, current.schema)
    return compare(table, source, current, key=KEYS[table])


def _source_rows(dsn: str, table: str, columns: tuple[str, ...], schema: pa.Schema) -> pa.Table:
    query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT (FORMAT csv, HEADER true)").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(table)
    )
    content = io.BytesIO()
    try:
        with (
            psycopg.connect(dsn, connect_timeout=10, options="-c timezone=UTC") as connection,
            connection.cursor() as cursor,
            cursor.copy(query) as copy,
        ):
            for block in copy:
                content.write(block)
    except psycopg.Error as error:
        raise Unavailable(f"{table} cannot be read: {error}") from error
    content.seek(0)
    known = {name: schema.field(name).type for name in columns if name in schema.names}
    options = csv.ConvertOptions(
        column_types=known, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return csv.read_csv(content, convert_options=options)
