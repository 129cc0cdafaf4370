"""Whether a table's columns hold the values of rows as they are.

deltalake and Spark convert values to the stored type without a word: 1.75 becomes 1 in a column of
whole numbers. Whoever commits rows or files asks here before.

A value is held if a conversion keeps it, whatever its type: 5 is 5.00. NULL is held by every type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Incompatible
from schemas.widening import calls, common_type

R = TypeVar("R", pa.Table, pa.RecordBatch)
Leaf = Callable[[pa.DataType, pa.DataType], pa.DataType]

NAMES = pa.schema([("name", pa.string())])
"""What `Inexact` returns: names of columns."""
_INTEGER_DIGITS = 20
"""The digits of the greatest whole number that has 64 bits."""


def as_spelled(rows: R, names: Iterable[str]) -> R:
    """Give columns the letter case in which a table, or whoever asks, has them."""
    known = {name.lower(): name for name in names}
    return rows.rename_columns([known.get(name.lower(), name) for name in rows.schema.names])


def as_spelled_within(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Give the fields of objects in a column the letter case in which a type has them."""
    own = _spelled(column.type, kind)
    if own == column.type:
        return column
    # A cast goes by the names, and would take a field of another spelling for one that lacks.
    return pa.chunked_array([chunk.view(own) for chunk in column.chunks], own)


