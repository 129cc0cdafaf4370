"""The `current` table of a captured one, made of its facts: the newest row of each key.

Facts are laid into files of the local disk by the hash of their key, in small steps; of one file
after the other the newest rows become a commit, guarded by the file's number. So memory holds a
part of the keys, however many facts there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from lake.datasets import dataset_of, schema_of
from lake.file_actions import size_of
from lake.file_batches import small_batches
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.current.key_files import KeyFiles, hashes_of
from pipeline.current.newest_images import DELETED
from pipeline.history.shape import NOT_COLUMNS
from pipeline.log.images import newest_per_key
from pipeline.typed.columns import OPERATION, SEQ_HI, SEQ_LO
from replay.derivations.derived_subject import DerivedSubject
from replay.derivations.row_columns import RowColumns
from schemas.records import Operation
from schemas.registry import SchemaLookup

FILE_BYTES = 64 * 2**20
"""Bytes of facts, as they are in memory, that are put in order at a time; the files on the way may
be more than twice as large."""
_MOST_FILES = 128
_UNPACKED = 6
"""Rows in memory take about so many times what they take in a file of the lake."""


class NewestRows:
    """Makes one `current` table at `path` of the facts that `lake` has of it."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        subject: DerivedSubject,
        path: str,
    ) -> None:
        self._lake = lake
        self._schemas = schemas
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._subject = subject
        self._path = path

    def make(self) -> None:
        """Append what is not there yet."""
        facts = self._tables.open(self._lake.path(self._subject.typed))
        assert facts is not None, "its facts were brought before"
        _, size = size_of(facts)
        count = int(min(_MOST_FILES, max(1, _UNPACKED * size // FILE_BYTES)))
        names = [n for n in dataset_of(facts).schema.names if n not in NOT_COLUMNS]
        with (
            tempfile.TemporaryDirectory(prefix="penstock-newest-") as scratch,
            KeyFiles(Path(scratch) / "facts", count) as files,
        ):
            for rows in small_batches(dataset_of(facts)):
                files.add(rows, hashes_of(rows.select(list(self._subject.identity))))
            columns, cleared = self._columns(), self._cleared()
            newest = partial(self._newest_of, files, schema_of(facts), columns, cleared)
            ended = _ended(names, columns, map(newest, range(count)))
            given = [n for n in names if n not in ended]
            given += [DELETED] if self._subject.soft else []
            for number in range(count):
                guard = Guard(f"{self._subject.name}/files", Epoch(number + 1))
                self._writer.append(self._path, newest(number).select(given), guard)

    def _newest_of(
        self,
        files: KeyFiles,
        shape: pa.Schema,
        columns: RowColumns,
        cleared: tuple[int, int] | None,
        number: int,
    ) -> pa.Table:
        """Return the rows that the keys of one file have."""
        found = self._newest(files.read(number) or shape.empty_table(), cleared)
        for default in columns.defaults:
            found = default.filled(found)
        return found

    def _newest(self, rows: pa.Table, cleared: tuple[int, int] | None) -> pa.Table:
        """Return the row that each key has: none, or marked, where it is gone."""
        keys = self._subject.identity
        ordered = rows.sort_by([(SEQ_HI, "ascending"), (SEQ_LO, "ascending")])
        if not self._subject.soft:
            newest = newest_per_key(ordered, keys)
            return newest.filter(pc.invert(_gone(newest, cleared)))
        last = newest_per_key(ordered, keys)
        ended = last.filter(_gone(last, cleared)).select(list(keys))
        images = ordered.filter(pc.not_equal(ordered[OPERATION], Operation.DELETE.value))
        kept = newest_per_key(images, keys)
        numbered = ended.append_column(DELETED, pa.array(np.ones(ended.num_rows, bool)))
        marks = kept.select(list(keys)).append_column("__n", pa.array(np.arange(kept.num_rows)))
        marked = marks.join(numbered, list(keys)).sort_by("__n")
        return kept.append_column(DELETED, pc.fill_null(marked[DELETED], False))

    def _columns(self) -> RowColumns:
        source, table = self._subject.source, self._subject.table
        assert source is not None, "it is captured"
        done = Manifest(self._lake, self._tables).at(self._subject.up_to)
        return RowColumns.of(self._lake, self._tables, self._schemas, source, table, done=done)

    def _cleared(self) -> tuple[int, int] | None:
        """Return the place of the last TRUNCATE of the table; None without one."""
        name = self._subject.needed[-1]
        where = pc.field("table") == self._subject.table
        rows = self._tables.read(self._lake.path(name), where=where, columns=[SEQ_HI, SEQ_LO])
        found = [] if rows is None else rows.to_pylist()
        return max(((row[SEQ_HI], row[SEQ_LO]) for row in found), default=None)


def _gone(newest: pa.Table, cleared: tuple[int, int] | None) -> pa.ChunkedArray:
    gone = pc.equal(newest[OPERATION], Operation.DELETE.value)
    if cleared is None:
        return gone
    high, low = newest[SEQ_HI], newest[SEQ_LO]
    later = pc.and_(pc.equal(high, cleared[0]), pc.greater(low, cleared[1]))
    return pc.or_(gone, pc.invert(pc.or_(pc.greater(high, cleared[0]), later)))


def _ended(names: Sequence[str], columns: RowColumns, rows: Iterable[pa.Table]) -> set[str]:
    """Return the columns that ended before the table was copied: no row has a value there."""
    ended = set() if columns.copied is None else {*names} - columns.copied
    if not ended:
        return ended
    for part in rows:
        ended -= {name for name in ended if part[name].null_count < part.num_rows}
    return ended
