"""Step 5 of ingest: the sources' changes and installs into `current` tables, table by table.

What fails is held by name with its cause, and everything else goes on: a table whose fold fails
stays as of the epoch before, a source whose log or DDL cannot be read keeps its cut where it was
and is tried again in the next epoch. What may pass by itself (storage that does not answer) fails
the epoch, which is repeated, until `Patience` with that one table ends.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.layout import Lake, changes_log
from lake.table_columns import SCHEMA_TABLE
from lake.tables import TableAt, Tables
from pipeline.commit.due_installs import BulkInstalls
from pipeline.commit.foldable_rows import Foldable, FoldableRows
from pipeline.commit.folds_beside import FoldsBeside, is_large
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.commit.retries import Patience
from pipeline.current.tables import CurrentTables
from pipeline.ddl.held_tables import failure_hold, quarantine_hold
from pipeline.ddl.steps import Evolution
from pipeline.log.committed_changes import EndsBetween, transactions_of
from pipeline.log.large_folds import LogRows
from pipeline.log.pending_rows import AtHand, PendingRows
from pipeline.position.cut import Cut
from pipeline.position.progress import Progress
from pipeline.position.transactions import MOST_TRANSACTIONS, NOWHERE, Advance

log = logging.getLogger("penstock.tables")


@dataclass(slots=True, kw_only=True)
class Folding:
    """Folds epochs into the `current` tables of one lake.

    Where there is a `beside`, the cut of a source of which much became foldable rests until that
    was folded there, up to its commits. Whether a cut rests or goes on depends on the progress
    before, on the epoch's records and on how it was bound: an epoch that is repeated does the same.
    `stuck` says per source why its cut could not go on in the last epoch, `behind` are sources
    whose cut may go on without another record.
    """

    lake: Lake
    tables: Tables
    current: CurrentTables
    rows: FoldableRows
    bulk: BulkInstalls
    patience: Patience
    beside: FoldsBeside | None = None
    pending: PendingRows = field(default_factory=PendingRows)
    stuck: dict[str, str] = field(default_factory=dict)
    behind: set[str] = field(default_factory=set)

    def fold(
        self,
        progress: Progress,
        arrived: Mapping[str, pa.Table | None],
        bound: Bound,
        last: Committed | None,
    ) -> tuple[dict[str, TableAt], tuple[int, ...]]:
        """Return the tables that moved on, and the numbers of the installs that became tables.

        `arrived` are sources with new rows, and the rows where the log has them as they are here:
        then what became foldable need not be read from it. Raises what is to be tried again with
        the whole epoch.
        """
        at, epoch, installs = self.current.moved(), bound.epoch, bound.installs or ()
        numbers: list[int] = []
        self.stuck = {}
        for source in sorted({*progress.cuts, *arrived, *self.bulk.sources(installs)}):
            cut = progress.cut(source)
            progress.held.setdefault(source, {})
            at_hand = self._at_hand(source, epoch, arrived)
            ready = self._ready(source, cut, bound, last, progress, at_hand)
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

    def _at_hand(
        self, source: str, epoch: Epoch, arrived: Mapping[str, pa.Table | None]
    ) -> AtHand | None:
        """Return a source's rows that need not be read from the log."""
        added = arrived.get(source)
        kept = self.pending.take(source, epoch, added)
        # What arrived and is not here was appended by an earlier attempt, or by executors.
        return None if added is None and source in arrived else kept

    def _ready(
        self,
        source: str,
        cut: Cut,
        bound: Bound,
        last: Committed | None,
        progress: Progress,
        at_hand: AtHand | None,
    ) -> tuple[Cut, Foldable] | None:
        """Advance a copy of the cut and read what became foldable; None where that fails."""
        moved = Cut.from_json(cut.to_json())
        self.behind.discard(source)
        if cut.held:
            self._forget(source, progress)
        rests = progress.resting.get(source)
        try:
            most = bound.most_transactions or NOWHERE
            advance = moved.advance(NOWHERE if rests is None else rests, most)
            if self._rests(source, moved, advance, progress, bound, last):
                return cut, Foldable()
            if rests is not None or len(advance.transactions) >= most:
                self.behind.add(source)
            if not advance.anything or advance.from_epoch is None:
                self.pending.keep(source, bound.epoch, at_hand, advance)
                return moved, Foldable(lacks=advance.lacks)
            held = progress.held[source]
            ready = None if self.beside is None else self.beside.take(source, advance, held, last)
            if ready is None:
                epoch = bound.epoch
                ready = self.rows.read(source, moved, advance, epoch, last, held, at_hand)
            may_rest = bound.most_rows is not None and rests is None and advance.plain
            if may_rest and self.rows.rewrites(source, ready, bound, last):
                self._rest(source, moved, advance, progress, bound, last)
                return cut, Foldable()
            self.pending.keep(source, bound.epoch, at_hand, advance)
        except Exception as error:
            log.error("the changes of %s cannot be read: %s", source, error, exc_info=error)
            self.patience.lasts(source, error)
            remedy = getattr(error, "remedy", "penstock logs pipeline")
            self.stuck[source] = f"its changes cannot be read: {error} | fix: {remedy}"
            return None
        self.patience.works(source)
        return moved, ready

    def _rests(
        self,
        source: str,
        moved: Cut,
        advance: Advance,
        progress: Progress,
        bound: Bound,
        last: Committed | None,
    ) -> bool:
        """Say whether a source's cut stays where it is, while this advance is folded beside."""
        rests = progress.resting.get(source)
        if rests is None:
            if not is_large(advance, bound):
                return False
        elif moved.lsn != rests:
            # A record in quarantine made it incomplete meanwhile.
            self._forget(source, progress)
            self.behind.add(source)
            return True
        elif bound.goes_on.get(source) == rests:
            del progress.resting[source]
            return False
        self._rest(source, moved, advance, progress, bound, last)
        return True

    def _rest(
        self,
        source: str,
        moved: Cut,
        advance: Advance,
        progress: Progress,
        bound: Bound,
        last: Committed | None,
    ) -> None:
        progress.resting[source] = moved.lsn
        if self.beside is not None:
            held = progress.held[source]
            self.beside.begin(source, moved, advance, held, bound.epoch, last)

    def bind(self, bound: Bound, progress: Progress) -> Bound:
        """Return an epoch with what is decided of cuts that rest, before it is bound."""
        goes_on = {
            source: lsn
            for source, lsn in progress.resting.items()
            if self.beside is None or self.beside.ready(source)
        }
        bound = replace(bound, goes_on=goes_on, most_transactions=MOST_TRANSACTIONS)
        if self.beside is None:
            return bound
        most_rows, most_bytes = self.beside.most_rows, self.beside.most_bytes
        bound = replace(bound, most_row_bytes=self.beside.most_row_bytes)
        return replace(bound, most_rows=most_rows, most_bytes=most_bytes)

    def _forget(self, source: str, progress: Progress) -> None:
        progress.resting.pop(source, None)
        if self.beside is not None:
            self.beside.drop(source)

    def resume(self, progress: Progress) -> Progress:
        """Take note, after a start, of cuts that may go on: no other record may ever come."""
        for source in progress.cuts.keys() - progress.resting.keys():
            if Cut.from_json(progress.cut(source).to_json()).advance().anything:
                self.behind.add(source)
        return progress

    def due(self, progress: Progress) -> bool:
        """Say whether an epoch is due without a record: for a cut that rests, or may go on."""
        rests = progress.resting
        due = bool(rests) if self.beside is None else any(map(self.beside.due, rests))
        return due or bool(self.behind)

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
    ) -> Foldable:
        """Release tables of which no record waits any more; read what they have not folded."""
        cut, held, made = progress.cut(source), progress.held.get(source, {}), Foldable()
        for table, hold in list(held.items()):
            if hold.resumes is None or progress.waits(source, table) or not cut.folds(table):
                continue
            attempts = Attempts()
            ready = Foldable()
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
                small, large = self.rows.of(source, cut, advance, epoch)
                wanted = (table, SCHEMA_TABLE)
                small = {name: rows for name, rows in small.items() if name in wanted}
                large = {name: rows for name, rows in large.items() if name == table}
                ready = self.rows.planned(source, small, large, advance, last)
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
        ready: Foldable,
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
        try:
            done = self.current.fold_all(source, folds, epoch, ready.ahead)
        finally:
            ready.remove_staged()
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
