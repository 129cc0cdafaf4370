"""PostgreSQL's own text to lake values, whole columns at a time.

    COPY … TO STDOUT (FORMAT csv) -> pa.Table of text -> text_to_lake -> pa.Table of lake values

The text is that of a session with `cdc.columns.TEXT_SETTINGS`. The connector's Avro gives the same
values for the same rows (`schemas.columns`); for arrays and all odd types it sends this same text.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import SchemaViolation
from schemas.pg_arrays import array_texts
from schemas.pg_decimals import decimals
from schemas.pg_doubles import geometry_text
from schemas.pg_exact import ExactReading, exact_column, with_exact
from schemas.pg_moments import date_of, micros_of
from schemas.pg_types import LOCAL_MICROS, UTC_MICROS, SourceColumn, item_type, lake_type

_DATE = r"^\d{4}-\d\d-\d\d$"
_MOMENT = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:\d\d)?)?$"
_GEOMETRIC = frozenset(("point", "line", "lseg", "box", "path", "polygon", "circle"))

Read = Callable[[pa.Array], ExactReading]


def text_to_lake(columns: Sequence[SourceColumn], texts: pa.Table) -> pa.Table:
    """Read a table of text columns; null is null. Columns come out in the order of `columns`.

    Both tables have the columns' lake names.
    Where a row has a value that its column's type cannot hold (`schemas.pg_exact`), a last column
    `_exact` keeps the text of such values. Raises `SchemaViolation` for text not of its type.
    """
    arrays: list[pa.ChunkedArray] = []
    lost: dict[str, tuple[pa.ChunkedArray, pa.ChunkedArray]] = {}
    for column in columns:
        source = texts.column(column.lake_name)
        readings = [read_column(column, chunk) for chunk in source.chunks]
        arrays.append(pa.chunked_array([r.values for r in readings], lake_type(column)))
        if any(r.lost is not None for r in readings):
            lost[column.lake_name] = (source, pa.chunked_array([r.lost_rows() for r in readings]))
    fields = [pa.field(column.lake_name, lake_type(column)) for column in columns]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
    return with_exact(table, exact_column(lost)) if lost else table


def read_column(column: SourceColumn, texts: pa.Array) -> ExactReading:
    """Read the text of one column. Raises `SchemaViolation`."""
    if texts.type != pa.string():
        texts = texts.cast(pa.string())
    try:
        if not column.is_array:
            return _reader(column)(texts)
        return _array(column, texts)
    except (pa.ArrowInvalid, ValueError) as error:
        raise SchemaViolation(f"column {column.name} of type {column.type}: {error}") from error


def _reader(column: SourceColumn) -> Read:
    kind = item_type(column)
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_decimal(kind):
        return _money if column.type == "money" else lambda texts: decimals(texts, kind)
    if pa.types.is_binary(kind):
        return lambda texts: ExactReading(_bytes(texts))
    if pa.types.is_date32(kind):
        return lambda texts: _saturating(texts, kind, _DATE, date_of)
    if kind in (LOCAL_MICROS, UTC_MICROS):
        return lambda texts: _saturating(texts, kind, _MOMENT, micros_of)
    if column.type in _GEOMETRIC:
        return _geometric
    return lambda texts: ExactReading(texts.cast(kind))


def _boolean(texts: pa.Array) -> ExactReading:
    true = pc.is_in(texts, pa.array(["t", "1"]))
    known = pc.is_in(texts, pa.array(["t", "f", "1", "0", None], pa.string()))
    if not pc.all(known).as_py() and len(texts):
        raise ValueError("neither t nor f")
    return ExactReading(pc.if_else(pc.is_valid(texts), true, None) if texts.null_count else true)


def _money(texts: pa.Array) -> ExactReading:
    # `$1,234.56`, `-$1,234.56`: only such locales are admitted (`schemas.pg_types.refusal`).
    plain = pc.replace_substring_regex(texts, r"[^0-9.-]", "")
    return ExactReading(plain.cast(pa.decimal128(19, 2)))


def _bytes(texts: pa.Array) -> pa.Array:
    digits = pa.concat_arrays([pc.utf8_slice_codeunits(texts, 2)])
    validity, offsets, data = digits.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(digits) + 1, [None, offsets])
    halves = pc.divide(ends, pa.scalar(2, pa.int32()))
    raw = pa.py_buffer(binascii.unhexlify(memoryview(data)[: ends[-1].as_py()] if data else b""))
    return pa.Array.from_buffers(
        pa.binary(), len(digits), [validity, halves.buffers()[1], raw], digits.null_count
    )


def _saturating(
    texts: pa.Array, kind: pa.DataType, ordinary: str, odd: Callable[[str], tuple[int, bool]]
) -> ExactReading:
    """Read dates or timestamps; what Arrow cannot read is read by `odd`: value, and whether kept"""
    try:
        return ExactReading(texts.cast(kind))
    except pa.ArrowInvalid:
        pass
    plain = pc.fill_null(pc.match_substring_regex(texts, ordinary), True)
    numbers = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    values = pc.if_else(plain, texts, None).cast(kind).cast(numbers)
    rest = [odd(text) for text in texts.filter(pc.invert(plain)).to_pylist()]
    mask = pc.invert(plain)
    values = pc.replace_with_mask(values, mask, pa.array([v for v, _ in rest], numbers))
    lost = pc.replace_with_mask(mask, mask, pa.array([not kept for _, kept in rest], pa.bool_()))
    return ExactReading(values.cast(kind), lost)


def _geometric(texts: pa.Array) -> ExactReading:
    return ExactReading(
        pa.array([None if t is None else geometry_text(t) for t in texts.to_pylist()], pa.string())
    )


def _array(column: SourceColumn, texts: pa.Array) -> ExactReading:
    lists, lost = array_texts(texts, column.dimensions, column.delimiter)
    leaves = lists
    while pa.types.is_list(leaves.type):
        leaves = leaves.values
    items = _reader(column)(leaves)
    if items.lost is not None:
        bad = _rows_of_leaves(lists, items.lost)
        lost = bad if lost is None else pc.or_(lost, bad)
    return ExactReading(_regrown(lists, items.values), lost)


def _regrown(lists: pa.Array, leaves: pa.Array) -> pa.Array:
    """Put other leaves under the same lists."""
    if not pa.types.is_list(lists.type):
        return leaves
    child = _regrown(lists.values, leaves)
    validity, offsets = lists.buffers()[:2]
    return pa.Array.from_buffers(
        pa.list_(child.type),
        len(lists),
        [validity, offsets],
        lists.null_count,
        lists.offset,
        [child],
    )


def _rows_of_leaves(lists: pa.Array, lost: pa.Array) -> pa.Array:
    """Return the rows in which a leaf is lost."""
    if not pa.types.is_list(lists.type):
        return lost
    inner = _rows_of_leaves(lists.values, lost).to_pylist()
    offsets = lists.offsets.to_pylist()
    return pa.array([any(inner[start:end]) for start, end in pairwise(offsets)], pa.bool_())
