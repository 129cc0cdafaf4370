"""Rows of many records as Arrow columns at once: the quick way of `columns.decode_rows`.

It answers only where it gives exactly what the way row by row gives, and None otherwise: where a
value lies beyond what its column holds, or has a type that `avro_vectors` does not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas import debezium
from schemas.avro_vectors import Path, read_columns
from schemas.column_types import ColumnType
from schemas.pg_decimals import has_long
from schemas.pg_moments import DATE_MAX, DATE_MIN, MICROS_MAX, MICROS_MIN

FEW = 8
"""Below so many records the way row by row is as quick."""

_MARK_BYTES = debezium.PLACEHOLDER.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """A record's or an image's columns, in order, and whether each row is there.

    `left` names, per row, the columns that carry the mark of a value that an UPDATE left alone:
    they are null there. None where no row has one.
    """

    columns: Sequence[pa.Array]
    present: pa.Array
    left: pa.Array | None


def columns_of(
    framed: pa.Array,
    schema_json: str,
    part: str,
    fields: Mapping[str, str],
    types: Sequence[ColumnType],
) -> Vectors | None:
    """Return a record (`self`) or an image as columns; `fields` says what each is called."""
    if len(framed) < FEW:
        return None
    prefix: Path = (part,) if part in ("before", "after") else ()
    wanted: list[Path] = [(*prefix, name) for name in fields]
    found = read_columns(framed, schema_json, [*wanted, prefix] if prefix else wanted)
    if found is None:
        return None
    columns: list[pa.Array] = []
    marks: dict[str, pa.Array] = {}
    for path, name, kind in zip(wanted, fields.values(), types, strict=True):
        raw, marked = found[path], _marked(found[path]) if prefix else None
        if marked is not None:
            if kind.source is not None and kind.source.is_array:
                return None  # Its text in `_exact` is left alone as well.
            marks[name] = marked
            raw = pc.if_else(marked, pa.scalar(None, raw.type), raw)
        column = _typed(raw, kind)
        if column is None:
            return None
        columns.append(column)
    present = found[prefix].fill_null(False) if prefix else pa.array([True] * len(framed))
    return Vectors(columns=columns, present=present, left=_names(marks, len(framed)))


def _names(marks: Mapping[str, pa.Array], rows: int) -> pa.Array | None:
    """Return the names of the marked columns of each row, in order; null where there are none."""
    if not marks:
        return None
    places = [np.flatnonzero(mask.to_numpy(zero_copy_only=False)) for mask in marks.values()]
    names = np.repeat(np.arange(len(marks)), [len(each) for each in places])
    order = np.argsort(np.concatenate(places), kind="stable")
    counts = np.bincount(np.concatenate(places), minlength=rows)
    ends = np.concatenate([[0], np.cumsum(counts)])
    return pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array([*marks], pa.string()).take(pa.array(names[order])),
        mask=pa.array(counts == 0),
    )


def _typed(raw: pa.Array, kind: ColumnType) -> pa.Array | None:
    """Bring a column as Avro has it to its type; None where a value needs a closer look."""
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
    if plain or (text and not has_long(raw)):
        return raw.cast(kind.arrow)
    return kind.array(raw.to_pylist())


def _marked(raw: pa.Array) -> pa.Array | None:
    """Say of each row whether its value is the mark; None where no value is."""
    if pa.types.is_string(raw.type):
        found = pc.equal(raw, debezium.PLACEHOLDER)
    elif pa.types.is_binary(raw.type):
        found = pc.equal(raw, _MARK_BYTES)
    else:
        return None
    return found.fill_null(False) if pc.any(found).as_py() else None


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
