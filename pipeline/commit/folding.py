"""Step 5 of ingest: the sources' changes and installs into `current` tables, table by table.

What fails is held by name with its cause, and everything else goes on: a table whose fold fails
stays as of the epoch before, a source whose log or DDL cannot be read keeps its cut where it was
and is tried again in the next epoch. What may pass by itself (storage that does not answer) fails
the epoch, which is repeated, until `Patience` with that one table ends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.datasets import dataset_since, schema_of
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables, columns_guard
from pipeline.commit.due_installs import BulkInstalls
from pipeline.commit.manifest_rows import Committed
from pipeline.commit.retries import Patience
from pipeline.current.tables import CurrentTables
from pipeline.ddl.evolution import Planned
from pipeline.ddl.held_tables import failure_hold, quarantine_hold
from pipeline.ddl.steps import Evolution
from pipeline.ddl.table_plans import SchemaFollower
from pipeline.log.committed_changes import EndsBetween, transactions_of
from pipeline.log.large_folds import LARGE_ROWS, LogRows, split
from pipeline.position.cut import Cut
from pipeline.position.progress import Progress
from pipeline.position.transactions import Advance

log = logging.getLogger("penstock.tables")

Rows = Mapping[str, tuple[pa.Table, Planned]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """What one source brings to an epoch: its rows and plans by table, and what failed."""

    plans: Rows = field(default_factory=dict)
    large: Mapping[str, LogRows] = field(default_factory=dict)
    attempts: Attempts = field(default_factory=Attempts)
    lacks: frozenset[str] = frozenset()

    def with_(self, other: _Ready) -> _Ready:
        """Return this and what tables bring that go on."""
        attempts = Attempts()
        attempts.failed |= self.attempts.failed | other.attempts.failed
        return replace(
            self,
            plans={**self.plans, **other.plans},
            large={**self.large, **other.large},
            attempts=attempts,
        )


@dataclass(slots=True, kw_only=True)
class Folding:
    """Folds epochs into the `current` tables of one lake.

    `stuck` says per source why its cut could not go on in the last epoch.
    """

    lake: Lake
    tables: Tables
    current: CurrentTables
    follower: SchemaFollower
    bulk: BulkInstalls
    patience: Patience
    stuck: dict[str, str] = field(default_factory=dict)

    def fold(
        self,
        progress: Progress,
        arrived: Mapping[str, pa.Table | None],
        epoch: Epoch,
        installs: tuple[int, ...],
        last: Committed | None,
    ) -> tuple[dict[str, TableAt], tuple[int, ...]]:
        """Return the tables that moved on, and the numbers of the installs that became tables.

        `arrived` are sources with new rows, and the rows where the log has them as they are here:
        then what became foldable need not be read from it. Raises what is to be tried again with
        the whole epoch.
        """
        at = self.current.moved()
        numbers: list[int] = []
        self.stuck = {}
        for source in sorted({*progress.cuts, *arrived, *self.bulk.sources(installs)}):
            cut = progress.cut(source)
            held = progress.held.setdefault(source, {})
            ready = self._ready(source, cut, epoch, last, held, arrived.get(source))
            if ready is None:
                continue
            progress.cuts[source] = ready[0]
            self._hold_lacking(source, progress, cut.lsn, ready[1].lacks, epoch, last)
            ready = ready[0], ready[1].with_(self._resumed(source, progress, epoch, last))
            taken = self.bulk.take(source, installs, progress, epoch, stands_at=cut.lsn)
            self.bulk.strand(source, installs, progress, epoch)
            at |= taken.tables
            at |= self._fold_source(source, progress, ready[1], epoch, taken.replaced)
            self.bulk.mend(taken, progress, epoch)
            at |= taken.tables
            numbers += taken.numbers
        return at, tuple(numbers)

    def _ready(
        self,
        source: str,
        cut: Cut,
        epoch: Epoch,
        last: Committed | None,
        held: Collection[str],
        added: pa.Table | None,
    ) -> tuple[Cut, _Ready] | None:
        """Advance a copy of the cut and read what became foldable; None where that fails."""
        moved = Cut.from_json(cut.to_json())
        try:
            advance = moved.advance()
            if not advance.anything or advance.from_epoch is None:
                return moved, _Ready(lacks=advance.lacks)
            ready = self._read(source, moved, advance, epoch, last, held, added)
        except Exception as error:
            log.error("the changes of %s cannot be read: %s", source, error, exc_info=error)
            self.patience.lasts(source, error)
            remedy = getattr(error, "remedy", "penstock logs pipeline")
            self.stuck[source] = f"its changes cannot be read: {error} | fix: {remedy}"
            return None
        self.patience.works(source)
        return moved, ready

    def _read(
        self,
        source: str,
        cut: Cut,
        advance: Advance,
        epoch: Epoch,
        last: Committed | None,
        held: Collection[str],
        added: pa.Table | None,
    ) -> _Ready:
        """Read and plan what became foldable, but for tables that stand still."""
        assert advance.from_epoch is not None, "there is something to fold"
        small, large = self._foldable(source, cut, advance, epoch, added)
        small = {table: rows for table, rows in small.items() if table not in held}
        large = {table: rows for table, rows in large.items() if table not in held}
        return self._planned(source, small, large, advance, last)

    def _planned(
        self,
        source: str,
        small: dict[str, pa.Table],
        large: dict[str, LogRows],
        advance: Advance,
        last: Committed | None,
    ) -> _Ready:
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
            partial(self._columns, last, source),
            from_epoch=advance.from_epoch,
            attempts=attempts,
        )
        return _Ready(plans=plans, large=large, attempts=attempts, lacks=advance.lacks)

    def _hold_lacking(
        self,
        source: str,
        progress: Progress,
        cut_before: int,
        lacks: Collection[str],
        epoch: Epoch,
        last: Committed | None,
    ) -> None:
        """Hold the tables of which rows are in quarantine that became foldable without them."""
        cut, held = progress.cut(source), progress.held.setdefault(source, {})
        pending_from = last.pending_from.get(source, 1) if last is not None else 1
        for table in lacks:
            waits = progress.waits(source, table)
            if waits is not None and cut.folds(table) and table not in held:
                held[table] = quarantine_hold(
                    waits.reason,
                    records=waits.records,
                    from_epoch=epoch,
                    resumes=(cut_before, pending_from),
                )

    def _resumed(
        self, source: str, progress: Progress, epoch: Epoch, last: Committed | None
    ) -> _Ready:
        """Release tables of which no record waits any more; read what they have not folded."""
        cut, held, made = progress.cut(source), progress.held.get(source, {}), _Ready()
        for table, hold in list(held.items()):
            if hold.resumes is None or progress.waits(source, table) or not cut.folds(table):
                continue
            attempts = Attempts()
            ready = _Ready()
            with attempts.of(table):
                since, pending_from = hold.resumes
                path = self.lake.path(changes_log(source))
                between = EndsBetween(
                    after=since, up_to=cut.lsn, first_epoch=pending_from, last_epoch=epoch
                )
                ended = transactions_of(self.tables, path, table, between)
                advance = Advance(
                    transactions=tuple(name for name, *_ in ended),
                    snapshot=since < cut.snapshot_lsn <= cut.lsn,
                    from_epoch=pending_from,
                )
                small, large = self._foldable(source, cut, advance, epoch)
                wanted = (table, SCHEMA_TABLE)
                small = {name: rows for name, rows in small.items() if name in wanted}
                large = {name: rows for name, rows in large.items() if name == table}
                ready = self._planned(source, small, large, advance, last)
            plans = {name: each for name, each in ready.plans.items() if name == table}
            own = ready.attempts.failed.get(table)
            attempts.failed |= {} if own is None else {table: own}
            made = made.with_(replace(ready, plans=plans, attempts=attempts))
            del held[table]
        return made

    def _fold_source(
        self,
        source: str,
        progress: Progress,
        ready: _Ready,
        epoch: Epoch,
        replaced: Collection[str],
    ) -> dict[str, TableAt]:
        """Fold the changes of one source; tables that were replaced have them already."""
        folds: dict[str, tuple[pa.Table | LogRows, Evolution]] = {}
        held = progress.held.setdefault(source, {})
        cut = progress.cut(source)
        for table, (rows, planned) in ready.plans.items():
            if table in held or table in replaced or not cut.folds(table):
                continue
            if planned.hold is not None:
                # The table stays as of the epoch before; the log has its rows.
                held[table] = planned.hold.at(epoch)
            elif rows.num_rows or planned.evolution:
                folds[table] = ready.large.get(table, rows), planned.evolution
        done = self.current.fold_all(source, folds, epoch)
        failed = {
            table: error
            for table, error in (ready.attempts.failed | done.failed).items()
            if table not in held and table not in replaced and cut.folds(table)
        }
        for table, error in failed.items():
            self.patience.lasts(f"{source}.{table}", error)
            held[table] = failure_hold(error, from_epoch=epoch)
        for table in folds.keys() - failed.keys():
            self.patience.works(f"{source}.{table}")
        return done.done

    def _columns(self, last: Committed | None, source: str, table: str) -> pa.Schema | None:
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

    def _foldable(
        self,
        source: str,
        cut: Cut,
        advance: Advance,
        epoch: Epoch,
        added: pa.Table | None = None,
    ) -> tuple[dict[str, pa.Table], dict[str, LogRows]]:
        """Return the rows that became foldable, per table; what is large is not read yet.

        They come from the log, or from what this epoch has `added` to it where all are among that.
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
        most = self.current.executors.rows_at_once(LARGE_ROWS)
        if added is not None and advance.from_epoch == epoch and added.num_rows <= most:
            return dict(_by_table(added.filter(wanted))), {}
        log = self.tables.open(self.lake.path(changes_log(source)))
        if log is None:
            raise NotFound(f"the log of {source} is missing from the lake")
        wanted, large = split(log, wanted, since=advance.from_epoch or 0, most=most)
        rows = dataset_since(log, "epoch", advance.from_epoch or 0).to_table(filter=wanted)
        return dict(_by_table(rows)), large


def _by_table(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each table's rows, by name; one sort instead of a filter for each of many tables."""
    ordered = rows.take(pc.sort_indices(rows["table"]))
    first = 0
    for counted in pc.value_counts(ordered["table"]).to_pylist():
        yield counted["values"], ordered.slice(first, counted["counts"])
        first += counted["counts"]
