"""Work that Spark's executors do on the parts of a step, and the files that they hand back.

A task writes Parquet files below a table's root and returns their paths, sizes and statistics. The
driver makes them part of the table with one guarded commit. What was not committed is garbage.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import pyarrow as pa
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kernel.errors import PenstockError
from lake.collecting import NAMES_OF_FILES, collected
from lake.staged_files import StagedFiles, as_addition

log = logging.getLogger("penstock.tables")

WRITTEN = pa.schema(
    [
        ("name", pa.string()),
        ("value", pa.string()),
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("statistics", pa.string()),
        ("columns", pa.binary()),
    ]
)
"""One file as it is handed back: the fields of `WrittenFile`."""

_TOLD = pa.schema(
    [*WRITTEN, ("number", pa.int64()), ("declined", pa.bool_()), ("error", pa.binary())]
)
"""What a task hands back: files, that it declined, or the error that it failed with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file that a task wrote; `path` is relative to the root of the table `name`.

    `value` is that of the table's partition column, where it has one. `columns` is the Arrow
    schema of the file, serialized.
    """

    name: str
    value: str | None
    path: str
    size: int
    rows: int
    statistics: str
    columns: bytes

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        """Return the file that a row with the columns of `WRITTEN` names."""
        return cls(**{name: row[name] for name in WRITTEN.names})

    def row(self) -> dict[str, object]:
        """Return the file as a row of `WRITTEN`."""
        return {name: getattr(self, name) for name in WRITTEN.names}

    def addition(self, column: str | None = None) -> AddAction:
        """Return the file as an addition to its table, which `column` partitions."""
        values = {} if column is None or self.value is None else {column: self.value}
        return as_addition(self.path, self.size, values, self.statistics)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of the file."""
        return pa.ipc.read_schema(pa.py_buffer(self.columns))


def handed_back(files: StagedFiles, name: str, value: str | None = None) -> list[WrittenFile]:
    """End the files that a task wrote and return them as they are handed back."""
    return [
        WrittenFile(
            name=name,
            value=value,
            path=add.path,
            size=add.size,
            rows=rows,
            statistics=add.stats,
            columns=schema.serialize().to_pybytes(),
        )
        for add, schema, rows in zip(files.close(), files.schemas, files.counts, strict=True)
    ]


Task = Callable[[int], Sequence[WrittenFile] | None]
"""Writes the files of one part of a step, by its number; None where that takes what other rows say.
Picklable."""


class Tasks(Protocol):
    """Has a task done for each of some parts, in any order, some at the same moment."""

    def __call__(self, task: Task, parts: int) -> list[WrittenFile] | None:
        """Return the files of all parts, in the order of the parts.

        None where a task declined a part or failed with an error that is none of ours. The first
        error of ours is raised. In both cases no file counts.
        """
        ...


class TasksHere:
    """Does all parts in the calling thread, one after the other, as executors would."""

    def __call__(self, task: Task, parts: int) -> list[WrittenFile] | None:
        """See `Tasks`."""
        sent = pickle.loads(pickle.dumps(task))
        return heard(pa.Table.from_batches([handed_of(sent, n) for n in range(parts)], _TOLD))


class SparkTasks:
    """Has each part done by a task of Spark's executors."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, task: Task, parts: int) -> list[WrittenFile] | None:
        """See `Tasks`. Raises `TooLarge` when the names of the files are too many."""
        if parts == 0:
            return []
        numbers = self._spark.range(0, parts, 1, parts)
        handed = numbers.mapInArrow(_Numbered(task), from_arrow_schema(_TOLD))
        return heard(collected(handed, NAMES_OF_FILES).cast(_TOLD))


def all_at_once(most: int) -> int:
    """Let the driver take as many rows at once as it can."""
    return most


@dataclass(frozen=True, slots=True, kw_only=True)
class Executors:
    """Which work is large, and who does it. As it is made by default nobody but the driver works.

    `rows_at_once` returns how many rows the driver may take at once, where it could take the given
    number.
    """

    tasks: Tasks | None = None
    rows_at_once: Callable[[int], int] = all_at_once


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The function that `mapInArrow` runs: it takes numbers of parts."""

    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield handed_of(self.task, number)


def handed_of(task: Task, number: int) -> pa.RecordBatch:
    """Do one part, and write what came of it."""

    def files() -> list[dict[str, object]] | None:
        made = task(number)
        return None if made is None else [file.row() for file in made]

    return pa.RecordBatch.from_pylist(told(number, files), schema=_TOLD)


def told(
    number: int, make: Callable[[], list[dict[str, object]] | None]
) -> list[dict[str, object]]:
    """Return rows as a task hands them back, numbered. An error is a row.

    Spark would hand on an error's text alone, and try again. One that is none of ours makes the
    task decline: the driver then finds out whose it is.
    """
    try:
        made = make()
    except PenstockError as error:
        return [{"number": number, "error": pickle.dumps(error)}]
    except Exception as error:
        log.warning("part %s is left to the driver: %s", number, error, exc_info=error)
        made = None
    if made is None:
        return [{"number": number, "declined": True}]
    return [{**row, "number": number} for row in made]


def declined(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Say whether a task declined, by the rows that all handed back. Raises the first error."""
    for row in rows:
        if row["error"] is not None:
            error = pickle.loads(row["error"])
            assert isinstance(error, PenstockError), "nothing else is told"
            raise error
    return any(row["declined"] for row in rows)


def heard(handed: pa.Table) -> list[WrittenFile] | None:
    """Return the files of all parts, as `Tasks` does, of what these handed back."""
    rows = sorted(handed.to_pylist(), key=lambda row: row["number"])
    return None if declined(rows) else [WrittenFile.of(row) for row in rows]
