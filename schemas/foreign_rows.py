"""Rows of Avro that others wrote: moments in nanoseconds, and values that no column holds.

A row of a captured table keeps such a value's text beside it (`schemas.pg_exact`). A record of
others is refused: what it says would be lost, and the nearest value that a column holds is another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from schemas.columns import PRESENT, decode_rows, event_shape
from schemas.field_names import parsed
from schemas.json_values import misfit

MOMENT = pa.timestamp("us", tz="UTC")

Said = Callable[[str], bool]
"""Says something of a field, by its name in the schema."""


def foreign_rows(
    framed: Sequence[bytes | None], schema: str, *, is_time: Said, is_read: Said
) -> pa.Table:
    """Decode framed records of one schema, as `decode_rows` does.

    The event time (`is_time`) is null where it is none that the lake holds. Raises
    `SchemaViolation` for another such value in a column that `is_read`.
    """
    fields = event_shape(schema).fields
    rows = decode_rows(list(framed), schema, "topic")
    if rows.schema.names[-1] != PRESENT:
        rows = _without_lost(rows, fields, is_time, is_read)
    for place, field in enumerate(fields):
        if is_time(field) and _counts_nanoseconds(schema, field):
            rows = rows.set_column(place, rows.schema.names[place], _moments(rows.column(place)))
    return rows


def _without_lost(rows: pa.Table, fields: Sequence[str], is_time: Said, is_read: Said) -> pa.Table:
    texts = rows.column(rows.num_columns - 1).to_pylist()
    found = [{} if text is None else json.loads(text) for text in texts]
    for place, field in enumerate(fields):
        name = rows.schema.names[place]
        said = [each.get(name) for each in found]
        lost = [text is not None for text in said]
        if not any(lost):
            continue
        if is_read(field) and not is_time(field):
            first = next(text for text in said if text is not None)
            raise misfit(f"no column of the lake holds {first}", f".{field}")
        kept = pc.if_else(pa.array(lost), pa.scalar(None, rows.column(place).type), rows[place])
        rows = rows.set_column(place, name, kept)
    return rows


def _counts_nanoseconds(schema: str, field: str) -> bool:
    found = next(each["type"] for each in parsed(schema)["fields"] if each["name"] == field)
    branches = found if isinstance(found, list) else [found]
    return any(
        isinstance(each, dict) and str(each.get("logicalType")).endswith("timestamp-nanos")
        for each in branches
    )


def _moments(nanoseconds: pa.ChunkedArray) -> pa.Array:
    # A long of any other kind is one of milliseconds. All that 64 bits say are of our years.
    micros = [None if value is None else value // 1000 for value in nanoseconds.to_pylist()]
    return pa.array(micros, pa.int64()).cast(MOMENT)
