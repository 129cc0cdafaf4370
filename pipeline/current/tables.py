"""`current/<source>.<table>`: one row per key, equal to the source's own SELECT at the cut.

Ingest folds only complete source transactions, in commit order, so the last change of a key wins
without looking at what is stored. Columns are the source's, unchanged; columns that the source
adds later are added, dropped ones stay and are null from then on. A table with soft deletes has
`_deleted` too: its deleted rows stay, with the values that they had last.

A small table is merged in every epoch. A large one takes the epoch into its tail, and a thread
folds the tail into the base; see `tail`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.datasets import schema_of
from lake.executor_tasks import Executors
from lake.layers import tail_name
from lake.layout import Lake, current_name
from lake.tables import TableAt, Tables, cleared_guard, columns_guard, outlived_guard
from lake.writer import OP, UPSERT, ArrowWriter, Guard, reached
from pipeline.current.bucketed_merge import put_ahead
from pipeline.current.fold_ahead import FoldedAhead
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.image_stager import ImageStager
from pipeline.current.merging import BaseMerge, MergeKept
from pipeline.current.newest_images import DELETED, NewestImages
from pipeline.current.staged_images import ArrowStagedMerge, ImageStaging, StagedMerge
from pipeline.current.tail import TailTables
from pipeline.current.warm_bases import KeptBases
from pipeline.ddl.steps import NOTHING, Evolution
from pipeline.ddl.table_rewrites import RewrittenFiles, evolve, must_evolve, put_rewritten
from pipeline.log.large_folds import (
    LogRows,
    after,
    before,
    holds_rows,
    last_truncate,
)
from pipeline.order import high_of, low_of
from schemas.pg_exact import EXACT
from schemas.records import Operation
from schemas.registry import SchemaLookup

FOLDS_AT_ONCE = 4
SMALL_BYTES = 64 * 2**20
"""Rows of small tables that stay in memory from one epoch to the next, of all together."""
SoftDeletes = Callable[[str, str], bool]
"""Says of a source and a table whether deleted rows are kept, marked."""


class CurrentTables:
    """Folds changes into `current` tables. One commit per table and epoch, guarded by the epoch.

    `tails` folds large tables beside ingest; `close` ends its thread.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        *,
        soft_deletes: SoftDeletes = lambda source, table: False,
        policy: FoldPolicy | None = None,
        large: StagedMerge | None = None,
        beside: BaseMerge | None = None,
        executors: Executors | None = None,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._schemas = schemas
        self._soft = soft_deletes
        self.merge_staged = large or ArrowStagedMerge(tables)
        self.executors = executors or Executors()
        self._small = MergeKept(KeptBases(SMALL_BYTES), tables=tables)
        self.tails = TailTables(lake, tables, policy, beside=beside)
        self._stager = ImageStager(lake, tables, schemas, self.tails, self.executors)

    def fold(
        self,
        source: str,
        table: str,
        changes: pa.Table,
        epoch: Epoch,
        evolution: Evolution = NOTHING,
        ahead: RewrittenFiles | None = None,
    ) -> Mapping[str, TableAt]:
        """Fold log rows of one table, all of complete transactions newer than the last fold.

        `changes` has the columns of a changes log, in any order, each row once. `evolution`
        (`evolution.plan`) is what DDL among them did to the columns; rows that were brought `ahead`
        to these are taken, if the table still is as it was then. Returns the versions of the table
        and of its tail, where there is one. Raises `SchemaViolation` when bytes do not fit the
        schema that the log names for them.
        """
        name = current_name(source, table)
        path = self._lake.path(name)
        guard = Guard(name, epoch)
        handle = self._tables.open(path)
        if handle is not None and self._small.reached(path, handle, guard):
            return self._at(name, handle.version(), epoch)
        if self._is_repeated(name, epoch):
            return self.tails.versions(name, epoch)
        evolved = bool(evolution) and self._evolve(name, path, evolution, epoch, ahead)
        truncated, rest = after_truncate(changes)
        if rest.num_rows == 0 and not truncated and not evolved:
            return {}
        soft = self._soft(source, table)
        exact = self._has_exact(name)
        newest = NewestImages(schemas=self._schemas, evolution=evolution, soft=soft, exact=exact)
        if truncated:
            if soft:
                self._outlive(path, name, before_truncate(changes), newest, epoch)
            self._clear(path, name, guard, last=rest.num_rows == 0, soft=soft)
        if rest.num_rows == 0:
            handle = self._tables.open(path)
            return {} if handle is None else self._at(name, handle.version(), epoch)
        stored = partial(self._stager.stored, name, truncated and not soft)
        rows, keys = newest.of(rest, stored)
        if truncated and not soft:
            kept = rows.filter(pc.equal(rows[OP], UPSERT)).drop_columns([OP])
            return self._at(name, self._writer.overwrite(path, kept, guard), epoch)
        in_memory = None if handle is None else self._small.in_memory(path, handle)
        # Where the base was brought to new columns beside, it is not written here either.
        to_tail = not truncated and (ahead is not None or not evolved)
        if to_tail and self.tails.wants(self._tables.open(path), in_memory):
            return self.tails.add(name, rows, keys, epoch, anew=evolved)
        self.tails.settle(name)
        return self._at(name, self._small.merge(path, rows, guard, keys), epoch)

    def fold_large(
        self,
        source: str,
        table: str,
        rows: LogRows,
        epoch: Epoch,
        evolution: Evolution = NOTHING,
        ahead: FoldedAhead | RewrittenFiles | None = None,
    ) -> Mapping[str, TableAt]:
        """Fold log rows as `fold` does, in slices, with one commit.

        Few images of many rows go the way of `fold`: to the tail, where the table has one, or into
        it from here. Others are merged by `merge_staged`. What was done `ahead` with the same rows
        is taken, if the table still is as it was then.
        """
        name = current_name(source, table)
        path, guard = self._lake.path(name), Guard(name, epoch)
        handle = self._tables.open(path)
        staging = ImageStaging(self._lake, self._tables, name, epoch)
        if handle is not None and reached(handle, guard):
            return self._at(name, handle.version(), epoch)
        if self._is_repeated(name, epoch):
            return self.tails.versions(name, epoch)
        if isinstance(ahead, FoldedAhead) and not evolution and self._stands(name, ahead):
            return self._bring_in(name, ahead.staging, ahead.keys, epoch, ahead=ahead)
        rewritten = ahead if isinstance(ahead, RewrittenFiles) else None
        evolved = bool(evolution) and self._evolve(name, path, evolution, epoch, rewritten)
        soft = self._soft(source, table)
        exact = self._has_exact(name)
        images = NewestImages(schemas=self._schemas, evolution=evolution, soft=soft, exact=exact)
        cleared = last_truncate(rows)
        if cleared is not None:
            if soft:
                self._outlive_large(staging, rows.narrowed(before(cleared)), images, name, epoch)
            rows = rows.narrowed(after(cleared))
            self._clear(path, name, guard, last=False, soft=soft)
        gone = cleared is not None and not soft
        keys = self._stager.stage(staging, rows, images, name, gone=gone)
        if not keys:
            self._clear(path, name, guard, last=True, soft=soft)
            handle = self._tables.open(path)
            return {} if handle is None else self._at(name, handle.version(), epoch)
        return self._bring_in(
            name, staging, keys, epoch, gone=gone, base_only=cleared is not None or evolved
        )

    def _is_repeated(self, name: str, epoch: Epoch) -> bool:
        """Say whether the tail has what an epoch folds: its rows are not what it began with."""
        return any(number == epoch for number, _ in self.tails.parts(name))

    def _has_exact(self, name: str) -> bool:
        """Say whether a table has `_exact`. Its tail first: what is folded meanwhile, it has."""
        if any(EXACT in images.schema.names for _, images in self.tails.parts(name)):
            return True
        base = self._tables.open(self._lake.path(name))
        return base is not None and EXACT in schema_of(base).names

    def _stands(self, name: str, ahead: FoldedAhead | RewrittenFiles) -> bool:
        """Say whether a table has the rows over which something was made ahead."""
        handle = self._tables.open(self._lake.path(name))
        version = None if handle is None else int(handle.version())
        return version == ahead.version and self.tails.newest(name) is None

    def _bring_in(
        self,
        name: str,
        staging: ImageStaging,
        keys: Sequence[str],
        epoch: Epoch,
        *,
        gone: bool = False,
        base_only: bool = False,
        ahead: FoldedAhead | None = None,
    ) -> Mapping[str, TableAt]:
        """Bring staged images into their table, or into its tail unless it has to be the base."""
        path, guard = self._lake.path(name), Guard(name, epoch)
        few = None if base_only else staging.few()
        if few is not None and self.tails.wants(self._tables.open(path)):
            at = self.tails.add(name, few, keys, epoch)
        elif few is not None:
            self.tails.settle(name)
            at = self._at(name, self._small.merge(path, few, guard, keys), epoch)
        elif ahead is not None and ahead.files is not None:
            at = self._at(name, put_ahead(self._tables, path, ahead.files, guard), epoch)
        else:
            self.tails.settle(name)
            replace = gone or not holds_rows(self._tables, path)
            version = self.merge_staged(path, staging.path, guard, keys, replace=replace)
            at = self._at(name, version, epoch)
        failpoints.hit(failpoints.LARGE_AFTER_MERGE)
        staging.remove()
        return at

    def fold_all(
        self,
        source: str,
        folds: Mapping[str, tuple[pa.Table | LogRows, Evolution]],
        epoch: Epoch,
        ahead: Mapping[str, FoldedAhead | RewrittenFiles] = MappingProxyType({}),
    ) -> Attempts:
        """Fold several tables of one source, some at a time: most of it is waiting for files.

        `folds` has rows and evolution by table, as `fold` and `fold_large` take them, `ahead` what
        was done of them before; large ones go one by one. What fails, by table, keeps no other from
        being folded. Raises `LeaseLost`.
        """
        attempts = Attempts()
        started: dict[str, Future[Mapping[str, TableAt]]] = {}
        with ThreadPoolExecutor(FOLDS_AT_ONCE, thread_name_prefix="fold") as pool:
            for table, (rows, evolution) in folds.items():
                made = ahead.get(table)
                with attempts.of(table):
                    if isinstance(rows, LogRows):
                        attempts.done |= self.fold_large(
                            source, table, rows, epoch, evolution, made
                        )
                        continue
                    own = made if isinstance(made, RewrittenFiles) else None
                    fold = partial(self.fold, source, table, rows, epoch, evolution, own)
                    if len(folds) == 1:
                        attempts.done |= fold()
                    else:
                        started[table] = pool.submit(copy_context().run, fold)
        for table, each in started.items():
            with attempts.of(table):
                attempts.done |= each.result()
        return attempts

    def _evolve(
        self,
        name: str,
        path: str,
        evolution: Evolution,
        epoch: Epoch,
        ahead: RewrittenFiles | None,
    ) -> bool:
        """Bring the rows that are there to the new columns; return whether that did anything."""
        handle, guard = self._tables.open(path), Guard(columns_guard(name), epoch)
        steps = evolution.all_steps()
        if handle is None or not (reached(handle, guard) or must_evolve(handle, steps)):
            return False
        self.tails.settle(name)
        fits = ahead is not None and ahead.steps == steps and self._stands(name, ahead)
        if ahead is not None and fits and not reached(handle, guard):
            put_rewritten(self._tables, path, ahead, guard)
        evolve(self._tables, path, steps, guard)
        tail = tail_name(name)
        evolve(self._tables, self._lake.path(tail), steps, Guard(columns_guard(tail), epoch))
        return True

    def keeps_deleted(self, source: str, table: str) -> bool:
        """Say whether a table has soft deletes."""
        return self._soft(source, table)

    def resume(self, known: Mapping[str, TableAt]) -> None:
        """Take up the tails of the tables that the manifest names, after a start."""
        self.tails.resume(known)

    def moved(self) -> dict[str, TableAt]:
        """Return the bases that moved on since the last epoch without a change of their own."""
        return self.tails.moved()

    def settle(self, source: str, table: str) -> None:
        """Fold what a table's tail holds into its base now: before anybody else writes the base."""
        self.tails.settle(current_name(source, table))

    def close(self) -> None:
        """End the thread that folds; what it has not folded stays in the tails."""
        self.tails.close()

    def _at(self, name: str, version: int, epoch: Epoch) -> dict[str, TableAt]:
        """Name the versions after the base itself was written: its tail has nothing to add."""
        return {name: TableAt(version=version, as_of_epoch=epoch), **self.tails.clear(name, epoch)}

    def _outlive(
        self, path: str, name: str, rows: pa.Table, newest: NewestImages, epoch: Epoch
    ) -> None:
        """Take in what came before a TRUNCATE: a table that keeps deleted rows keeps it, marked."""
        guard, handle = Guard(outlived_guard(name), epoch), self._tables.open(path)
        if rows.num_rows and not reached(handle, guard):
            self.tails.settle(name)
            images, keys = newest.of(rows, partial(self._stager.stored, name, False))
            self._writer.merge(path, images, guard, keys=keys)

    def _outlive_large(
        self, staging: ImageStaging, rows: LogRows, images: NewestImages, name: str, epoch: Epoch
    ) -> None:
        """Do as `_outlive`, with rows that are not to be in memory at once."""
        path, guard = self._lake.path(name), Guard(outlived_guard(name), epoch)
        if reached(self._tables.open(path), guard):
            return
        self.tails.settle(name)
        keys = self._stager.stage(staging, rows, images, name, gone=False)
        if keys:
            replace = not holds_rows(self._tables, path)
            self.merge_staged(path, staging.path, guard, keys, replace=replace)
            staging.remove()

    def _clear(self, path: str, name: str, guard: Guard, *, last: bool, soft: bool) -> None:
        """Take a TRUNCATE in; only where nothing follows it (`last`) does it carry the guard."""
        self.tails.settle(name)
        handle = self._tables.open(path)
        if handle is None:
            return
        if soft:
            marked = guard if last else Guard(cleared_guard(name), guard.epoch)
            self._writer.mark_all(path, DELETED, marked)
        elif last:
            self._writer.overwrite(path, schema_of(handle).empty_table(), guard)


def before_truncate(changes: pa.Table) -> pa.Table:
    """Return the row changes that came before the last TRUNCATE among the rows."""
    is_truncate = pc.equal(changes["operation"], Operation.TRUNCATE.value)
    last = max(_order_of(changes.filter(is_truncate)))
    rows = changes.filter(pc.invert(is_truncate))
    return rows.filter(pa.array([place < last for place in _order_of(rows)], pa.bool_()))


def after_truncate(changes: pa.Table) -> tuple[bool, pa.Table]:
    """Return whether a TRUNCATE is among the rows, and the row changes that came after it."""
    is_truncate = pc.equal(changes["operation"], Operation.TRUNCATE.value)
    if not pc.any(is_truncate).as_py():
        return False, changes
    truncates = changes.filter(is_truncate)
    rows = changes.filter(pc.invert(is_truncate))
    last = max(_order_of(truncates))
    return True, rows.filter(pa.array([place > last for place in _order_of(rows)], pa.bool_()))


def _order_of(rows: pa.Table) -> list[tuple[int, int]]:
    """Return where rows stand: those of a snapshot before all transactions, whatever their LSN."""
    return list(zip(high_of(rows).to_pylist(), low_of(rows).to_pylist(), strict=True))
