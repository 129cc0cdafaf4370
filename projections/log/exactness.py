"""Whether a table's columns hold the values of rows as they are.

deltalake and Spark convert values to the stored type without a word: 1.75 becomes 1 in a column of
whole numbers. Whoever commits rows or files asks here before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Incompatible
from schemas.widening import common_type

NAMES = pa.schema([("name", pa.string())])
"""What `Inexact` returns: names of columns."""


def refuse_inexact(stored: pa.Schema, rows: pa.Table, where: str) -> None:
    """Raise `Incompatible` where a stored column's type would change values of the rows."""
    for name in _changed(stored, rows):
        raise refusal(stored, rows.schema, name, where)


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
    if _holds(kind, own):
        return True
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        return all(
            _exact(pc.struct_field(values, [item.name]), kind.field(item.name).type)
            for item in own
            if kind.get_field_index(item.name) >= 0
        )
    if _is_list(own) and _is_list(kind):
        return _exact(pc.list_flatten(values), kind.value_type)
    if pa.types.is_timestamp(own) and pa.types.is_date(kind):
        return False
    try:
        cast = values.cast(kind)
        # A cast rounds to the next float without a word, and takes '007' for 7: the way back tells.
        if pa.types.is_floating(kind) or _is_text(own):
            return _equal(cast.cast(own), values)
    except pa.ArrowInvalid:
        return False
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        # Not a conversion that could lose something silently: whoever writes refuses it.
        return True
    return True


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


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())
