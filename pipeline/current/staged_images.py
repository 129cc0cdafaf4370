"""The staged images of a large fold, and how the newest of them come into the table: in one commit.

Slices are numbered in the source's order; of a key's images the one of the last slice wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession, Window, functions

from kernel.positions import DeltaVersion, Epoch
from lake import storage
from lake.adoption import append_files, commit_staged
from lake.datasets import dataset_of, location_of
from lake.executor_tasks import WrittenFile
from lake.file_actions import size_of
from lake.file_batches import unpacked
from lake.layers import EPOCH, KEYS, keys_of, marked, newest_of
from lake.layout import Lake
from lake.spark_writer import SparkWriter
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from schemas.identifiers import spark_name

STAGING = "current/_staging/"
FEW_ROWS, FEW_BYTES = 150_000, 32 * 2**20
"""So many staged images the driver may take in, and so many bytes of them, unpacked."""


class StagedMerge(Protocol):
    """Brings staged images into a table in one commit."""

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        """Merge the newest staged image of each key; `replace`: they are the whole table."""
        ...


class ArrowStagedMerge:
    """Reads all of it here: for lakes without Spark."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._writer = ArrowWriter(tables)

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        """See `StagedMerge`."""
        rows = self._tables.read(staged)
        assert rows is not None, "it was just staged"
        newest, _ = newest_of(rows)
        if not replace:
            return self._writer.merge(path, newest, guard, keys=keys)
        kept = newest.filter(pc.equal(newest[OP], UPSERT)).drop_columns([OP])
        return self._writer.overwrite(path, kept, guard)


class SparkStagedMerge:
    """Finds the newest images and writes them on Spark's executors."""

    def __init__(self, spark: SparkSession, tables: Tables) -> None:
        self._spark = spark
        self._tables = tables
        self._writer = SparkWriter(spark, tables)

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        """See `StagedMerge`."""
        table = self._tables.open(staged)
        assert table is not None, "it was just staged"
        rows = self._spark.read.format("delta").load(location_of(table))
        of_key = Window.partitionBy(*(functions.col(spark_name(key)) for key in keys))
        number = functions.row_number().over(of_key.orderBy(functions.col(EPOCH).desc()))
        newest = rows.withColumn("__n", number).filter("__n = 1").drop("__n", EPOCH, KEYS)
        if not replace:
            return self._writer.merge(path, newest, guard, keys=keys)
        kept = newest.filter(functions.col(OP) == UPSERT).drop(OP)
        return self._writer.overwrite(path, kept, guard)


class ImageStaging:
    """The staged images of one fold, `current/_staging/<source>.<table>/<attempt>`.

    An attempt is called by its epoch. Making one removes what an earlier one of that name left.
    """

    def __init__(
        self, lake: Lake, tables: Tables, name: str, attempt: Epoch | str, folder: str = STAGING
    ) -> None:
        self._tables = tables
        self._slices = 0
        self.path = f"{lake.path(folder + name.removeprefix('current/'))}/{attempt}"
        self.remove()

    def adopt(self, files: Sequence[WrittenFile]) -> tuple[str, ...]:
        """Stage the files that executors wrote; return the key columns, none without a file."""
        if not files:
            return ()
        table = self._tables.ensure(self.path, files[0].schema)
        adds = [file.addition() for file in files]
        commit_staged(table, adds, [file.schema for file in files], "staging", 1)
        return keys_of(dataset_of(table).head(1, columns=[EPOCH, KEYS]))

    def few(self) -> pa.Table | None:
        """Return the newest staged image of each key; None where these are many."""
        table = self._tables.open(self.path)
        if table is None:
            return None
        if (
            size_of(table)[0] > FEW_ROWS
            or unpacked(dataset_of(table).get_fragments())[1] > FEW_BYTES
        ):
            return None
        found = self.newest(pc.scalar(True))
        return None if found is None else found[0]

    def add(self, newest: pa.Table, keys: Sequence[str]) -> None:
        """Stage the images of one slice more.

        Without a dictionary, as executors do: a wide value that repeats itself is stored as often
        as it takes memory, which `few` goes by.
        """
        self._slices += 1
        rows = marked(newest, keys, self._slices)
        table = self._tables.ensure(self.path, rows.schema)
        append_files(table, [], rows, Guard("staging", Epoch(self._slices)), rows.schema)

    def newest(self, where: pc.Expression) -> tuple[pa.Table, tuple[str, ...]] | None:
        """Return the newest staged images of some keys, with `__op`; None before the first."""
        rows = self._tables.read(self.path, where=where)
        return None if rows is None or rows.num_rows == 0 else newest_of(rows)

    def remove(self) -> None:
        """Delete what is staged."""
        self._tables.forget(self.path)
        storage.remove(self.path)
