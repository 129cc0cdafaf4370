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
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import DataType, LongType, StringType

from kernel.errors import InvalidRequest
from kernel.positions import DeltaVersion, Epoch
from lake.collecting import FOLDED_HISTORY, collected
from lake.layout import Lake
from lake.quoting import equal, listed
from lake.spark_writer import SparkWriter
from lake.tables import TableAt, Tables
from lake.writer import OP, ArrowWriter, Guard
from pipeline.history.change_versions import LINKS, touched_by_changes, versions_by_change
from pipeline.history.row_versions import versions_by_record, versions_by_row
from schemas.identifiers import spark_name
from schemas.lake_columns import STAMPS

VALID_FROM, VALID_TO, DELETED = "valid_from", "valid_to", "_deleted"
_MEETS_OURS = re.compile(r"(data_)*valid_(from|to)", re.IGNORECASE)
HIDDEN = (*STAMPS, "_operation", "_transaction", "_lsn")
NOT_COLUMNS = frozenset((*HIDDEN, "committed_at"))
_CAME_LATER: dict[str, DataType] = {"_transaction": StringType(), "_lsn": LongType()}
"""Columns that typed tables of older lakes lack."""


def history_column(name: str) -> str:
    """Return what a column of a typed table is called in its history."""
    return f"data_{name}" if _MEETS_OURS.fullmatch(name) else name


