"""Which changes of a column's type in PostgreSQL leave every value what it was.

Only those are followed by themselves; after any other one the table is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from schemas.pg_types import DECIMAL_DIGITS, SourceColumn, decimal_of, lake_type, scale_of

_INTEGERS = {"int2": 5, "int4": 10, "int8": 19}
"""Types and the digits that their values have at most."""
_ARROW_INTEGERS = (pa.int16(), pa.int32(), pa.int64())
_INTEGER_DIGITS = (*_INTEGERS.values(),)
_TEXTS = frozenset(("text", "varchar", "name"))
_TIMES = frozenset(("time", "timetz", "timestamp", "timestamptz"))


def followed_type(old: SourceColumn, new: SourceColumn) -> pa.DataType | None:
    """Return the lake's type that holds the values of both; None when values may have changed.

    The source itself refuses a narrower type that a value does not fit, so that a narrower integer
    keeps the wider one of the lake.
    """
    if (old.is_array, old.dimensions) != (new.is_array, new.dimensions):
        return None
    item = _item(
        replace(old, is_array=False, dimensions=0), replace(new, is_array=False, dimensions=0)
    )
    for _ in range(old.dimensions if item is not None else 0):
        item = pa.list_(item)
    return item


def common_type(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both exactly; None where there is none."""
    if old == new:
        return old
    if pa.types.is_null(old) or pa.types.is_null(new):
        return new if pa.types.is_null(old) else old
    if old in _ARROW_INTEGERS and new in _ARROW_INTEGERS:
        return max(old, new, key=_ARROW_INTEGERS.index)
    if {old, new} == {pa.float32(), pa.float64()}:
        return pa.float64()
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        scale = max(old.scale, new.scale)
        digits = max(old.precision - old.scale, new.precision - new.scale) + scale
        return pa.decimal128(digits, scale) if digits <= DECIMAL_DIGITS else None
    if pa.types.is_list(old) and pa.types.is_list(new):
        item = common_type(old.value_type, new.value_type)
        return None if item is None else pa.list_(item)
    return None


def wider_type(stored: pa.DataType, kind: pa.DataType) -> pa.DataType | None:
    """Return the type that holds what the lake has of a column, and what the source made of it.

    Older values may be wider than the source's own were when DDL made them `kind`. None where no
    type holds both.
    """
    if pa.types.is_list(stored) and pa.types.is_list(kind):
        item = wider_type(stored.value_type, kind.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_integer(stored) and pa.types.is_string(kind):
        return kind
    if stored in _ARROW_INTEGERS and pa.types.is_decimal(kind):
        digits = _INTEGER_DIGITS[_ARROW_INTEGERS.index(stored)]
        stored = pa.decimal128(digits, 0)
    return common_type(stored, kind)


def event_type(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type as which an event's field is read that was `old` and is `new`; None: neither.

    As Avro reads it: a whole number among fractions becomes a double, a text among bytes its bytes,
    an object has the fields of both. What `common_type` gives is given here, too.
    """
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _merged(old, new)
    if pa.types.is_list(old) and pa.types.is_list(new):
        item = event_type(old.value_type, new.value_type)
        return None if item is None else pa.list_(item)
    if pa.types.is_map(old) and pa.types.is_map(new):
        item = event_type(old.item_type, new.item_type)
        return None if item is None else pa.map_(pa.string(), item)
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (old, new)):
        return common_type(old, new) or pa.float64()
    if {old, new} == {pa.string(), pa.binary()}:
        return pa.binary()
    return common_type(old, new)


def _merged(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Put the fields of two objects together. Engines read names without letter case."""
    kinds: dict[str, pa.DataType] = {item.name: item.type for item in old}
    called = calls(old)
    for item in new:
        name = called(item.name)
        kind = event_type(kinds.get(name, item.type), item.type)
        if kind is None:
            return None
        kinds[name] = kind
    return pa.struct(list(kinds.items()))


def calls(record: pa.DataType) -> Callable[[str], str]:
    """Return what says how an object's type spells a field: the name itself where it has none."""
    names = [item.name for item in record]
    spelled = {name.lower(): name for name in reversed(names)} | {name: name for name in names}
    return lambda name: spelled.get(name, spelled.get(name.lower(), name))


def _item(old: SourceColumn, new: SourceColumn) -> pa.DataType | None:
    if (old.type, old.kind, old.modifier) == (new.type, new.kind, new.modifier):
        return lake_type(new)
    if old.type in _INTEGERS and new.type in _INTEGERS:
        return common_type(lake_type(old), lake_type(new))
    if new.type == "numeric" and old.type in _INTEGERS:
        return _integer_to_numeric(old, new)
    if old.type == new.type == "numeric":
        return _numeric(old, new)
    if (old.type, new.type) == ("float4", "float8"):
        return pa.float64()
    if (old.type in _TEXTS or old.kind == "e") and new.type in ("text", "varchar"):
        return pa.string() if _longer(old, new) else None
    if old.type == new.type and old.type in _TIMES:
        return lake_type(new) if new.modifier == -1 or 0 <= old.modifier <= new.modifier else None
    return None


def _integer_to_numeric(old: SourceColumn, new: SourceColumn) -> pa.DataType | None:
    decimal = decimal_of(new.modifier)
    if decimal is None:
        return pa.string() if new.modifier == -1 else None
    if scale_of(new.modifier) < 0:
        return None
    precision, scale = decimal
    return lake_type(new) if precision - scale >= _INTEGERS[old.type] else None


def _numeric(old: SourceColumn, new: SourceColumn) -> pa.DataType | None:
    before, after = decimal_of(old.modifier), decimal_of(new.modifier)
    if before is None or after is None or scale_of(new.modifier) < scale_of(old.modifier):
        return None
    return common_type(pa.decimal128(*before), pa.decimal128(*after))


def _longer(old: SourceColumn, new: SourceColumn) -> bool:
    if new.modifier == -1:
        return True
    return old.type == "varchar" and 0 <= old.modifier <= new.modifier
