"""A table's hash that PostgreSQL and Arrow compute alike, whatever the order of its rows.

The canonical text of a row, columns in the given order, joined by `,`:

    N               null
    LENGTH:TEXT     LENGTH in characters, TEXT by type:
      boolean       true or false
      integer       decimal digits
      float         big-endian IEEE bytes in hexadecimal, NaN as the quiet one
      decimal       all digits of its scale, no exponent
      text          itself
      bytes         hexadecimal
      date          days since 1970-01-01, within the lake's years 1 to 9999
      timestamp     microseconds since 1970-01-01 (UTC), within the same years
      list          [ + its items, each as above, joined by `,` + ]
      list of lists its sizes by depth joined by `x`, then all items as in a list: `2x2[1:1,…]`;
                    the empty one is `[]`
      struct        ( + its fields in order, each as above, joined by `,` + )
      map           { + its entries, each as a struct of key and value, in the order of these
                    texts, joined by `,` + }

A row's hash is md5 of that text. The table's hash is the number of rows and, as two 64-bit numbers
in hexadecimal, the sums modulo 2^64 of the two halves of all row hashes: adding and taking away
rows needs no sorting, and hashes of ranges add up.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import ContractViolation

NULL = "N"
_MASK = (1 << 64) - 1
_HALVES = struct.Struct(">QQ")
_BATCH_ROWS = 20_000

TableHash = tuple[int, str]
"""Number of rows, and 32 hexadecimal digits."""


def table_hash(table: pa.Table, columns: Sequence[str] | None = None) -> TableHash:
    """Hash a table's rows over `columns` (default: all, sorted by name).

    Raises `ContractViolation` for a column of a type that has no canonical text (durations).
    """
    names = sorted(table.column_names) if columns is None else list(columns)
    high = low = 0
    for batch in table.select(names).to_batches(max_chunksize=_BATCH_ROWS):
        cells = [_cells(batch.column(name), name) for name in names]
        for row in zip(*cells, strict=True):
            digest = hashlib.md5(",".join(row).encode(), usedforsecurity=False).digest()
            first, second = _HALVES.unpack(digest)
            high += first
            low += second
    return table.num_rows, hash_text(high, low)


def hash_text(high: int, low: int) -> str:
    """Render the sums of the two halves of all row hashes, modulo 2^64, as 32 digits."""
    return f"{high & _MASK:016x}{low & _MASK:016x}"


def canonical_texts(column: pa.Array, name: str) -> list[str | None]:
    """Return each value's canonical text, without its length; None for null.

    Raises `ContractViolation` for a type that has none.
    """
    prepared, text = _reader(column, name)
    return [None if value is None else text(value) for value in prepared.to_pylist()]


def _cells(column: pa.Array, name: str) -> Iterator[str]:
    prepared, text = _reader(column, name)
    return (_cell_of(value, text) for value in prepared.to_pylist())


def _cell(text: str) -> str:
    return f"{len(text)}:{text}"


def _reader(column: pa.Array, name: str) -> tuple[pa.Array, Callable[[Any], str]]:
    """Return the column in a form that Python reads fast, and its text function."""
    kind = column.type
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()), str
    if pa.types.is_timestamp(kind):
        return pc.cast(column, pa.timestamp("us", kind.tz)).cast(pa.int64()), str
    return column, _text_of(kind, name)


def _text_of(kind: pa.DataType, name: str) -> Callable[[Any], str]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _list_text(kind.value_type, name)
    if pa.types.is_struct(kind):
        return _struct_text([(field.name, _text_of(field.type, name)) for field in kind])
    if pa.types.is_map(kind):
        return _map_text(_text_of(kind.key_type, name), _text_of(kind.item_type, name))
    scalar: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], str]], ...] = (
        (pa.types.is_boolean, lambda value: "true" if value else "false"),
        (pa.types.is_integer, str),
        (pa.types.is_float32, _float4),
        (pa.types.is_floating, _float8),
        (pa.types.is_decimal, lambda value: format(value, "f")),
        (pa.types.is_string, str),
        (pa.types.is_large_string, str),
        (pa.types.is_string_view, str),
        (pa.types.is_binary, bytes.hex),
        (pa.types.is_large_binary, bytes.hex),
        (pa.types.is_binary_view, bytes.hex),
        (pa.types.is_null, str),
        (pa.types.is_date32, _days),
        (pa.types.is_timestamp, _micros),
    )
    for applies, text in scalar:
        if applies(kind):
            return text
    raise ContractViolation(
        f"column {name} of type {kind} has no canonical text",
        remedy="Leave the column out of the comparison.",
    )


def _struct_text(fields: Sequence[tuple[str, Callable[[Any], str]]]) -> Callable[[Any], str]:
    def of(value: dict[str, Any]) -> str:
        return f"({','.join(_cell_of(value[name], text) for name, text in fields)})"

    return of


def _map_text(key: Callable[[Any], str], item: Callable[[Any], str]) -> Callable[[Any], str]:
    def of(entries: list[tuple[Any, Any]]) -> str:
        pairs = sorted(f"({_cell_of(k, key)},{_cell_of(v, item)})" for k, v in entries)
        return f"{{{','.join(pairs)}}}"

    return of


def _cell_of(value: Any, text: Callable[[Any], str]) -> str:
    return NULL if value is None else _cell(text(value))


def _list_text(items: pa.DataType, name: str) -> Callable[[Any], str]:
    depth = 1
    while pa.types.is_list(items) or pa.types.is_large_list(items):
        items, depth = items.value_type, depth + 1
    text = _text_of(items, name)

    def of(values: list[Any]) -> str:
        array = _flattened(values, depth)
        if array is None:
            return f"~{_nested(values, depth, text)}"
        sizes, leaves = array
        inner = (_cell_of(value, text) for value in leaves)
        return f"{'x'.join(map(str, sizes)) if depth > 1 else ''}[{','.join(inner)}]"

    return of


def _flattened(values: list[Any], depth: int) -> tuple[list[int], list[Any]] | None:
    """Return sizes and items of an array; no sizes when it is empty, as PostgreSQL has it.

    None for what no array of PostgreSQL is: lists of unequal lengths, empty or null ones in others.
    """
    sizes = [len(values)]
    if not values:
        return [], []
    for _ in range(depth - 1):
        if None in values or len({len(inner) for inner in values}) > 1 or not values[0]:
            return None
        sizes.append(len(values[0]))
        values = [item for inner in values for item in inner]
    return sizes, values


def _nested(values: list[Any], depth: int, text: Callable[[Any], str]) -> str:
    """Return lists of lists as what they are: each a cell of the one around it."""
    inner = text if depth == 1 else lambda each: _nested(each, depth - 1, text)
    return f"[{','.join(_cell_of(value, inner) for value in values)}]"


def _float4(value: float) -> str:
    return "7fc00000" if math.isnan(value) else struct.pack(">f", value).hex()


def _float8(value: float) -> str:
    return "7ff8000000000000" if math.isnan(value) else struct.pack(">d", value).hex()


def _days(value: Any) -> str:
    return str(pa.scalar(value, pa.date32()).cast(pa.int32()).as_py())


def _micros(value: Any) -> str:
    kind = pa.timestamp("us", "UTC") if value.tzinfo is not None else pa.timestamp("us")
    return str(pa.scalar(value, kind).cast(pa.int64()).as_py())
