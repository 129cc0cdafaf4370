"""Typed rows that Spark's executors decode and write, and how they become part of their tables.

The driver makes a table fit for the columns that the files have, and commits all files of a table
at once, under its guard. Where rows of several types meet in a column it declines: then rows have
to be widened one after the other, which it does itself.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.positions import Epoch
from lake.adoption import append_files
from lake.attempt_files import remove_left, stem_of
from lake.attempts import Attempts
from lake.executor_tasks import Tasks, WrittenFile, handed_back
from lake.layout import Lake
from lake.staged_files import FilePlace, StagedFiles
from lake.tables import TableAt, Tables
from lake.writer import Guard
from pipeline.ddl.table_rewrites import Widen, fit
from pipeline.log.large_folds import LogRows
from pipeline.typed.columns import EPOCH

TypedRows = Callable[[pa.Table], Mapping[str, pa.Table] | None]
"""Makes typed rows of log rows, by the name of their table; None where that takes what other rows
say. Picklable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedTask:
    """Writes the typed rows of each part of the log. `done` says how far each table is already."""

    lake: Lake
    parts: Sequence[LogRows]
    typed: TypedRows
    done: Mapping[str, int]
    stem: str

    def __call__(self, number: int) -> Sequence[WrittenFile] | None:
        """Write the rows of one part."""
        typed = self.typed(self.parts[number].read())
        if typed is None:
            return None
        written: list[WrittenFile] = []
        for name, rows in typed.items():
            place = FilePlace(stem=f"{self.stem}{number}-{uuid.uuid4().hex[:8]}")
            files = StagedFiles(self.lake.path(name), place)
            files.write(rows.filter(pc.greater(rows[EPOCH], self.done.get(name, 0))))
            written += handed_back(files, name)
        return written


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedFiles:
    """Has executors write the typed rows of one epoch, and commits them table by table.

    Without `tasks` nobody does: everything is declined, and nothing is left behind.
    """

    lake: Lake
    tables: Tables
    tasks: Tasks | None
    epoch: Epoch

    def written(
        self, parts: Sequence[LogRows], typed: TypedRows, done: Mapping[str, int]
    ) -> dict[str, list[WrittenFile]] | None:
        """Return the files of each table, none of which is part of it yet; None where declined."""
        if self.tasks is None:
            return None
        stem = f"{stem_of(self.epoch)}{uuid.uuid4().hex[:8]}."
        task = TypedTask(lake=self.lake, parts=parts, typed=typed, done=done, stem=stem)
        found: dict[str, list[WrittenFile]] = {}
        files = self.tasks(task, len(parts))
        if files is None:
            return None
        for file in files:
            found.setdefault(file.name, []).append(file)
        failpoints.hit(failpoints.TYPED_AFTER_PART)
        return found

    def committed(
        self, name: str, files: Sequence[WrittenFile], widen: Widen, shape: pa.Schema | None = None
    ) -> TableAt | None:
        """Commit the files of a table; None where their columns have to be widened first.

        `shape` are the columns that the rows have together, in the order in which the driver would
        add them: that of the files without it.
        """
        path = self.lake.path(name)
        shapes = [file.schema for file in files]
        try:
            shape = pa.unify_schemas([*([] if shape is None else [shape]), *shapes])
        except pa.ArrowTypeError:
            return None
        self.tables.ensure(path, shape)
        if fit(self.tables, path, shape.empty_table(), widen).schema != shape:
            return None
        table = self.tables.open(path)
        assert table is not None, "it was made before"
        adds = [file.addition() for file in files]
        version = append_files(table, adds, None, Guard(name, self.epoch), shape)
        return TableAt(version=version, as_of_epoch=self.epoch)

    def tidy(self, name: str) -> None:
        """Remove what attempts at this epoch and earlier ones left; for when the table has it.

        What cannot be removed now is looked for again: the table itself is whole.
        """
        if self.tasks is not None:
            with Attempts().of(name):
                remove_left(self.lake, self.tables, name, self.epoch, earlier=True)
