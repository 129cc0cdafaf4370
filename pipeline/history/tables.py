"""`history/NAME`: every version of every key with the time in which it held.

Columns: the table's own, then `valid_from` and `valid_to` (exclusive, null = still), `_deleted`
(nothing held in this interval), `_seq_hi`, `_seq_lo` (place of the change in the source's order),
`_epoch` (the epoch in which this row last changed, its `valid_to` included: whoever joined within
it joins again). The table depends on the facts only, never on the order in which they came. Two
ways to read a source as history:

- of a captured table as it is: the key is the primary key and every committed change a version,
  in commit order (`change_versions`). Three more columns: `_transaction` (the source's
  transaction id; null for what a snapshot read), `_previous_key` and `_next_key`: where an update
  changed the key itself, JSON of the key before on the first version of the new one, and of the
  new key on the row that ends the old one. A TRUNCATE ends every key;
- by declared key and event time (`CREATE SOURCE … ON table WITH (key, event_time)`): each row of
  the table is a version of its key, at its own event time (`row_versions`). An update of the row
  replaces the version, a delete retracts it, and its predecessor holds again. Rows beyond the
  source's lateness stay out, as in every stateful result.

A column of the source that is called `valid_from` or `valid_to` becomes `data_valid_from`,
`data_valid_to`, and one of that name has another `data_` before it.

What a fold computes is described once (`fold`). Below a bound this process computes it, in DuckDB
over Arrow (`driver_fold`), above it Spark's executors do (`spark_fold`). The rows are the same.
"""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from kernel import failpoints
from kernel.errors import BeyondThisProcess, InvalidRequest
from kernel.positions import DeltaVersion, Epoch
from lake.collecting import FOLDED_HISTORY, collected
from lake.datasets import schema_of
from lake.guarded_commits import mark_of
from lake.layout import Lake
from lake.ranges import Range
from lake.spark_writer import SparkWriter
from lake.tables import TableAt, Tables, greatest, rewritten_guard
from lake.writer import OP, ArrowWriter, Guard
from pipeline.history.driver_fold import DriverFold
from pipeline.history.fold import CAME_LATER, HistoryFold
from pipeline.history.shape import VALID_FROM, HistoryOf, history_column, outgrown
from pipeline.history.spark_fold import BOUNDED_BYTES, SparkFold
from pipeline.order import BEFORE_ALL

DRIVER_BYTES = 32 * 2**20
"""What this process takes in for one fold unless it is told otherwise."""


