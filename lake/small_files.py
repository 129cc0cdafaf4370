"""Rows of small files, held between two reads: a file of a table never changes.

The tail of a table is some dozen files of few rows each, until a compaction makes one of them. To
open such a file costs more than a millisecond, whatever is in it, and every projection of a stream
reads the same ones in every run: so a file is opened once, for all columns that anybody asked for.
Rows of many files lie in many pieces, each of which costs as much as thousands of rows: so those of
all small files are put together, once for each new file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from lake.datasets import dataset_at, location_of, scanner_of, schema_of
from lake.file_actions import actions_of

SMALL_BYTES = 256 * 2**10
"""A file of more is read each time: what is needed of it can be found by its own statistics."""
MOST_BYTES = 32 * 2**20
FEW_FILES = 4
"""Rows of so many files are taken by themselves."""
SINGLE_FILES = 64
"""So many files of a table are held by themselves, those that were asked for last: a file of one
row takes some hundred times what its values do, and whoever reads what is new asks for each once.
"""
_PIECES = 8


@dataclass(slots=True)
class _Held:
    """Rows of one table's small files: of single ones, and of all that it has `together`."""

    shape: pa.Schema
    files: dict[str, pa.Table] = field(default_factory=dict)
    paths: frozenset[str] = frozenset()
    together: pa.Table | None = None
    nbytes: int = 0
    """What the rows take, counted as they come and go: to ask them all takes milliseconds."""

    def keep(self, path: str, rows: pa.Table) -> None:
        """Hold the rows of a file that was asked for just now."""
        self.leave([path])
        self.files[path] = rows
        self.nbytes += rows.nbytes
        if len(self.files) > SINGLE_FILES:
            self.leave([next(iter(self.files))])

    def leave(self, paths: Iterable[str]) -> None:
        """Let go of the rows of single files."""
        gone = (self.files.pop(path, None) for path in paths)
        self.nbytes -= sum(rows.nbytes for rows in gone if rows is not None)

    def put_together(self, paths: frozenset[str], rows: pa.Table | None) -> None:
        """Hold the rows of all small files."""
        before = 0 if self.together is None else self.together.nbytes
        self.nbytes += (0 if rows is None else rows.nbytes) - before
        self.paths, self.together = paths, rows


class SmallFiles:
    """Holds rows of small files, up to a bound: of tables that were asked for last.

    For one thread.
    """

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[str, _Held] = OrderedDict()

    def split(
        self, table: DeltaTable, actions: pa.Table, columns: Sequence[str]
    ) -> tuple[ds.Dataset | None, pa.Table]:
        """Return the larger files of `actions` as a dataset, and the rows of the small ones.

        None where there are no larger ones. The rows have the table's columns that are named, and
        are not filtered; there may be such of other small files of the table.
        """
        small = pc.less_equal(actions["size_bytes"], SMALL_BYTES)
        large = actions.filter(pc.invert(small))["path"].to_pylist()
        paths = actions.filter(small)["path"].to_pylist()
        held = self._of(table, columns)
        rows = self._all_small(table, held) if len(paths) > FEW_FILES else None
        if rows is None:
            parts = [self._rows(table, path, held) for path in paths]
            rows = pa.concat_tables([held.shape.empty_table(), *parts])
        self._forget()
        return dataset_at(table, large) if large else None, rows.select(list(columns))

    def _of(self, table: DeltaTable, columns: Sequence[str]) -> _Held:
        """Return what is held of a table, with these columns under their types."""
        place, stored = location_of(table), schema_of(table)
        held = self._held.pop(place, None)
        before = held.shape.names if held is not None else []
        names = [name for name in before if name in stored.names]
        shape = pa.schema([stored.field(name) for name in dict.fromkeys([*names, *columns])])
        if held is None or not held.shape.equals(shape):
            held = _Held(shape)
        self._held[place] = held
        return held

    def _all_small(self, table: DeltaTable, held: _Held) -> pa.Table | None:
        """Return the rows of all small files of a table; None where they are too many to hold."""
        actions = actions_of(table)
        small = pc.less_equal(actions["size_bytes"], SMALL_BYTES)
        paths = frozenset(actions.filter(small)["path"].to_pylist())
        known, rows = held.paths, held.together
        if rows is None or not known <= paths:
            known, rows = frozenset[str](), held.shape.empty_table()
        new = sorted(paths - known)
        if new:
            rows = pa.concat_tables([rows, *(self._rows(table, path, held) for path in new)])
            if rows.num_columns and rows.column(0).num_chunks > _PIECES:
                rows = rows.combine_chunks()
            if rows.nbytes > self._most_bytes:
                held.put_together(frozenset(), None)
                return None
            # The newest are asked for by themselves, too.
            held.leave(held.files.keys() - {*new})
        if rows is not held.together:
            held.put_together(paths, rows)
        return rows

    def _rows(self, table: DeltaTable, path: str, held: _Held) -> pa.Table:
        rows = held.files.get(path)
        if rows is None:
            read = scanner_of(dataset_at(table, [path]), None, held.shape.names).to_table()
            rows = read.cast(held.shape)
        held.keep(path, rows)
        return rows

    def _forget(self) -> None:
        """Let go of tables that were asked for longest ago, and of one that is too large itself."""
        size = sum(held.nbytes for held in self._held.values())
        while self._held and size > self._most_bytes:
            _, gone = self._held.popitem(last=False)
            size -= gone.nbytes