def outgrown(stored: pa.Schema, typed: pa.Schema) -> bool:
    """Say whether a history has columns that its typed table has under another name or type now.

    Such a history is computed anew from the typed table, which was brought to the new columns.
    """
    now = {history_column(f.name): f.type for f in typed}
    ours = {VALID_FROM, VALID_TO, DELETED, *HIDDEN, *LINKS}
    return any(f.name not in ours and now.get(f.name) != f.type for f in stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOf:
    """How one history table is kept.

    `identity` is the source's primary key. `key` differs from it, or `event_time` is set, when the
    history was declared; then rows are versions of `key` (see the module). `records`: they are
    records of a topic, which nothing replaces or retracts. `truncates` names the table of the
    source's TRUNCATEs and `table` the one of its tables that this is about. `declaration` names
    the statement that the rows of `typed` are made by: those of another one are folded anew.
    """

    name: str
    typed: str
    key: tuple[str, ...]
    identity: tuple[str, ...]
    by_row: bool
    truncates: str | None = None
    records: bool = False
    table: str = ""
    declaration: str = ""

    @property
    def app_id(self) -> str:
        """The app id of the guard, which is the cursor of the table as it is declared now."""
        return f"{self.name}/{self.declaration}" if self.declaration else self.name

    def cursor(self, stored: DeltaTable | None) -> int | None:
        """Return the epoch that a stored table has; None for none, or for another declaration's."""
        done = None if stored is None else stored.transaction_version(self.app_id)
        return 0 if done is None and stored is not None and not self.declaration else done


class HistoryTables:
    """Brings history tables up to an epoch, computing only the keys that changed, in Spark."""

    def __init__(self, spark: SparkSession, lake: Lake, tables: Tables) -> None:
        self._spark = spark
        self._lake = lake
        self._writer = ArrowWriter(tables)
        self._spark_writer = SparkWriter(spark, tables)

    def fold(
        self,
        history: HistoryOf,
        incoming: DataFrame,
        stored: DataFrame | None,
        epoch: Epoch,
        *,
        truncates: DataFrame | None = None,
        bounded: bool = True,
    ) -> TableAt:
        """Fold newly visible typed rows (`incoming`) and TRUNCATEs into what is stored.

        One commit, guarded by the epoch. Rows that do not change are not written. What `bounded`
        says is small is committed from this process, anything else from the executors. Without
        anything stored (`None`) what there is, columns included, is replaced.
        Raises `InvalidRequest` for a table without a key.
        """
        if not history.key:
            raise InvalidRequest(
                f"{history.name} needs a key: {history.typed} has none",
                remedy="Declare one: penstock source add … --key TABLE:COLUMNS",
            )
        history = replace(
            history,
            key=tuple(map(history_column, history.key)),
            identity=tuple(map(history_column, history.identity)),
        )
        incoming = _own_names_free(incoming)
        columns = [c for c in incoming.columns if c not in NOT_COLUMNS]
        incoming.createOrReplaceTempView("history_in")
        links = () if history.by_row else LINKS
        self._stored(stored, columns, links).createOrReplaceTempView("history_stored")
        if truncates is None:
            truncates = incoming.limit(0)
        truncates.createOrReplaceTempView("history_truncates")
        self._spark.sql(_touched(history)).createOrReplaceTempView("history_old")
        self._spark.sql(_versions(history, columns)).createOrReplaceTempView("history_versions")
        rows = self._spark.sql(_difference(history, (*columns, *links), epoch))
        path, guard = self._lake.path(history.name), Guard(history.app_id, epoch)
        if stored is None:
            version = self._replace(path, rows.drop(OP), guard, bounded=bounded)
        else:
            version = self._merge(path, rows, guard, (*history.key, VALID_FROM), bounded=bounded)
        return TableAt(version=version, as_of_epoch=epoch)

    def _replace(self, path: str, rows: DataFrame, guard: Guard, *, bounded: bool) -> DeltaVersion:
        if bounded:
            return self._writer.overwrite(path, collected(rows, FOLDED_HISTORY), guard)
        return self._spark_writer.overwrite(path, rows, guard)

    def _merge(
        self, path: str, rows: DataFrame, guard: Guard, keys: tuple[str, ...], *, bounded: bool
    ) -> DeltaVersion:
        if bounded:
            return self._writer.merge(path, collected(rows, FOLDED_HISTORY), guard, keys=keys)
        return self._spark_writer.merge(path, rows, guard, keys=keys)

    def _stored(
        self, stored: DataFrame | None, columns: Sequence[str], links: Sequence[str]
    ) -> DataFrame:
        """Return what is stored, with nulls in columns that it does not have yet."""
        if stored is None:
            kept = listed(columns)
            nulls = "".join(f", CAST(NULL AS STRING) AS {name}" for name in links)
            return self._spark.sql(
                f"SELECT {kept}, _time AS valid_from, _time AS valid_to, false AS _deleted, "
                f"_seq_hi, _seq_lo, _epoch{nulls} FROM history_in WHERE false"
            )
        types = dict(self._spark.table("history_in").dtypes) | dict.fromkeys(links, "string")
        for name in (*columns, *links):
            if name not in stored.columns:
                stored = stored.withColumn(name, functions.lit(None).cast(types[name]))
        return stored


def _own_names_free(incoming: DataFrame) -> DataFrame:
    # Only those that change: an alias for each column doubles what Spark says of their constraints.
    # The longer name first: it is what the shorter one becomes.
    for name in sorted(incoming.columns, key=len, reverse=True):
        if name != history_column(name):
            incoming = incoming.withColumnRenamed(name, history_column(name))
    for name, kind in _CAME_LATER.items():
        if name not in incoming.columns:
            incoming = incoming.withColumn(name, functions.lit(None).cast(kind))
    return incoming


def _versions(history: HistoryOf, columns: Sequence[str]) -> str:
    """Select the versions of the touched keys."""
    if history.records:
        return versions_by_record(history.key, columns)
    if history.by_row:
        return versions_by_row(history.key, history.identity, columns)
    return versions_by_change(history.key, columns)


def _touched(history: HistoryOf) -> str:
    """Select stored versions of every key that an incoming row has now or had before."""
    if not history.by_row:
        return touched_by_changes(history.key)
    return f"""
        SELECT o.* FROM history_stored o LEFT SEMI JOIN (
          SELECT {listed(history.key)} FROM history_in
          UNION ALL
          SELECT {listed(history.key, "s")} FROM history_stored s
          LEFT SEMI JOIN history_in i ON {equal(history.identity, "s", "i")}
        ) k ON {equal(history.key, "o", "k")}"""


def _difference(history: HistoryOf, columns: Sequence[str], epoch: Epoch) -> str:
    """Compare computed with stored versions: what to upsert, what to delete."""
    identity = (*history.key, VALID_FROM)
    order = () if history.by_row else ("_seq_hi", "_seq_lo")
    compared = [*columns, *order, VALID_TO, DELETED]
    new, old = listed(compared, "n"), listed(compared, "o")
    out = [*columns, VALID_FROM, VALID_TO, DELETED, "_seq_hi", "_seq_lo"]
    chosen = ", ".join(
        f"CASE WHEN n.valid_from IS NULL THEN o.{c} ELSE n.{c} END AS {c}"
        for c in map(spark_name, out)
    )
    return f"""
        SELECT {chosen}, CAST({int(epoch)} AS BIGINT) AS _epoch,
               CASE WHEN n.valid_from IS NULL THEN 'delete' ELSE 'upsert' END AS __op
        FROM history_versions n
        FULL OUTER JOIN history_old o ON {equal(identity, "n", "o")}
        WHERE n.valid_from IS NULL OR o.valid_from IS NULL
           OR NOT (struct({new}) <=> struct({old}))"""
