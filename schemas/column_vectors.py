"""Rows of many records as Arrow columns at once: the quick way of `columns.decode_rows`.

It answers only where it gives exactly what the way row by row gives, and None otherwise: where a
value was left alone by an UPDATE, lies beyond what its column holds, or has a type that
`avro_vectors` does not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from schemas import debezium
from schemas.avro_vectors import Path, read_columns
from schemas.column_types import ColumnType
from schemas.pg_moments import DATE_MAX, DATE_MIN, MICROS_MAX, MICROS_MIN
from schemas.pg_types import DECIMAL_DIGITS

FEW = 8
"""Below so many records the way row by row is as quick."""

_LONGEST_TEXT = DECIMAL_DIGITS + len("-.")
_MARK_BYTES = debezium.PLACEHOLDER.encode()


def columns_of(
    framed: pa.Array,
    schema_json: str,
    part: str,
    fields: Sequence[str],
    types: Sequence[ColumnType],
) -> tuple[list[pa.Array], pa.Array] | None:
    """Return a record's (`self`) or an image's columns, in order, and whether each row is there."""
    if len(framed) < FEW:
        return None
    prefix: Path = (part,) if part in ("before", "after") else ()
    wanted: list[Path] = [(*prefix, name) for name in fields]
    found = read_columns(framed, schema_json, [*wanted, prefix] if prefix else wanted)
    if found is None:
        return None
    columns: list[pa.Array] = []
    for path, kind in zip(wanted, types, strict=True):
        column = _typed(found[path], kind)
        if column is None:
            return None
        columns.append(column)
    present = found[prefix].fill_null(False) if prefix else pa.array([True] * len(framed))
    return columns, present


def _typed(raw: pa.Array, kind: ColumnType) -> pa.Array | None:
    """Bring a column as Avro has it to its type; None where a value needs a closer look."""
    if _marked(raw):
        return None
    if kind.source is not None:
        reading = kind.read(raw)
        return reading.values if reading.lost is None else None
    try:
        column = _cast(raw, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, ArithmeticError):
        return None
    if column.null_count != raw.null_count or _at_a_bound(column):
        return None
    return column


def _cast(raw: pa.Array, kind: ColumnType) -> pa.Array:
    plain = kind.convert is None and kind.build is None
    arrow_reads = pa.types.is_decimal(kind.arrow) or pa.types.is_timestamp(kind.arrow)
    text = pa.types.is_string(raw.type) and arrow_reads
    if plain or (text and not _is_long(raw)):
        return raw.cast(kind.arrow)
    return kind.array(raw.to_pylist())


def _is_long(texts: pa.Array) -> bool:
    """Say whether a text is longer than any decimal or moment of the lake.

    The connector writes a numeric(5, -2) with 2046 zeros behind its point, and Arrow's cast makes a
    decimal zero of that without a word.
    """
    return bool((pc.max(pc.binary_length(texts)).as_py() or 0) > _LONGEST_TEXT)


def _marked(raw: pa.Array) -> bool:
    if pa.types.is_string(raw.type):
        return bool(pc.any(pc.equal(raw, debezium.PLACEHOLDER)).as_py())
    if pa.types.is_binary(raw.type):
        return bool(pc.any(pc.equal(raw, _MARK_BYTES)).as_py())
    return False


def _at_a_bound(column: pa.Array) -> bool:
    """Say whether a moment is the first or last of the lake's: it may stand for another one."""
    if pa.types.is_date32(column.type):
        numbers, bounds = column.cast(pa.int32()), (DATE_MIN, DATE_MAX)
    elif pa.types.is_timestamp(column.type):
        numbers, bounds = column.cast(pa.int64()), (MICROS_MIN, MICROS_MAX)
    else:
        return False
    seen = pc.min_max(numbers)
    low, high = seen["min"].as_py(), seen["max"].as_py()
    return low is not None and (low <= bounds[0] or high >= bounds[1])
