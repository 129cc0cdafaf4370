"""Large folds beside ingest: a thread does all of them but the commits, while epochs are made.

    the cut of a source rests -> its rows are read, planned, staged, merged into files
    -> the next epoch moves the cut on, and commits

What was made is thrown away where it does not fit any more: the epoch then does all of it itself.
A process that ends leaves nothing behind but files that nobody reads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from kernel.positions import Epoch
from lake.executor_tasks import Executors
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.foldable_rows import Foldable, FoldableRows, foldable_rows
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.current.bucketed_merge import BucketedMerge
from pipeline.current.fold_ahead import FoldAhead, FoldedAhead
from pipeline.current.tables import CurrentTables
from pipeline.ddl.table_rewrites import RewrittenFiles
from pipeline.position.cut import Cut
from pipeline.position.transactions import Advance
from schemas.registry import SchemaLookup

BESIDE_ROWS = 150_000
"""With more rows of one table than that, what became foldable of a source is folded beside."""
BESIDE_ROW_BYTES = 32 * 2**20
"""And so it is with more bytes of one table's changed rows, however few these are."""
BESIDE_BYTES = 2**19
"""Files of a table that are larger are brought to new columns beside: others would wait for it."""
BESIDE = "many rows are folded beside the other lanes"

log = logging.getLogger("penstock.fold")


def _nothing() -> None:
    """There is nothing to begin, and nothing to end."""


def is_large(advance: Advance, bound: Bound) -> bool:
    """Say whether what became foldable would keep others of an epoch waiting.

    What lacks rows is left to ingest. So was what came with a snapshot before transactions had a
    bound: an epoch that was bound without one is repeated as it was begun.
    """
    most_rows, most_bytes = bound.most_rows, bound.most_row_bytes
    in_turn = advance.lacks or (advance.snapshot and bound.most_transactions is None)
    if most_rows is None or in_turn:
        return False
    wide = most_bytes is not None and advance.most_bytes > most_bytes
    return wide or advance.most_rows > most_rows


@dataclass(slots=True, kw_only=True)
class _Job:
    """The fold of one source: of which advance, and what comes of it."""

    advance: Advance
    held: frozenset[str]
    ended: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    columns: Mapping[str, pa.Schema | None] = field(default_factory=dict)
    foldable: Foldable | None = None


