"""Reads and plans what became foldable of a source: small tables' rows, large ones' unread.

Upstream: the cut's `Advance`, the log. Downstream: `Folding`, in ingest's turn, and `FoldsBeside`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.datasets import dataset_since, schema_of
from lake.executor_tasks import Executors
from lake.file_actions import actions_of
from lake.layout import Lake, changes_log, current_name
from lake.stretches import rows_at
from lake.table_columns import TRANSACTIONS_TABLE
from lake.tables import Tables, columns_guard, standing
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.current.fold_ahead import FoldedAhead
from pipeline.ddl.evolution import Planned
from pipeline.ddl.steps import touches_rows
from pipeline.ddl.table_plans import SchemaFollower
from pipeline.ddl.table_rewrites import RewrittenFiles
from pipeline.log.large_folds import LARGE_BYTES, LARGE_ROWS, LogRows, split
from pipeline.log.pending_rows import AtHand
from pipeline.position.cut import Cut
from pipeline.position.transactions import Advance
from schemas.registry import SchemaLookup

_ROW = "__row"

Rows = Mapping[str, tuple[pa.Table, Planned]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foldable:
    """What one source brings to an epoch: its rows and plans by table, and what failed.

    `ahead` is what was done beside ingest: of folds of large tables, and of new columns.
    """

    plans: Rows = field(default_factory=dict)
    large: Mapping[str, LogRows] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts)
    lacks: frozenset[str] = frozenset()
    ahead: Mapping[str, FoldedAhead | RewrittenFiles] = field(default_factory=dict)

    def with_(self, other: Foldable) -> Foldable:
        """Return this and what tables bring that go on."""
        attempts = Attempts()
        attempts.failed |= self.attempts.failed | other.attempts.failed
        return replace(
            self,
            plans={**self.plans, **other.plans},
            large={**self.large, **other.large},
            attempts=attempts,
        )

    def remove_staged(self) -> None:
        """Remove the images that were staged beside ingest, once they are of no use any more."""
        for each in self.ahead.values():
            if isinstance(each, FoldedAhead):
                each.staging.remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldableRows:
    """Reads for one lake, with the handles of `tables`; keeps nothing.

    `rows_at_once` says how many rows of a table are read at once, where it could be the given ones.
    """

    lake: Lake
    tables: Tables
    follower: SchemaFollower
    rows_at_once: Callable[[int], int]

    def read(
        self,
        source: str,
        cut: Cut,
        advance: Advance,
        epoch: Epoch,
        last: Committed | None,
        held: Collection[str],
        at_hand: AtHand | None,
    ) -> Foldable:
        """Read and plan what became foldable, but for tables that stand still."""
        assert advance.from_epoch is not None, "there is something to fold"
        small, large = self.of(source, cut, advance, epoch, at_hand)
        small = {table: rows for table, rows in small.items() if table not in held}
        large = {table: rows for table, rows in large.items() if table not in held}
        return self.planned(source, small, large, advance, last)

    def rewrites(self, source: str, ready: Foldable, bound: Bound, last: Committed | None) -> bool:
        """Say whether DDL would have more of a table written anew than an epoch does in its turn.

        What there is is counted in the table of the last epoch, so that the answer stays the same.
        Where nothing has that any more but what the epoch itself wrote, it did so in its turn
        before.
        """
        for table, (_, planned) in ready.plans.items():
            name = current_name(source, table)
            at = last.tables.get(name) if last else None
            if last is None or at is None or planned.hold is not None or not planned.evolution:
                continue
            stored = self._as_of(name, at.version, last.epoch)
            if stored is None:
                continue
            steps = planned.evolution.all_steps()
            if touches_rows(steps, schema_of(stored)) and _is_more(actions_of(stored), bound):
                return True
        return False

    def _as_of(self, name: str, version: int, epoch: Epoch) -> DeltaTable | None:
        """Return a table as the last epoch left it; None where that is not kept."""
        path = self.lake.path(name)
        newest = self.tables.open(path)
        if newest is not None and newest.version() == version:
            return newest
        kept = standing(path, name, version, epoch)
        return None if kept is None else DeltaTable(path, version=kept)

    def planned(
        self,
        source: str,
        small: dict[str, pa.Table],
        large: dict[str, LogRows],
        advance: Advance,
        last: Committed | None,
    ) -> Foldable:
        """Plan rows that were read, and of large tables those that decide on columns."""
        assert advance.from_epoch is not None, "there is something to fold"
        attempts = Attempts()
        planned: dict[str, pa.Table] = {}
        for table, rows in large.items():
            with attempts.of(table):
                planned[table] = rows.planned()
        plans = self.follower.plans(
            source,
            small | planned,
            frozenset(advance.transactions),
            partial(self.columns, last, source),
            from_epoch=advance.from_epoch,
            attempts=attempts,
        )
        return Foldable(plans=plans, large=large, attempts=attempts, lacks=advance.lacks)

    def columns(self, last: Committed | None, source: str, table: str) -> pa.Schema | None:
        """Return a table's columns as of the last committed epoch."""
        name = current_name(source, table)
        at = last.tables.get(name) if last else None
        if at is None or last is None:
            return None
        path = self.lake.path(name)
        try:
            return self.tables.columns(path, at.version)
        except DeltaError:
            # The log may have forgotten it, after a fold of the tail at the start for instance.
            newest = self.tables.open(path)
            guard = columns_guard(name)
            if newest is None or (newest.transaction_version(guard) or 0) > last.epoch:
                raise
            return schema_of(newest)

    def of(
        self,
        source: str,
        cut: Cut,
        advance: Advance,
        epoch: Epoch,
        at_hand: AtHand | None = None,
    ) -> tuple[dict[str, pa.Table], dict[str, LogRows]]:
        """Return the rows that became foldable, per table; what is large is not read yet.

        They come from the log, or are `at_hand` where all are among that.
        """
        of_transactions = pc.is_in(
            pc.field("transaction_id"), pa.array(advance.transactions, pa.string())
        )
        wanted = of_transactions & ~pc.field("snapshot")
        if advance.snapshot:
            at_lsn = pc.field("commit_order") == cut.snapshot_lsn
            wanted = wanted | (pc.field("snapshot") & at_lsn)
        in_epochs = (pc.field("epoch") >= advance.from_epoch) & (pc.field("epoch") <= epoch)
        wanted = in_epochs & wanted & (pc.field("table") != TRANSACTIONS_TABLE)
        most = self.rows_at_once(LARGE_ROWS)
        if at_hand is not None and (advance.from_epoch or 0) >= at_hand.first:
            rows = at_hand.rows
            if rows.num_rows <= most and rows.nbytes <= LARGE_BYTES:
                return dict(_by_table(_filtered(rows, wanted))), {}
        log = self.tables.open(self.lake.path(changes_log(source)))
        if log is None:
            raise NotFound(f"the log of {source} is missing from the lake")
        wanted, large = split(log, wanted, since=advance.from_epoch or 0, most=most)
        rows = dataset_since(log, "epoch", advance.from_epoch or 0).to_table(filter=wanted)
        return dict(_by_table(rows)), large


