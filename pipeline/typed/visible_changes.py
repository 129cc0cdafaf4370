"""Which rows of a changes log became visible, and in which epoch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.attempts import Attempts
from lake.layout import Lake, changes_log
from lake.table_columns import SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.current.key_buckets import Known
from pipeline.log.large_folds import LogRows
from pipeline.typed.columns import EPOCH, Visible, Wanted
from schemas.records import Operation

IS_TRUNCATE = pc.field("operation") == Operation.TRUNCATE.value

Stamp = Callable[[pa.Table], pa.Table]
"""Adds to log rows the epoch in which each became visible."""


@dataclass(frozen=True, slots=True)
class Bulk:
    """Rows that are too many for one slice, all newer than `since`.

    `known` opens what its table was before them, where that can be read in one pass.
    """

    rows: LogRows
    stamp: Stamp
    since: int
    known: Callable[[], Known | None] | None

    @classmethod
    def of(
        cls,
        rows: LogRows | None,
        stamp: Stamp,
        since: int,
        known: Callable[[], Known | None] | None,
    ) -> Bulk | None:
        """Return it for such rows; None for None."""
        return None if rows is None else cls(rows, stamp, since, known)


def ends_seen(
    lake: Lake, tables: Tables, source: str, visible: Visible
) -> tuple[dict[str, int], list[str]]:
    """Return the transactions that became visible, and the epochs in which they did.

    With them those of which no more than the DDL does: copied rows have the rest.
    """
    lsn = pc.field("lsn")
    ends = tables.read(
        lake.path(changes_log(source)),
        where=(pc.field("table") == TRANSACTIONS_TABLE)
        & (lsn > visible.before)
        & (lsn <= visible.up_to),
        columns=["transaction_id", "lsn"],
        since=("lsn", visible.before),
    )
    found = ends.to_pylist() if ends is not None else []
    left_out = [end["transaction_id"] for end in found if visible.leaves_out(end["lsn"])]
    return {end["transaction_id"]: visible.epoch_of(end["lsn"]) for end in found}, left_out


def readable(
    source: str, rows: pa.Table, large: Mapping[str, LogRows], wanted: Wanted
) -> tuple[dict[str, pa.Table], Attempts]:
    """Return the rows to plan with, by wanted table, and what could not be read."""
    named = Attempts()
    tables = _by_table(rows.filter(~IS_TRUNCATE))
    for table, own in large.items():
        with named.of(table):
            tables[table] = own.narrowed(~IS_TRUNCATE).planned()
    return {t: own for t, own in tables.items() if wanted(f"typed/{source}.{t}")}, named


def stamped(
    seen_at: Mapping[str, int], visible: Visible, snapshot_lsn: int, rows: pa.Table
) -> pa.Table:
    """Add the epoch in which each row became visible."""
    snapshot_epoch = visible.epoch_of(snapshot_lsn) if snapshot_lsn <= visible.up_to else 0
    epochs = [seen_at.get(tx, snapshot_epoch) for tx in rows["transaction_id"].to_pylist()]
    return rows.append_column(EPOCH, pa.array(epochs, pa.int64()))


def _by_table(rows: pa.Table) -> dict[str, pa.Table]:
    names = pc.unique(rows["table"]).to_pylist()
    return {name: rows.filter(pc.equal(rows["table"], name)) for name in names}


def seen(
    seen_at: Collection[str], left_out: Collection[str], visible: Visible, snapshot_lsn: int
) -> pc.Expression:
    """Return a filter for the rows of transactions that became visible, and of their snapshot.

    Of those that are `left_out` it lets DDL through.
    """
    transaction = pc.field("transaction_id")
    wanted = pc.is_in(transaction, pa.array(list(seen_at), pa.string()))
    if left_out:
        hidden = pc.is_in(transaction, pa.array(list(left_out), pa.string()))
        wanted = wanted & (~hidden | (pc.field("table") == SCHEMA_TABLE))
    wanted = wanted & ~pc.field("snapshot")
    in_range = visible.before < snapshot_lsn <= visible.up_to
    if in_range and not visible.leaves_out(snapshot_lsn):
        is_read = pc.field("snapshot") & (pc.field("commit_order") == snapshot_lsn)
        wanted = wanted | is_read
    return wanted