class FoldsBeside:
    """Folds for one run of ingest, one source after the other. `rows` and `fold` are its alone.

    Ingest calls everything here. `begins` is called by each thread before its work, `ends` makes
    what is at work end.
    """

    def __init__(
        self,
        rows: FoldableRows,
        fold: FoldAhead,
        *,
        most_rows: int = BESIDE_ROWS,
        most_bytes: int = BESIDE_BYTES,
        most_row_bytes: int = BESIDE_ROW_BYTES,
        begins: Callable[[], None] = _nothing,
        ends: Callable[[], None] = _nothing,
    ) -> None:
        self._rows = rows
        self._fold = fold
        self.most_rows, self.most_bytes = most_rows, most_bytes
        self.most_row_bytes = most_row_bytes
        self._begins = begins
        self._ends = ends
        self._jobs: dict[str, _Job] = {}
        self._one = threading.Lock()

    def begin(
        self,
        source: str,
        cut: Cut,
        advance: Advance,
        held: Collection[str],
        epoch: Epoch,
        last: Committed | None,
    ) -> None:
        """Begin to fold an advance, unless that is done already; `cut` has gone that far."""
        job = self._jobs.get(source)
        if job is not None and job.advance == advance:
            return
        self.drop(source)
        job = _Job(advance=advance, held=frozenset(held))
        self._jobs[source] = job
        count = len(advance.transactions)
        log.info("%d transactions of %s are folded beside: its cut rests", count, source)
        work = threading.Thread(
            target=self._run,
            args=(source, job, cut, epoch, last),
            name=f"beside-{source}",
            daemon=True,
        )
        work.start()

    def ready(self, source: str) -> bool:
        """Say whether the fold of a source has ended, whatever came of it."""
        job = self._jobs.get(source)
        return job is not None and job.ended.is_set()

    def due(self, source: str) -> bool:
        """Say whether an epoch is due for a cut that rests: to take a fold in, or to begin it."""
        job = self._jobs.get(source)
        return job is None or job.ended.is_set()

    def take(
        self, source: str, advance: Advance, held: Collection[str], last: Committed | None
    ) -> Foldable | None:
        """Return what was made of an advance; None where there is nothing, or it does not fit."""
        job = self._jobs.pop(source, None)
        if job is None:
            return None
        made = job.foldable
        # Of the same transactions: a row of one may come late, out of quarantine for instance.
        same = job.advance == advance and job.held == frozenset(held)
        if made is not None and same and self._has_columns(source, job, last):
            return made
        if made is not None:
            log.info("what was folded of %s beside does not fit any more", source)
        job.over.set()  # The epoch does it now.
        _remove(job.foldable)
        return None

    def _has_columns(self, source: str, job: _Job, last: Committed | None) -> bool:
        """Say whether the tables still have the columns that a fold was planned for."""
        return all(
            self._rows.columns(last, source, table) == columns
            for table, columns in job.columns.items()
        )

    def drop(self, source: str) -> None:
        """Let go of what is made of a source, or was."""
        job = self._jobs.pop(source, None)
        if job is not None:
            job.over.set()
            _remove(job.foldable)

    def close(self) -> None:
        """Have what is at work end at its next step. Nobody waits for it."""
        for source in list(self._jobs):
            self.drop(source)
        self._ends()

    def _run(self, source: str, job: _Job, cut: Cut, epoch: Epoch, last: Committed | None) -> None:
        try:
            with self._one:
                self._begins()
                self._work(source, job, cut, epoch, last)
        except Exception as error:
            # The epoch does it again, and finds out whose error it is.
            if not job.over.is_set():
                log.warning("%s is folded by its epoch: %s", source, error, exc_info=error)
        finally:
            job.ended.set()

    def _work(self, source: str, job: _Job, cut: Cut, epoch: Epoch, last: Committed | None) -> None:
        if job.over.is_set():
            return
        made = self._rows.read(source, cut, job.advance, epoch, last, job.held, None)
        if made.attempts.failed:
            return
        ahead: dict[str, FoldedAhead | RewrittenFiles] = {}
        for table, (_, planned) in made.plans.items():
            if job.over.is_set():
                # The next run may be at the next table by now.
                break
            job.columns = {**job.columns, table: self._rows.columns(last, source, table)}
            done: FoldedAhead | RewrittenFiles | None = None
            if planned.evolution and planned.hold is None:
                done = self._fold.rewritten(source, table, planned.evolution)
            elif table in made.large and planned.hold is None:
                done = self._fold(source, table, made.large[table], epoch, job.over.is_set)
            ahead |= {} if done is None else {table: done}
        job.foldable = replace(made, ahead=ahead)
        if job.over.is_set():
            _remove(job.foldable)


def folds_beside(
    lake: Lake,
    tables: Tables,
    schemas: SchemaLookup,
    current: CurrentTables,
    executors: Executors,
    merge: BucketedMerge,
    *,
    most_rows: int = BESIDE_ROWS,
    most_bytes: int = BESIDE_BYTES,
    most_row_bytes: int = BESIDE_ROW_BYTES,
    begins: Callable[[], None] = _nothing,
    ends: Callable[[], None] = _nothing,
) -> FoldsBeside:
    """Return what folds beside the epochs of `current`; `tables` and `merge` are its alone."""
    fold = FoldAhead(
        lake,
        tables,
        schemas,
        current.tails,
        keeps_deleted=current.keeps_deleted,
        executors=executors,
        merge=merge,
    )
    rows = foldable_rows(lake, tables, schemas, executors)
    return FoldsBeside(
        rows,
        fold,
        most_rows=most_rows,
        most_bytes=most_bytes,
        most_row_bytes=most_row_bytes,
        begins=begins,
        ends=ends,
    )


def _remove(made: Foldable | None) -> None:
    if made is not None:
        made.remove_staged()
