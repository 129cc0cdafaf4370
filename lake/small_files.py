"""Rows of small files, held between two reads: a file of a table never changes.

The tail of a table is some dozen files of few rows each, until a compaction makes one of them. To
open such a file costs more than a millisecond, whatever is in it, and every projection of a stream
reads the same ones in every run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from lake.datasets import dataset_at, location_of, scanner_of, schema_of

SMALL_BYTES = 256 * 2**10
"""A file of more is read each time: what is needed of it can be found by its own statistics."""
MOST_BYTES = 32 * 2**20
_Key = tuple[str, str, str]


class SmallFiles:
    """Holds rows of small files, up to a bound: those that were asked for last. For one thread."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: OrderedDict[_Key, pa.Table] = OrderedDict()
        self._bytes = 0

    def split(
        self, table: DeltaTable, actions: pa.Table, columns: Sequence[str]
    ) -> tuple[ds.Dataset, pa.Table]:
        """Return the larger files of `actions` as a dataset, and the rows of the small ones.

        These have the table's columns that are named, and are not filtered.
        """
        small = pc.less_equal(actions["size_bytes"], SMALL_BYTES)
        large = actions.filter(pc.invert(small))["path"].to_pylist()
        paths = actions.filter(small)["path"].to_pylist()
        stored = schema_of(table)
        shape = pa.schema([stored.field(name) for name in columns])
        parts = [self._rows(table, path, shape) for path in paths]
        return dataset_at(table, large), pa.concat_tables([shape.empty_table(), *parts])

    def _rows(self, table: DeltaTable, path: str, shape: pa.Schema) -> pa.Table:
        key = (location_of(table), path, shape.to_string())
        held = self._held.pop(key, None)
        if held is None:
            held = scanner_of(dataset_at(table, [path]), None, shape.names).to_table().cast(shape)
            self._bytes += held.nbytes
        self._held[key] = held
        while self._bytes > self._most_bytes and len(self._held) > 1:
            _, gone = self._held.popitem(last=False)
            self._bytes -= gone.nbytes
        return held
