"""What changed in a table between two of its versions, row by row.

Delta's log says which files a version has that the other has not: these alone are read and compared
by key. Rows that were rewritten as they were are no changes, so a merge, a compaction, a swap of
generations and a rollback are all told by what they did to rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.datasets import dataset_at, paths_of
from projections.serve.keyed_rows import bounded, named, visible
from projections.serve.row_values import Document, at_once, documents, shown

_OLD, _NEW = "_old_row", "_new_row"
_BATCH_ROWS = 500

ReadRows = Callable[[pa.Table], list[Document]]
"""Makes Python's values of rows: those of JSON (`documents`), or of another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One row before and after: `old` None for a new one, `new` None for one that is gone."""

    key: Document
    old: Document | None
    new: Document | None

    @property
    def operation(self) -> Literal["insert", "update", "delete"]:
        """What happened to the row."""
        if self.old is None:
            return "insert"
        return "delete" if self.new is None else "update"


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True, eq=False)
class VersionDifference:
    """All changes from one version to another, in the order of keys.

    `rows_before` and `rows_after` hold the rows; `pairs` has a row's number in each, or null.
    """

    key: tuple[str, ...]
    rows_before: pa.Table
    rows_after: pa.Table
    pairs: pa.Table

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return int(self.rows_before.nbytes + self.rows_after.nbytes + self.pairs.nbytes)

    def __len__(self) -> int:
        return int(self.pairs.num_rows)

    def after(self, done: int, read: ReadRows = documents) -> Iterator[list[RowChange]]:
        """Yield the changes behind the first `done`, some hundreds at a time, large ones fewer."""
        together = min(at_once(self.rows_before), at_once(self.rows_after))
        for start in range(done, len(self), together):
            yield self._changes(self.pairs.slice(start, together), read)

    def _changes(self, pairs: pa.Table, read: ReadRows) -> list[RowChange]:
        before = iter(read(self.rows_before.take(pairs[_OLD].drop_null())))
        after = iter(read(self.rows_after.take(pairs[_NEW].drop_null())))
        found = []
        for old_row, new_row in zip(pairs[_OLD].to_pylist(), pairs[_NEW].to_pylist(), strict=True):
            old = None if old_row is None else next(before)
            new = None if new_row is None else next(after)
            found.append(change_of(self.key, old, new))
        return found


def change_of(key: Sequence[str], old: Document | None, new: Document | None) -> RowChange:
    """Return a change with its key, which one of the two rows has."""
    shown = new if new is not None else old or {}
    return RowChange(key={name: shown[name] for name in key}, old=old, new=new)


def all_new(
    table: DeltaTable, key: Sequence[str], done: int, read: ReadRows = documents
) -> Iterator[list[RowChange]]:
    """Yield all rows of a version behind the first `done` as new ones, file by file."""
    schema = visible(table)
    names = named(schema, key)
    for path in sorted(paths_of(table)):
        rows = dataset_at(table, [path]).scanner(columns=schema.names, batch_size=_BATCH_ROWS)
        for batch in rows.to_reader():
            skipped = min(done, batch.num_rows)
            done -= skipped
            together = at_once(batch)
            for start in range(skipped, batch.num_rows, together):
                some = read(pa.table(batch.slice(start, together)))
                yield [change_of(names, None, row) for row in some]


def difference(
    before: DeltaTable, after: DeltaTable, key: Sequence[str], most_bytes: int
) -> VersionDifference | None:
    """Compare two versions; None where that takes more memory than allowed, or has no key in
    common, or one that several rows have: whoever follows must read the rows anew.
    """
    schemas = visible(before), visible(after)
    names = named(schemas[1], key)
    if any(name not in schema.names for schema in schemas for name in names):
        return None
    files = paths_of(before), paths_of(after)
    gone, came = sorted(files[0] - files[1]), sorted(files[1] - files[0])
    old = bounded(dataset_at(before, gone), schemas[0], most_bytes)
    if old is None:
        return None
    new = bounded(dataset_at(after, came), schemas[1], most_bytes - old.nbytes)
    if new is None:
        return None
    try:
        pairs = _pairs(old, new, names)
    except pa.ArrowException:
        return None  # A key's column has another type that its values do not go into.
    if any(_repeats(pairs[side]) for side in (_OLD, _NEW)):
        return None  # One of both tables has a longer key.
    changed = pc.or_(
        pc.or_(pc.is_null(pairs[_OLD]), pc.is_null(pairs[_NEW])), _unlike(old, new, pairs)
    )
    return VersionDifference(
        key=names, rows_before=old, rows_after=new, pairs=pairs.filter(changed)
    )


def _pairs(old: pa.Table, new: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Match rows by key: their numbers, null where the other has none, in the order of keys."""
    names = [f"k{number}" for number in range(len(key))]
    after = new.select(list(key)).rename_columns(names)
    before = old.select(list(key)).rename_columns(names).cast(after.schema)
    joined = before.append_column(_OLD, _numbers(old)).join(
        after.append_column(_NEW, _numbers(new)), keys=names, join_type="full outer"
    )
    order = pc.sort_indices(joined, sort_keys=[(name, "ascending") for name in names])
    return joined.select([_OLD, _NEW]).take(order)


def _repeats(numbers: pa.ChunkedArray) -> bool:
    rows = numbers.drop_null()
    return len(rows) > int(pc.count_distinct(rows).as_py())


def _numbers(rows: pa.Table) -> pa.Array:
    return pa.array(range(rows.num_rows), pa.int64())


def _unlike(old: pa.Table, new: pa.Table, pairs: pa.Table) -> pa.ChunkedArray | pa.Scalar:
    """Say of each pair of rows whether any column differs; where one is missing it is null."""
    if not old.schema.equals(new.schema):
        return pa.chunked_array([pa.array([True] * pairs.num_rows, pa.bool_())])
    unlike = pa.chunked_array([pa.array([False] * pairs.num_rows, pa.bool_())])
    for name in new.schema.names:
        before, after = old[name].take(pairs[_OLD]), new[name].take(pairs[_NEW])
        unlike = pc.or_(unlike, _differs(before, after))
    return unlike


def _differs(before: pa.ChunkedArray, after: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_nested(before.type):
        pairs = zip(shown(before), shown(after), strict=True)
        return pa.chunked_array([pa.array([a != b for a, b in pairs], pa.bool_())])
    one_null = pc.xor(pc.is_null(before), pc.is_null(after))
    other = pc.fill_null(pc.not_equal(before, after), False)
    if pa.types.is_floating(before.type):
        both_nan = pc.fill_null(pc.and_(pc.is_nan(before), pc.is_nan(after)), False)
        # Of the two zeros, which are equal, the inverses are not.
        one = pa.scalar(1, before.type)
        inverse = pc.not_equal(pc.divide(one, before), pc.divide(one, after))
        other = pc.and_not(pc.or_(other, pc.fill_null(inverse, False)), both_nan)
    return pc.or_(one_null, other)
