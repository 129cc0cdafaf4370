"""A table of the source as PostgreSQL prints it, column by column."""

from __future__ import annotations

import io

import pyarrow as pa
from pyarrow import csv

from cdc.columns import columns_of, set_text_output
from cdc.database import Connection


def copied(connection: Connection, table: str) -> pa.Table:
    """Read a table as text, as snapshots do."""
    set_text_output(connection)
    body = io.BytesIO()
    names = [column.name for column in columns_of(connection, table)]
    with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT csv)".encode()) as copy:
        for block in copy:
            body.write(block)
    if not body.getvalue():
        return pa.table({name: pa.array([], pa.string()) for name in names})
    return csv.read_csv(
        pa.py_buffer(body.getvalue()),
        read_options=csv.ReadOptions(column_names=names),
        parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
