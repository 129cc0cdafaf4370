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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.key_places import with_one_zero
from schemas.pg_exact import EXACT, carried_exact

UNCHANGED = "__unchanged"
MARKED = "_deleted"
"""In stored rows of a table with soft deletes: the source has deleted the row."""

T = TypeVar("T")

Mask = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]

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
    gone = frame["__deleted"].to_numpy()
    frame = frame.drop_columns(["__deleted"])
    if UNCHANGED not in frame.schema.names:
        return frame
    left = frame[UNCHANGED].combine_chunks()
    frame = frame.drop_columns([UNCHANGED])
    cells = {name: _rows_that_leave(left, name) for name in _named(left)}
    if not cells:
        return frame
    needy = np.logical_or.reduce([*cells.values()])
    moved_from = gone & np.append(needy[1:], False)
    wanted = frame.filter(pa.array(needy | moved_from)).select(list(keys))
    known = _living(stored(wanted), frame)
    before = _rows_before(frame, known, keys, gone)
    first = 0 if known is None else known.num_rows
    for column, rows in sorted(cells.items()):
        field, place = frame.schema.field(column), frame.schema.get_field_index(column)
        old = _stored_column(known, field)
        values = pa.chunked_array([*old, *frame[column].chunks], field.type)
        own = first + np.flatnonzero(rows & ~gone)
        if column == EXACT:
            filled = _carried(values, before, own, first, left)
        else:
            filled = values.take(_sources(before, own, first))
        frame = frame.set_column(place, field, filled)
    return frame


def _named(left: pa.Array) -> list[str]:
    names: list[str] = pc.unique(pc.list_flatten(left)).to_pylist()
    return names


def _rows_that_leave(left: pa.Array, column: str) -> Mask:
    """Say of each row whether it leaves the value of a column alone."""
    named = pc.equal(pc.list_flatten(left), column)
    found = np.zeros(len(left), bool)
    found[pc.list_parent_indices(left).filter(named).to_numpy()] = True
    return found


def _living(known: pa.Table | None, frame: pa.Table) -> pa.Table | None:
    """Return the stored rows that the source still has: values of others are nobody's."""
    if known is None or MARKED not in known.schema.names or MARKED in frame.schema.names:
        return known
    return known.filter(pc.invert(pc.fill_null(known[MARKED], False)))


def _rows_before(
    frame: pa.Table, known: pa.Table | None, keys: Sequence[str], gone: Mask
) -> Places:
    """Return, of each row of `known` and then of `frame`, the row that an update of it found.

    That is the one of its key right before it. Where there is none, the row comes right behind the
    delete of another key, and it is the one which that delete found. The number of rows stands for
    none; whoever looks it up finds itself.
    """
    of_keys = frame.select(list(keys))
    if known is not None:
        both = [known.select(list(keys)), of_keys]
        of_keys = pa.concat_tables(both, promote_options="permissive")
    count = of_keys.num_rows
    deleted = np.append(np.zeros(count - len(gone), bool), gone)
    numbers = _numbered(of_keys)
    order = np.argsort(numbers, kind="stable")
    same = numbers[order[1:]] == numbers[order[:-1]]
    before = np.full(count + 1, count)
    before[order[1:][same]] = order[:-1][same]
    before[:count][np.append(deleted, False)[before[:count]]] = count
    moved = 1 + np.flatnonzero(deleted[:-1] & (before[1:count] == count) & ~deleted[1:])
    before[moved] = before[moved - 1]
    return before


def _numbered(keys: pa.Table) -> Places:
    """Return a number per row, the same for rows of the same key."""
    numbers = np.zeros(keys.num_rows, np.int64)
    for column in with_one_zero(keys).columns:
        codes = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode").indices
        own = codes.to_numpy().astype(np.int64)
        _, numbers = np.unique(numbers * (own.max(initial=0) + 1) + own, return_inverse=True)
    return numbers


def _sources(before: Places, needy: Places, first: int) -> pa.Array:
    """Return, of each row of the frame, the row that has its value; null where none has.

    `needy` rows have that of the row before them, which may be needy as well: the way to each
    value is halved until all are there.
    """
    link = np.arange(len(before))
    link[needy] = before[needy]
    while not np.array_equal(further := link[link], link):
        link = further
    found = link[first:-1]
    return pa.array(found, mask=found == len(before) - 1)


def _carried(
    values: pa.ChunkedArray, before: Places, needy: Places, first: int, left: pa.Array
) -> pa.Array:
    """Return `_exact` of the frame's rows: one row has texts of its own and of the row before."""
    texts = [*values.to_pylist(), None]
    for row in needy.tolist():
        names = left[row - first].as_py()
        texts[row] = carried_exact(texts[row], texts[before[row]], names)
    return pa.array(texts[first:-1], values.type)


def _stored_column(known: pa.Table | None, field: pa.Field) -> list[pa.Array]:
    """Return the stored values of a column; nulls where it is not stored."""
    if known is None:
        return []
    if field.name not in known.schema.names:
        return [pa.nulls(known.num_rows, field.type)]
    chunks: list[pa.Array] = known[field.name].cast(field.type).chunks
    return chunks


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
