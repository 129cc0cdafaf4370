"""PostgreSQL's own text to lake values, whole columns at a time.

    COPY … TO STDOUT (FORMAT csv) -> pa.Table of text -> text_to_lake -> pa.Table of lake values

The text is that of a session with `cdc.columns.TEXT_SETTINGS`. Values are exactly those that the
connector's Avro gives for the same rows (`schemas.columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import SchemaViolation
from schemas.pg_types import SourceColumn, lake_type


def text_to_lake(columns: Sequence[SourceColumn], texts: pa.Table) -> pa.Table:
    """Read a table of text columns; None is null. Columns come out in the order of `columns`.

    Raises `SchemaViolation` for text that is not of its type.
    """
    arrays = [column_to_lake(column, texts.column(column.name)) for column in columns]
    fields = [pa.field(column.name, lake_type(column)) for column in columns]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def column_to_lake(column: SourceColumn, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Read one column of text. Raises `SchemaViolation`."""
    kind = lake_type(column)
    try:
        if pa.types.is_boolean(kind):
            return pc.if_else(pc.is_null(texts), None, pc.is_in(texts, pa.array(["t", "1"])))
        if pa.types.is_decimal(kind) and column.type == "money":
            return _money(texts, kind)
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise SchemaViolation(f"column {column.name} of type {column.type}: {error}") from error


def _money(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    plain = [
        None if text is None else Decimal(text.replace("$", "").replace(",", ""))
        for text in texts.to_pylist()
    ]
    return pa.chunked_array([pa.array(plain, kind)])
