"""Rows of small files, held between two reads: a file of a table never changes.

The tail of a table is some dozen files of few rows each, until a compaction makes one of them. To
open such a file costs more than a millisecond, whatever is in it, and every projection of a stream
reads the same ones in every run: so a file is opened once, for all columns that anybody asked for.
Rows of many files lie in many pieces, each of which costs as much as thousands of rows: so those of
all small files are put together, once for each new file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
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
_PIECES = 8


@dataclass(slots=True)
class _Held:
    """Rows of one table's small files: of single ones, and of all that it has `together`."""

    shape: pa.Schema
    files: dict[str, pa.Table] = field(default_factory=dict)
    paths: frozenset[str] = frozenset()
    together: pa.Table | None = None

    @property
    def nbytes(self) -> int:
        whole = 0 if self.together is None else self.together.nbytes
        return int(whole + sum(rows.nbytes for rows in self.files.values()))


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
        if held.together is None or not held.paths <= paths:
            held.paths, held.together = frozenset(), held.shape.empty_table()
        new = sorted(paths - held.paths)
        if new:
            parts = [self._rows(table, path, held) for path in new]
            rows = pa.concat_tables([held.together, *parts])
            if rows.num_columns and rows.column(0).num_chunks > _PIECES:
                rows = rows.combine_chunks()
            if rows.nbytes > self._most_bytes:
                held.paths, held.together = frozenset(), None
                return None
            # The newest are asked for by themselves, too.
            held.files = {path: held.files[path] for path in new}
            held.paths, held.together = paths, rows
        return held.together

    def _rows(self, table: DeltaTable, path: str, held: _Held) -> pa.Table:
        if path not in held.files:
            read = scanner_of(dataset_at(table, [path]), None, held.shape.names).to_table()
            held.files[path] = read.cast(held.shape)
        return held.files[path]

    def _forget(self) -> None:
        """Let go of tables that were asked for longest ago, and of one that is too large itself."""
        size = sum(held.nbytes for held in self._held.values())
        while self._held and size > self._most_bytes:
            _, gone = self._held.popitem(last=False)
            size -= gone.nbytes