class HistoryTables:
    """Brings history tables up to an epoch, computing only the keys that changed. For one thread.

    `driver_bytes`: so many bytes of rows this process takes in for one fold; 0 for none. What
    executors compute of files up to `bounded_bytes` is committed by this process.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        tables: Tables,
        *,
        driver_bytes: int = DRIVER_BYTES,
        bounded_bytes: int = BOUNDED_BYTES,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._spark_writer = SparkWriter(spark, tables)
        self._driver = DriverFold(lake, tables, most_bytes=driver_bytes) if driver_bytes else None
        self._spark = SparkFold(spark, lake, tables, bounded_bytes=bounded_bytes)

    def fold(self, history: HistoryOf, epoch: Epoch) -> TableAt | None:
        """Fold what became visible in the typed table, and TRUNCATEs, up to an epoch.

        The table's cursor is its own guard: one commit, guarded by the epoch, and none where
        nothing came. Rows that do not change are not written. A history that has no cursor, or
        whose columns its typed table has outgrown or called otherwise since, is replaced, columns
        included. None where there is no typed table yet. Raises `InvalidRequest` for a table
        without a key.
        """
        if not history.key:
            raise InvalidRequest(
                f"{history.name} needs a key: {history.typed} has none",
                remedy="Declare one: penstock source add … --key TABLE:COLUMNS",
            )
        stored = self._tables.open(self._lake.path(history.name))
        source = self._tables.open(self._lake.path(history.typed))
        if source is None:
            return None
        done = history.cursor(stored)
        typed = schema_of(source)
        anew = stored is None or done is None or outgrown(schema_of(stored), typed)
        renamed = mark_of(source, rewritten_guard(history.typed)) or 0
        anew = anew or renamed > (done or 0)
        cleared = self._newest(history.truncates) if history.truncates else 0
        newest = max(self._newest(history.typed), cleared)
        if stored is not None and done is not None and newest <= done and not anew:
            return TableAt(version=stored.version(), as_of_epoch=epoch)
        after = 0 if anew or done is None else done
        within = Range(column="_epoch", lower=after + 1, upper=epoch + 1)
        behind = None if anew or history.records else self._copied_at(history.typed, within, after)
        fold = HistoryFold(
            history=history.named_as_kept(),
            incoming=_incoming(typed),
            within=within,
            epoch=epoch,
            anew=anew,
            truncated=cleared > after or self._cleared_behind(history, behind),
            behind=behind,
        )
        return TableAt(version=self._commit(fold), as_of_epoch=epoch)

    def _commit(self, fold: HistoryFold) -> DeltaVersion:
        """Compute a fold where it is to be computed, and commit what changes."""
        rows = self._by_driver(fold)
        if rows is None:
            frame = self._spark.changes(fold)
            if not self._spark.is_bounded(fold):
                return self._by_executors(fold, frame)
            # Spark says of some columns that they are never null: a table must not depend on that.
            rows = collected(frame, FOLDED_HISTORY).cast(fold.changed)
        failpoints.hit(failpoints.HISTORY_BEFORE_COMMIT)
        path, guard = self._place(fold)
        if fold.anew:
            return self._writer.overwrite(path, rows.drop_columns([OP]), guard)
        return self._writer.merge(path, rows, guard, keys=(*fold.history.key, VALID_FROM))

    def _by_driver(self, fold: HistoryFold) -> pa.Table | None:
        """Compute a fold in this process; None where executors are to do it."""
        if self._driver is not None:
            with suppress(BeyondThisProcess):
                return self._driver.changes(fold)
        return None

    def _by_executors(self, fold: HistoryFold, frame: DataFrame) -> DeltaVersion:
        failpoints.hit(failpoints.HISTORY_BEFORE_COMMIT)
        path, guard = self._place(fold)
        if fold.anew:
            return self._spark_writer.overwrite(path, frame.drop(OP), guard)
        return self._spark_writer.merge(path, frame, guard, keys=(*fold.history.key, VALID_FROM))

    def _place(self, fold: HistoryFold) -> tuple[str, Guard]:
        return self._lake.path(fold.history.name), Guard(fold.history.app_id, fold.epoch)

    def _newest(self, name: str) -> int:
        """Return the newest epoch that any row of a table has."""
        table = self._tables.open(self._lake.path(name))
        return (greatest(table, "_epoch") or 0) if table is not None else 0

    def _copied_at(self, name: str, within: Range, after: int) -> int | None:
        """Return the first place of rows that a copy read, among those that came; None for none.

        What was committed behind it may have come before them.
        """
        came = (pc.field("_epoch") >= within.lower) & (pc.field("_epoch") < within.upper)
        where = came & (pc.field("_seq_lo") == BEFORE_ALL)
        path, since = self._lake.path(name), ("_epoch", after + 1)
        rows = self._tables.read(path, where=where, columns=["_seq_hi"], since=since)
        found: int | None = None if rows is None else pc.min(rows["_seq_hi"]).as_py()
        return found

    def _cleared_behind(self, history: HistoryOf, place: int | None) -> bool:
        """Say whether a TRUNCATE of the table was committed behind a place."""
        if place is None or history.truncates is None:
            return False
        where = (pc.field("table") == history.table) & (pc.field("_seq_hi") >= place)
        rows = self._tables.read(self._lake.path(history.truncates), where=where, columns=["table"])
        return rows is not None and rows.num_rows > 0


def _incoming(typed: pa.Schema) -> pa.Schema:
    """Return the columns of a typed table as a fold takes them in."""
    own = [field.with_name(history_column(field.name)) for field in typed]
    return pa.schema([*own, *(field for field in CAME_LATER if field.name not in typed.names)])
