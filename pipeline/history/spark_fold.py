"""Folds that Spark's executors compute."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kernel.errors import NotFound
from lake.datasets import schema_of
from lake.layout import Lake
from lake.ranges import Range
from lake.tables import Tables
from lake.views import DeltaFrames, with_nulls
from pipeline.history.dialects import SPARK
from pipeline.history.fold import HistoryFold
from pipeline.history.shape import history_column

BOUNDED_BYTES = 32 * 2**20
"""Files up to this size give changes of a history that are committed from this process."""


class SparkFold:
    """Computes folds of any size. For one thread: its views have fixed names."""

    def __init__(
        self, spark: SparkSession, lake: Lake, tables: Tables, *, bounded_bytes: int
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._tables = tables
        self._frames = DeltaFrames(spark, tables)
        self._bounded_bytes = bounded_bytes

    def changes(self, fold: HistoryFold) -> DataFrame:
        """Return versions to upsert and to delete (`HistoryFold.changed`), computed when used."""
        self._incoming(fold).createOrReplaceTempView("history_in")
        self._stored(fold).createOrReplaceTempView("history_stored")
        self._truncates(fold).createOrReplaceTempView("history_truncates")
        self._spark.sql(fold.touched(SPARK)).createOrReplaceTempView("history_old")
        return self._spark.sql(fold.changes(SPARK))

    def is_bounded(self, fold: HistoryFold) -> bool:
        """Say whether a fold's changes are few enough to be committed from this process."""
        size = self._frames.bytes_of(self._lake.path(fold.history.typed), fold.within)
        if fold.truncated:
            size += self._frames.bytes_of(self._lake.path(fold.history.name))
        return size <= self._bounded_bytes

    def _incoming(self, fold: HistoryFold) -> DataFrame:
        name = fold.history.typed
        incoming = self._frames.frame(self._lake.path(name), fold.within)
        if incoming is None:
            raise NotFound(f"{name} vanished while it was read")
        if fold.known_again and fold.history.by_row:
            again = self._frames.frame(self._lake.path(name), *fold.known_again)
            incoming = incoming if again is None else incoming.unionByName(again)
        # Only those that change: an alias for each column doubles what Spark says of their
        # constraints. The longer name first: it is what the shorter one becomes.
        for name in sorted(incoming.columns, key=len, reverse=True):
            if name != history_column(name):
                incoming = incoming.withColumnRenamed(name, history_column(name))
        return with_nulls(incoming, from_arrow_schema(fold.incoming))

    def _stored(self, fold: HistoryFold) -> DataFrame:
        """Return what is stored, with nulls in columns that it does not have yet."""
        stored = None
        if not fold.anew:
            path = self._lake.path(fold.history.name)
            stored = self._frames.frame(path, *near_keys(self._lake, self._tables, fold))
        if stored is None:
            return self._spark.createDataFrame([], from_arrow_schema(fold.stored))
        return with_nulls(stored, from_arrow_schema(fold.stored))

    def _truncates(self, fold: HistoryFold) -> DataFrame:
        found = None
        if fold.truncated and fold.history.truncates is not None:
            path = self._lake.path(fold.history.truncates)
            found = self._frames.frame(path, fold.within)
            again = self._frames.frame(path, *fold.known_again) if fold.known_again else None
            found = found.unionByName(again) if found is not None and again is not None else found
        if found is None:
            return self._spark.table("history_in").limit(0)
        return found.filter(found["table"] == fold.history.table)


def near_keys(lake: Lake, tables: Tables, fold: HistoryFold) -> tuple[Range, ...]:
    """Return the range of keys that came in, so that files without any of them are not read.

    Nothing where any key may be touched, or where keys are no integers.
    """
    history = fold.history
    name = history.key[0]
    if history.by_row or fold.truncated or not pa.types.is_integer(fold.incoming.field(name).type):
        return ()
    path, epoch = lake.path(history.typed), pc.field("_epoch")
    where = (epoch >= fold.within.lower) & (epoch < fold.within.upper)
    table = tables.open(path)
    if table is None or name not in schema_of(table).names:
        return ()
    rows = tables.read(path, where=where, columns=[name])
    if rows is None or not rows.num_rows:
        return ()
    bounds = pc.min_max(rows[name]).as_py()
    # Nothing is greater than the type's own greatest value, nor can be written in it.
    last = bounds["max"] == 2 ** (rows.schema[0].type.bit_width - 1) - 1
    upper = None if last else bounds["max"] + 1
    return (Range(column=name, lower=bounds["min"], upper=upper),)
