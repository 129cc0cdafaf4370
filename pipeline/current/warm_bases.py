"""Merges into bases whose rows stay in memory from one merge to the next.

deltalake's MERGE reads the base, joins it with the rows, and writes it again: about half a second
of a core per million rows. A base that is merged into all the time need not be read, nor joined by
anything dearer than a lookup of its key: rows whose key has a new image are left out, the new
images stand behind, and the whole is written in place of the file before, in somewhat more than
half of the time. It is compressed harder, too: each version stays on the disk for a while.

Of a small base hardly anything is left of deltalake's 14 ms then: 5 ms of a core.

What does not suit that (a large base, a key that is no number or text, new columns) is merged by
deltalake, and both leave the same rows.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, WriterProperties

from lake.datasets import dataset_of, in_columns
from lake.file_actions import size_of
from lake.writer import OP, UPSERT
from pipeline.ddl.unchanged_values import rows_without_keys

MOST_BYTES = 256 * 2**20
"""As many bytes of rows are kept in memory, of all bases together; a merge needs a copy of one."""
MOST_FILE_BYTES = 128 * 2**20
"""Bases of more bytes have files that a merge of few keys does not touch."""
_BATCH_ROWS = 16_384
_MOST_CHUNKS = 1024

WRITTEN_AS = WriterProperties(
    compression="ZSTD",
    compression_level=1,
    # Half of the time of writing goes into dictionaries that most columns give up later.
    default_column_properties=ColumnProperties(dictionary_enabled=False),
)


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    rows: pa.Table
    size: int
    epoch: int | None


class KeptBases:
    """The rows of the bases that were merged into last. Several threads may ask, one per base."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0
        self._too_large: set[str] = set()
        self._lock = threading.RLock()

    def merged(
        self, path: str, table: DeltaTable, rows: pa.Table, keys: Sequence[str]
    ) -> pa.Table | None:
        """Return all rows of the base after a merge of `rows` (one per key, with `__op`).

        None where the base is none of those that are merged in memory. Rows come in no order.
        """
        if not keys or rows.num_rows == 0 or not self._suits(path, table):
            self.forget(path)
            return None
        with self._lock:
            base = self._rows(path, table)
        if base is None:
            return None
        new = _like(base, rows.filter(pc.equal(rows[OP], UPSERT)).drop_columns([OP]))
        changed = rows.select(list(keys)).combine_chunks()
        if new is None or not all(
            _looked_up(base.schema.field(key).type, changed[key]) for key in keys
        ):
            return None
        return pa.concat_tables([_without(base, changed), new])

    def epoch_at(self, path: str, version: int) -> int | None:
        """Return the epoch whose merge made a version of a base; None where that is not known."""
        kept = self._kept.get(path)
        return kept.epoch if kept is not None and kept.version == version else None

    def bytes_at(self, path: str, version: int) -> int | None:
        """Return the bytes of the rows of a version of a base; None where they are not kept."""
        kept = self._kept.get(path)
        return kept.size if kept is not None and kept.version == version else None

    def keep(self, path: str, version: int, rows: pa.Table, *, epoch: int | None = None) -> None:
        """Remember the rows of a base as of a version, and forget those used longest ago.

        `epoch` is the one whose merge made that version.
        """
        with self._lock:
            self.forget(path)
            size = rows.nbytes
            if size > self._most_bytes:
                self._too_large.add(path)
            elif rows.column(0).num_chunks <= _MOST_CHUNKS:
                # Each merge adds a chunk. Read anew, a base has few again.
                self._make_room(size)
                self._kept[path] = _Kept(version, rows, size, epoch)
                self._size += size

    def forget(self, path: str) -> None:
        """Let go of a base's rows."""
        with self._lock:
            gone = self._kept.pop(path, None)
            self._size -= gone.size if gone is not None else 0

    def _make_room(self, size: int) -> None:
        while self._kept and self._size + size > self._most_bytes:
            self.forget(next(iter(self._kept)))

    def _suits(self, path: str, table: DeltaTable) -> bool:
        kept = self._kept.get(path)
        if kept is not None and kept.version == table.version():
            return True
        if path in self._too_large or table.metadata().partition_columns:
            return False
        return 0 < size_of(table)[1] <= MOST_FILE_BYTES

    def _rows(self, path: str, table: DeltaTable) -> pa.Table | None:
        kept = self._kept.get(path)
        if kept is not None and kept.version == table.version():
            self._kept.move_to_end(path)
            return kept.rows
        self.forget(path)
        dataset = dataset_of(table)
        # In small steps: what is small in a file may be large in memory.
        scanned = dataset.scanner(
            batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        batches, size = [], 0
        for batch in scanned.to_batches():
            size += batch.nbytes
            if size > self._most_bytes:
                self._too_large.add(path)
                return None
            self._make_room(size)
            batches.append(batch)
        return pa.Table.from_batches(batches, dataset.schema)


def _like(base: pa.Table, rows: pa.Table) -> pa.Table | None:
    """Return rows with the columns of a base, null where they lack one; None for other columns."""
    types = {field.name: field.type for field in base.schema}
    if any(types.get(field.name) != field.type for field in rows.schema):
        return None
    return in_columns(rows, base.schema)


def _without(base: pa.Table, changed: pa.Table) -> pa.Table:
    """Return the rows of a base whose key is not among the changed ones."""
    if changed.num_columns == 1:
        (key,) = changed.column_names
        found = pc.is_in(base[key], value_set=changed[key].combine_chunks())
        return base.filter(pc.invert(found))
    rest = rows_without_keys(base, changed)
    assert rest is not None, "there is a base"
    return rest


def _looked_up(kind: pa.DataType, keys: pa.ChunkedArray) -> bool:
    """Say whether keys are found by equality of their values alone: a null equals nothing."""
    plain: bool = pa.types.is_integer(kind) or pa.types.is_string(kind)
    return plain and keys.type == kind and not keys.null_count