def _spelled(own: pa.DataType, kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        called = calls(kind)
        kinds = {item.name: item.type for item in kind}
        fields = [(called(item.name), item.type) for item in own]
        return pa.struct([(name, _spelled(part, kinds.get(name, part))) for name, part in fields])
    if pa.types.is_list(own) and pa.types.is_list(kind):
        return pa.list_(_spelled(own.value_type, kind.value_type))
    if pa.types.is_map(own) and pa.types.is_map(kind):
        return pa.map_(own.key_type, _spelled(own.item_type, kind.item_type))
    return own


def as_stored(stored: pa.Schema, rows: pa.Table, where: str) -> pa.Table:
    """Return rows whose values have the types of a table's columns.

    Raises `Incompatible` where a type would change values. Columns whose types the stored ones hold
    anyway are left as they are.
    """
    for name in in_question(stored, rows.schema):
        kind = stored.field(name).type
        if not _exact(rows[name], kind):
            raise refusal(stored, rows.schema, name, where)
        place = rows.schema.names.index(name)
        rows = rows.set_column(place, name, _converted(rows[name], kind))
    return rows


def refuse_other_types(stored: pa.Schema, files: pa.Schema, where: str) -> None:
    """Raise `Incompatible` where files have a column in another type than the table they join.

    Nothing converts what is written already: readers would fail, or read something else.
    """
    for name in of_other_types(stored, files):
        raise refusal(stored, files, name, where)


def in_question(stored: pa.Schema, rows: pa.Schema) -> list[str]:
    """Return the columns whose types alone do not say that the stored one holds every value."""
    return [
        item.name
        for item in rows
        if item.name in stored.names and not _holds(stored.field(item.name).type, item.type)
    ]


def of_other_types(stored: pa.Schema, rows: pa.Schema) -> list[str]:
    """Return the columns that a table has in another type."""
    return [
        item.name
        for item in rows
        if item.name in stored.names and not _same(stored.field(item.name).type, item.type)
    ]


def refusal(stored: pa.Schema, rows: pa.Schema, name: str, where: str) -> Incompatible:
    """Return the error of a column that cannot take the values of rows."""
    return Incompatible(
        f"column {name} of {where} is {stored.field(name).type}, which does not hold values of the "
        f"type {rows.field(name).type} as they are",
        remedy="Compute the table anew (of a projection: penstock replay apply, then "
        "swap), or convert the values to the stored type by CAST.",
    )


@dataclass(frozen=True, slots=True)
class Inexact:
    """Names the columns whose values stored types would change, for `mapInArrow`. Picklable."""

    stored: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return the names that each batch has."""
        for batch in batches:
            names = [*_changed(self.stored, pa.Table.from_batches([batch]))]
            yield pa.RecordBatch.from_arrays([pa.array(names, pa.string())], schema=NAMES)


def _changed(stored: pa.Schema, rows: pa.Table) -> Iterator[str]:
    for name in in_question(stored, rows.schema):
        if not _exact(rows[name], stored.field(name).type):
            yield name


def _exact(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Say whether values stay what they are as another type. Fields that it lacks are added."""
    own = values.type
    if _holds(kind, own) or values.null_count == len(values):
        return True
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        return all(
            _exact(pc.struct_field(values, [item.name]), kind.field(item.name).type)
            for item in own
            if kind.get_field_index(item.name) >= 0
        )
    if _is_list(own) and _is_list(kind):
        return _exact(pc.list_flatten(values), kind.value_type)
    if pa.types.is_map(own) and pa.types.is_map(kind):
        items = pa.chunked_array([chunk.items for chunk in values.chunks], own.item_type)
        return _exact(items, kind.item_type)
    if not converts(own, kind):
        return False
    try:
        cast = _converted(values, kind)
        # Casts round fractions, take '007' for 7 and 2 for true without a word: the way back tells.
        if pa.types.is_floating(own) or _is_text(own) or _loses_silently(kind):
            return _equal(cast.cast(own), values)
    except pa.ArrowInvalid:
        return False
    return True


def _loses_silently(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def converts(own: pa.DataType, kind: pa.DataType) -> bool:
    """Say whether some value other than NULL can become another type."""
    if _misses(own, kind):
        return False
    try:
        pa.array([], own).cast(_between(own, kind)).cast(kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True


def _misses(own: pa.DataType, kind: pa.DataType) -> bool:
    """Say whether a conversion loses the time of day, or counts moments.

    What a moment is as a number is microseconds to one engine and seconds to another.
    """
    if pa.types.is_timestamp(own) and pa.types.is_date(kind):
        return True
    return (_is_number(own) and pa.types.is_temporal(kind)) or (
        pa.types.is_temporal(own) and _is_number(kind)
    )


def _converted(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return values as another type. Fields that it lacks stay as they are."""
    own = values.type
    if values.null_count == len(values):
        return pa.chunked_array([pa.nulls(len(values), _replaced(own, kind, _last))])
    return values.cast(_replaced(own, kind, _between)).cast(_replaced(own, kind, _last))


def _between(own: pa.DataType, kind: pa.DataType) -> pa.DataType:
    """Return the type by way of which a cast asks what values are, and not what they may be."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(own):
        return pa.decimal256(_INTEGER_DIGITS + kind.scale, kind.scale)
    return own


def _last(_own: pa.DataType, kind: pa.DataType) -> pa.DataType:
    return kind


def _replaced(own: pa.DataType, kind: pa.DataType, leaf: Leaf) -> pa.DataType:
    """Return a type with what `leaf` gives in the place of everything that is not nested."""
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        kinds = {item.name: item.type for item in (*own, *kind)}
        return pa.struct(
            [(item.name, _replaced(item.type, kinds[item.name], leaf)) for item in own]
        )
    if _is_list(own) and _is_list(kind):
        return pa.list_(_replaced(own.value_type, kind.value_type, leaf))
    if pa.types.is_map(own) and pa.types.is_map(kind):
        return pa.map_(own.key_type, _replaced(own.item_type, kind.item_type, leaf))
    return leaf(own, kind)


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    same = pc.equal(one, other)
    if pa.types.is_floating(other.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return pc.all(same).as_py() is not False


def _holds(kind: pa.DataType, own: pa.DataType) -> bool:
    """Say whether a type holds every value of another one."""
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        shared = [item for item in own if kind.get_field_index(item.name) >= 0]
        return all(_holds(kind.field(item.name).type, item.type) for item in shared)
    if _is_list(own) and _is_list(kind):
        return _holds(kind.value_type, own.value_type)
    return _same(kind, own) or common_type(kind, own) == kind


def _same(kind: pa.DataType, own: pa.DataType) -> bool:
    """Say whether Parquet has both types alike, but for fields that one struct lacks."""
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        return all(
            kind.get_field_index(item.name) >= 0 and _same(kind.field(item.name).type, item.type)
            for item in own
        )
    if _is_list(own) and _is_list(kind):
        return _same(kind.value_type, own.value_type)
    if pa.types.is_map(own) and pa.types.is_map(kind):
        return _same(kind.item_type, own.item_type)
    return own == kind or (_is_text(own) and _is_text(kind)) or (_is_bytes(own) and _is_bytes(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_boolean(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())
