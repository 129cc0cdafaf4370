"""Folds that are too large for this process: read in slices, staged, put together by Spark.

A source transaction may change millions of rows. Its log rows are cut into slices in the source's
order; of each slice the newest image per key goes to a staging table, numbered, and the newest of
all slices goes into the table in one commit from Spark's executors. Memory holds one slice and the
places where slices end (20 bytes a row).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import SparkSession, Window, functions

from kernel.positions import DeltaVersion, Epoch
from projections.log import storage
from projections.log.datasets import dataset_since, location_of, schema_of
from projections.log.layout import Lake
from projections.log.order import LOW, NEEDED, low_of, places_of
from projections.log.spark_writer import SparkWriter
from projections.log.tables import Tables
from projections.log.writer import OP, UPSERT, ArrowWriter, Guard
from projections.state.layers import EPOCH, KEYS, marked, newest_of
from schemas.identifiers import spark_name
from schemas.records import Operation

LARGE_ROWS = 150_000
"""More log rows of one table than that are folded in slices."""
SLICE_ROWS = 50_000

_PLANNED = ("schema_id", "key_schema_id", *NEEDED)
_CODES = np.dtype([("high", np.int64), ("low", np.int64), ("delete", bool), ("insert", bool)])


@dataclass(frozen=True, slots=True)
class LogRows:
    """Rows of a changes log that are not read yet: a dataset and which of its rows."""

    log: ds.Dataset
    where: pc.Expression

    def read(self, part: pc.Expression | None = None) -> pa.Table:
        """Read the rows, or those of a part."""
        return self.log.to_table(filter=self.where if part is None else self.where & part)

    def planned(self) -> pa.Table:
        """Read of all rows only what decides on the columns of their table."""
        return self.log.to_table(columns=list(_PLANNED), filter=self.where)

    def narrowed(self, part: pc.Expression) -> LogRows:
        """Return fewer of the rows."""
        return LogRows(self.log, self.where & part)


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


class Staging:
    """The staged images of one fold, `current/_staging/<source>.<table>/<epoch>`.

    Making one removes what an earlier attempt at the same epoch left there.
    """

    def __init__(self, lake: Lake, tables: Tables, name: str, epoch: Epoch) -> None:
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._slices = 0
        self.path = f"{lake.path('current/_staging/' + name.removeprefix('current/'))}/{epoch}"
        self.remove()

    def add(self, newest: pa.Table, keys: Sequence[str]) -> None:
        """Stage the images of one slice more."""
        self._slices += 1
        guard = Guard("staging", Epoch(self._slices))
        self._writer.append(self.path, marked(newest, keys, self._slices), guard)

    def newest(self, where: pc.Expression) -> tuple[pa.Table, tuple[str, ...]] | None:
        """Return the newest staged images of some keys, with `__op`; None before the first."""
        rows = self._tables.read(self.path, where=where)
        return None if rows is None or rows.num_rows == 0 else newest_of(rows)

    def remove(self) -> None:
        """Delete what is staged."""
        self._tables.forget(self.path)
        storage.remove(self.path)


def split(
    log: DeltaTable, where: pc.Expression, *, since: int, most: int = LARGE_ROWS
) -> tuple[pc.Expression, dict[str, LogRows]]:
    """Tell the tables with more than `most` of the wanted rows, logged since an epoch, apart.

    Returns the filter of what remains to be read at once, and the rows of each large table.
    """
    actions = pa.table(log.get_add_actions(flatten=True))
    if "max.epoch" not in actions.schema.names:
        return where, {}
    recent = actions.filter(pc.fill_null(pc.greater_equal(actions["max.epoch"], since), True))
    if (pc.sum(recent["num_records"]).as_py() or 0) <= most:
        return where, {}
    dataset = dataset_since(log, "epoch", since)
    counted = pc.value_counts(dataset.to_table(columns=["table"], filter=where)["table"])
    large = {
        str(c["values"]): LogRows(dataset, where & (pc.field("table") == c["values"]))
        for c in counted.to_pylist()
        if c["counts"] > most and not str(c["values"]).startswith("_")
    }
    if large:
        where = where & ~pc.is_in(pc.field("table"), pa.array(list(large), pa.string()))
    return where, large


def last_truncate(rows: LogRows) -> tuple[int, int] | None:
    """Return the place of the last TRUNCATE; None without one."""
    found = rows.log.to_table(
        columns=list(NEEDED),
        filter=rows.where & (pc.field("operation") == Operation.TRUNCATE.value),
    )
    return max(places_of(found), default=None)


def after(place: tuple[int, int]) -> pc.Expression:
    """Return a filter for the row changes that came after a place; none of a snapshot did."""
    high = pc.field("commit_order")
    later = (high > place[0]) | ((high == place[0]) & (place[1] < LOW))
    return later & ~pc.field("snapshot")


def slices(rows: LogRows, *, most: int = SLICE_ROWS) -> Iterator[pc.Expression]:
    """Cut rows of one table into parts of about `most`, in the source's order.

    Rows of a snapshot come first, by epoch. A delete and the insert right behind it (a changed
    key) stay together.
    """
    yield from _of_snapshot(rows, most)
    places = _places(rows)
    start = 0
    while start < len(places):
        end = min(len(places), start + most)
        while end < len(places) and places["delete"][end - 1] and places["insert"][end]:
            end += 1
        low, high = places[start], places[end - 1]
        yield ~pc.field("snapshot") & _from(low) & ~_beyond(high)
        start = end


def _of_snapshot(rows: LogRows, most: int) -> Iterator[pc.Expression]:
    epochs = rows.log.to_table(columns=["epoch"], filter=rows.where & pc.field("snapshot"))
    counted = sorted(
        (int(c["values"]), int(c["counts"])) for c in pc.value_counts(epochs["epoch"]).to_pylist()
    )
    first, held = None, 0
    for epoch, count in counted:
        if first is not None and held + count > most:
            yield _epochs(first, epoch - 1)
            first, held = None, 0
        first = epoch if first is None else first
        held += count
    if first is not None:
        yield _epochs(first, counted[-1][0])


def _epochs(first: int, last: int) -> pc.Expression:
    epoch = pc.field("epoch")
    return pc.field("snapshot") & (epoch >= first) & (epoch <= last)


def _places(rows: LogRows) -> npt.NDArray[np.void]:
    """Read where every streamed row stands, sorted."""
    scanner = rows.log.scanner(
        columns=list(NEEDED),
        filter=rows.where & ~pc.field("snapshot"),
    )
    parts = [_packed(batch) for batch in scanner.to_batches() if batch.num_rows]
    if not parts:
        return np.empty(0, _CODES)
    places = np.concatenate(parts)
    return places[np.lexsort((places["low"], places["high"]))]


def _packed(batch: pa.RecordBatch) -> npt.NDArray[np.void]:
    packed = np.empty(batch.num_rows, _CODES)
    operation = batch.column("operation")
    packed["high"] = batch.column("commit_order").to_numpy()
    packed["low"] = low_of(pa.table(batch)).to_numpy()
    for name, meant in (("delete", Operation.DELETE), ("insert", Operation.INSERT)):
        packed[name] = pc.equal(operation, meant.value).to_numpy(zero_copy_only=False)
    return packed


def _from(place: np.void) -> pc.Expression:
    order = pc.field("commit_order")
    high, low = int(place["high"]), int(place["low"])
    return (order >= high) & ((order > high) | (low <= LOW))


def _beyond(place: np.void) -> pc.Expression:
    order = pc.field("commit_order")
    high, low = int(place["high"]), int(place["low"])
    return (order > high) | ((order == high) & (low < LOW))


def holds_rows(tables: Tables, path: str) -> bool:
    """Say whether there is a table with rows."""
    table = tables.open(path)
    return table is not None and bool(schema_of(table).names) and table.count() > 0
