"""Changes of a source by where their transactions ended: the log read again, in commit order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.datasets import dataset_of, dataset_since
from lake.executor_tasks import Executors
from lake.layout import Lake, changes_log
from lake.table_columns import SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.log.large_folds import LARGE_ROWS, LogRows

MOST_ROWS = 100_000
"""Rows of one table that are read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsBetween:
    """Where to look: transactions with an END in (`after`, `up_to`], rows of epochs
    [`first_epoch`, `last_epoch`]."""

    after: int
    up_to: int
    first_epoch: int
    last_epoch: int

    @property
    def of_changes(self) -> pc.Expression:
        """What picks the rows of these epochs, without those of a snapshot."""
        return (
            (pc.field("epoch") >= self.first_epoch)
            & (pc.field("epoch") <= self.last_epoch)
            & (pc.field("snapshot").is_null() | ~pc.field("snapshot"))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Whole transactions, up to the one that ended at `last_end`.

    `ends` maps each to its END; `rows` are log rows of a table and, under `_schema`, of DDL. Of a
    transaction with more than `LARGE_ROWS` of the table these are not read: they are in `large`,
    and `rows` has only those that decide on columns.
    """

    last_end: int
    ends: Mapping[str, int]
    rows: Mapping[str, pa.Table]
    large: LogRows | None = None


def transactions_of(
    tables: Tables, path: str, table: str, where: EndsBetween
) -> list[tuple[str, int, int]]:
    """Return the transactions with rows of a table, or with DDL: name, END, rows of the table.

    They are in the order of their ENDs, once each. `path` is the log of their source.
    """
    log = tables.open(path)
    ends = tables.read(
        path,
        where=(pc.field("table") == TRANSACTIONS_TABLE)
        & (pc.field("lsn") > where.after)
        & (pc.field("lsn") <= where.up_to)
        & (pc.field("epoch") <= where.last_epoch),
        columns=["transaction_id", "lsn"],
    )
    if log is None or ends is None:
        return []
    rows = _rows_of_transactions(log, table, where)
    known = ends.join(rows, "transaction_id", join_type="inner").sort_by("lsn")
    columns = (known[name].to_pylist() for name in ("transaction_id", "lsn", "rows"))
    return list(zip(*columns, strict=True))


def _rows_of_transactions(log: DeltaTable, table: str, where: EndsBetween) -> pa.Table:
    """Return `transaction_id` and `rows` for all transactions with rows of a table, or with DDL.

    The rows are counted, for an END does not have to: that of a transaction amid which the
    connector was started again tells only of what was sent since.
    """
    wanted = where.of_changes & pc.is_in(
        pc.field("table"), pa.array([table, SCHEMA_TABLE], pa.string())
    )
    counted: list[pa.Table] = []
    for batch in dataset_since(log, "epoch", where.first_epoch).to_batches(
        columns={
            "transaction_id": pc.field("transaction_id"),
            "rows": (pc.field("table") == table).cast(pa.int64()),
        },
        filter=wanted,
    ):
        if batch.num_rows:
            counted.append(_summed(pa.Table.from_batches([batch])))
    empty = pa.table(
        {"transaction_id": pa.array([], pa.string()), "rows": pa.array([], pa.int64())}
    )
    return _summed(pa.concat_tables([empty, *counted]))


def _summed(rows: pa.Table) -> pa.Table:
    summed = rows.group_by("transaction_id").aggregate([("rows", "sum")])
    return summed.rename_columns({"rows_sum": "rows"})


class CommittedChanges:
    """Reads the log of changes of one lake by the ENDs of transactions."""

    def __init__(self, lake: Lake, tables: Tables, executors: Executors | None = None) -> None:
        self._lake = lake
        self._tables = tables
        self._executors = executors or Executors()

    def last_end(self, source: str, lsn: int) -> int:
        """Return the greatest END of a transaction that is not beyond `lsn`; 0 without one."""
        log = self._tables.open(self._lake.path(changes_log(source)))
        if log is None:
            return 0
        found = 0
        where = (pc.field("table") == TRANSACTIONS_TABLE) & (pc.field("lsn") <= lsn)
        for batch in dataset_of(log).to_batches(columns=["lsn"], filter=where):
            found = max(found, int(pc.max(batch["lsn"]).as_py() or 0))
        return found

    def slices(self, source: str, table: str, where: EndsBetween) -> Iterator[Slice]:
        """Yield a table's rows, and the messages of DDL among them, in the order of the ENDs.

        A slice is made of whole transactions and has up to `MOST_ROWS` rows; a greater
        transaction is a slice of its own, whose rows are read in parts beyond `LARGE_ROWS`.
        """
        ids: dict[str, int] = {}
        rows, most = 0, self._executors.rows_at_once(LARGE_ROWS)
        path = self._lake.path(changes_log(source))
        for name, lsn, count in transactions_of(self._tables, path, table, where):
            if ids and rows + count > MOST_ROWS:
                yield self._slice(source, table, ids, where, large=rows > most)
                ids, rows = {}, 0
            ids[name] = lsn
            rows += count
        if ids:
            yield self._slice(source, table, ids, where, large=rows > most)

    def _slice(
        self, source: str, table: str, ends: Mapping[str, int], where: EndsBetween, *, large: bool
    ) -> Slice:
        log = self._tables.open(self._lake.path(changes_log(source)))
        assert log is not None, "the log was read a moment ago"
        wanted = where.of_changes & pc.is_in(
            pc.field("transaction_id"), pa.array(list(ends), pa.string())
        )
        files = dataset_since(log, "epoch", where.first_epoch)
        told, own = (
            LogRows(files, wanted & (pc.field("table") == name)) for name in (SCHEMA_TABLE, table)
        )
        messages = told.read()
        return Slice(
            last_end=max(ends.values()),
            ends=ends,
            rows={table: own.planned() if large else own.read()}
            | ({SCHEMA_TABLE: messages} if messages.num_rows else {}),
            large=own if large else None,
        )