def _is_more(files: pa.Table, bound: Bound) -> bool:
    """Say whether files have more rows, or are larger, than an epoch writes anew in its turn."""
    rows, size = (pc.sum(files[name]).as_py() or 0 for name in ("num_records", "size_bytes"))
    most_rows, most_bytes = bound.most_rows, bound.most_bytes
    return (most_rows is not None and rows > most_rows) or (
        most_bytes is not None and size > most_bytes
    )


def _filtered(rows: pa.Table, wanted: pc.Expression) -> pa.Table:
    """Return the wanted ones of some log rows, which are nearly all: their bytes are not copied."""
    told = rows.select(["epoch", "table", "transaction_id", "snapshot", "commit_order"])
    numbered = told.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    return rows_at(rows, np.sort(numbered.filter(wanted)[_ROW].to_numpy()))


def _by_table(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each table's rows, by name; one sort instead of a filter for each of many tables."""
    ordered = rows_at(rows, pc.sort_indices(rows["table"]).to_numpy())
    first = 0
    for counted in pc.value_counts(ordered["table"]).to_pylist():
        yield counted["values"], ordered.slice(first, counted["counts"])
        first += counted["counts"]


def foldable_rows(
    lake: Lake, tables: Tables, schemas: SchemaLookup, executors: Executors
) -> FoldableRows:
    """Return what reads for a lake, planning by the schemas of a registry."""
    return FoldableRows(
        lake=lake,
        tables=tables,
        follower=SchemaFollower(lake, tables, schemas),
        rows_at_once=executors.rows_at_once,
    )
