"""Unchanged TOAST values: PostgreSQL does not send what an update left alone.

Such a cell arrives as null with its name in `__unchanged`. It takes the value of the key's last
known row: an earlier one in the same frame, else the stored one. An update of the key itself
comes as a delete of the old key directly followed by an insert of the new one; then the last known
row is the old key's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from schemas.pg_exact import EXACT, carried_exact

UNCHANGED = "__unchanged"
MARKED = "_deleted"
"""In stored rows of a table with soft deletes: the source has deleted the row."""

T = TypeVar("T")

Stored = Callable[[pa.Table], pa.Table | None]
"""Given a frame of keys, returns the stored rows of those keys (keys and all columns)."""


class _LeftAlone(Exception):
    """An update left a value alone."""


def unless_left_alone(work: Callable[[Stored], T]) -> T | None:
    """Return what some work makes of rows without a look at what is stored.

    None where it asks for that, because an update left a value alone.
    """
    try:
        return work(_ask_not)
    except _LeftAlone:
        return None


def _ask_not(wanted: pa.Table) -> pa.Table | None:
    raise _LeftAlone


def fill_unchanged(frame: pa.Table, keys: Sequence[str], stored: Stored) -> pa.Table:
    """Fill the cells that `__unchanged` names and drop that column.

    `frame` is in the source's order and has `__deleted`, true for a delete, which is dropped too.
    """
    deleted = frame["__deleted"].to_pylist()
    frame = frame.drop_columns(["__deleted"])
    if UNCHANGED not in frame.schema.names:
        return frame
    names = frame[UNCHANGED].to_pylist()
    frame = frame.drop_columns([UNCHANGED])
    columns = sorted({name for row in names if row for name in row})
    if not columns:
        return frame
    needy = [bool(row) for row in names]
    moved_from = [gone and after for gone, after in zip(deleted, [*needy[1:], False], strict=True)]
    wanted = [a or b for a, b in zip(needy, moved_from, strict=True)]
    known = stored(frame.filter(pa.array(wanted, pa.bool_())).select(list(keys)))
    last: dict[tuple[object, ...], dict[str, object]] = {}
    for row in known.to_pylist() if known is not None else []:
        if row.get(MARKED) and MARKED not in frame.schema.names:
            continue  # the source has it no more: its values are nobody's
        last[tuple(row[k] for k in keys)] = {c: row.get(c) for c in columns}
    filled: dict[str, list[object]] = {c: frame[c].to_pylist() for c in columns}
    places = list(zip(*(frame[k].to_pylist() for k in keys), strict=True))
    moved: dict[str, object] = {}
    for i, (key, missing) in enumerate(zip(places, names, strict=True)):
        if deleted[i]:
            # What comes under this key later is another row.
            moved = last.pop(key, {})
            continue
        if key not in last and missing and i > 0 and deleted[i - 1]:
            last[key] = moved
        before = last.get(key, {})
        for column in missing or ():
            earlier = before.get(column)
            if column == EXACT:
                earlier = carried_exact(filled[column][i], earlier, missing)
            filled[column][i] = earlier
        last[key] = {c: filled[c][i] for c in columns}
    for column in columns:
        field = frame.schema.field(column)
        place = frame.schema.get_field_index(column)
        frame = frame.set_column(place, field, pa.array(filled[column], field.type))
    return frame


def rows_of_keys(table: pa.Table | None, wanted: pa.Table) -> pa.Table | None:
    """Return the rows of `table` whose key is among `wanted`."""
    return _joined(table, wanted, "left semi")


def rows_without_keys(table: pa.Table | None, keys: pa.Table) -> pa.Table | None:
    """Return the rows of `table` whose key is not among `keys`."""
    return _joined(table, keys, "left anti")


def _joined(table: pa.Table | None, wanted: pa.Table, join_type: str) -> pa.Table | None:
    if table is None:
        return None
    keys = wanted.schema.names
    distinct = wanted.group_by(keys).aggregate([])
    casted = distinct.cast(pa.schema([table.schema.field(k) for k in keys]))
    # Of the keys alone: Arrow joins no tables that have lists.
    places = pa.array(np.arange(table.num_rows))
    numbered = table.select(keys).append_column("__row", places)
    found = numbered.join(casted, keys, join_type=join_type)["__row"]
    return table.take(found.combine_chunks().sort())


def any_of(table_keys: pa.Table) -> pc.Expression:
    """Return a filter that skips files without the first key column's values."""
    first = table_keys.schema.names[0]
    return pc.is_in(pc.field(first), pc.unique(table_keys[first]))
