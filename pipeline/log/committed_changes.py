"""Changes of a source by where their transactions ended: the log read again, in commit order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.datasets import dataset_of, dataset_since
from lake.executor_tasks import Executors
from lake.layout import Lake, changes_log
from lake.table_columns import SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.log.large_folds import LARGE_ROWS, LogRows
from schemas.records import MESSAGES

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
    tables: Tables, path: str, table: str, *, after: int, up_to: int
) -> dict[str, int]:
    """Return the transactions with rows of a table, or with DDL, and where each ended.

    `path` is the log of their source; they ended in (`after`, `up_to`].
    """
    ends = tables.read(
        path,
        where=(pc.field("table") == TRANSACTIONS_TABLE)
        & (pc.field("lsn") > after)
        & (pc.field("lsn") <= up_to),
        columns=["transaction_id", "lsn", "counts"],
    )
    found: dict[str, int] = {}
    told = ends.sort_by("lsn").to_batches(max_chunksize=10_000) if ends is not None else []
    for end in (row for batch in told for row in batch.to_pylist()):
        counts = json.loads(end["counts"])
        if counts.get(table, 0) or counts.get(MESSAGES, 0):
            found[end["transaction_id"]] = end["lsn"]
    return found


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
        ends = self._tables.read(
            self._lake.path(changes_log(source)),
            where=(pc.field("table") == TRANSACTIONS_TABLE)
            & (pc.field("lsn") > where.after)
            & (pc.field("lsn") <= where.up_to)
            & (pc.field("epoch") <= where.last_epoch),
            columns=["transaction_id", "lsn", "counts"],
        )
        if ends is None:
            return
        ids: dict[str, int] = {}
        rows, most = 0, self._executors.rows_at_once(LARGE_ROWS)
        told = ends.sort_by("lsn").to_batches(max_chunksize=10_000)
        for end in (row for batch in told for row in batch.to_pylist()):
            counts = json.loads(end["counts"])
            count = int(counts.get(table, 0))
            if not count and not counts.get(MESSAGES, 0):
                continue
            if ids and rows + count > MOST_ROWS:
                yield self._slice(source, table, ids, where, large=rows > most)
                ids, rows = {}, 0
            ids[end["transaction_id"]] = end["lsn"]
            rows += count
        if ids:
            yield self._slice(source, table, ids, where, large=rows > most)

    def _slice(
        self, source: str, table: str, ends: Mapping[str, int], where: EndsBetween, *, large: bool
    ) -> Slice:
        log = self._tables.open(self._lake.path(changes_log(source)))
        assert log is not None, "the log was read a moment ago"
        wanted = (
            (pc.field("epoch") >= where.first_epoch)
            & (pc.field("epoch") <= where.last_epoch)
            & pc.is_in(pc.field("transaction_id"), pa.array(list(ends), pa.string()))
            & (pc.field("snapshot").is_null() | ~pc.field("snapshot"))
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
