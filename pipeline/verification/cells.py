"""The canonical text of `schemas.row_hash` as DuckDB expressions over normalised Arrow columns.

Arrow brings a column into a plain form without a copy where it can (dates and times as integers,
floats as their bits); DuckDB renders and hashes it. A type for which there is no expression is
rendered by `schemas.row_hash` itself, value by value: slower, never left out.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from schemas.arrow_kinds import is_bytes, is_text
from schemas.row_hash import canonical_texts

_QUIET_NAN = {pa.float32(): 0x7FC00000, pa.float64(): 0x7FF8000000000000}
_BITS = {pa.float32(): pa.uint32(), pa.float64(): pa.uint64()}


def normal(column: pa.Array, name: str) -> pa.Array:
    """Return a column as `text_sql` expects it; one of an odd type as its canonical texts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if not _is_known(kind):
        return pa.array(canonical_texts(column, name), pa.string())
    return _plain(column)


def text_sql(kind: pa.DataType, value: str) -> str:
    """Return DuckDB's expression for the canonical text of a normalised value of a lake type.

    Null where the value is null.
    """
    if not _is_known(kind):
        return value
    if _is_list(kind):
        items = f"list_transform({value}, lambda i: {sized(text_sql(kind.value_type, 'i'))})"
        return f"'[' || array_to_string({items}, ',') || ']'"
    if pa.types.is_boolean(kind):
        return f"CASE {value} WHEN true THEN 'true' WHEN false THEN 'false' END"
    if pa.types.is_float32(kind):
        return f"lpad(lower(hex({value})), 8, '0')"
    if pa.types.is_float64(kind):
        return f"lpad(lower(hex({value})), 16, '0')"
    if pa.types.is_decimal(kind) and kind.precision == kind.scale:
        # Without a digit before the point DuckDB prints none.
        return f"CAST({value} AS DECIMAL({kind.precision + 1}, {kind.scale}))::VARCHAR"
    if is_bytes(kind):
        return f"lower(hex({value}))"
    return value if is_text(kind) else f"{value}::VARCHAR"


def sized(text: str) -> str:
    """Return the cell of a text: its length and itself, or `N` for null."""
    return f"coalesce(length({text}) || ':' || {text}, 'N')"


def _is_known(kind: pa.DataType) -> bool:
    if _is_list(kind):
        # A list of lists has a text of its own, with the sizes of all depths.
        return _is_known(kind.value_type) and not _is_list(kind.value_type)
    if pa.types.is_decimal128(kind):
        return bool(kind.precision < 38 or kind.scale < kind.precision)
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_null(kind)
        or is_text(kind)
        or is_bytes(kind)
    )


def _plain(column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_list(kind):
        return _plain_list(column)
    if pa.types.is_date32(kind):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    if kind in _BITS:
        quiet = pa.scalar(_QUIET_NAN[kind], _BITS[kind])
        return pc.if_else(pc.is_nan(column), quiet, column.view(_BITS[kind]))
    if pa.types.is_null(kind):
        return column.cast(pa.int32())
    return column


def _plain_list(column: pa.Array) -> pa.Array:
    items = _plain(column.flatten())
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, items, mask=column.is_null())


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
