"""`current/<source>.<table>`: one row per key, equal to the source's own SELECT at the cut.

Ingest folds only complete source transactions, in commit order, so the last change of a key wins
without looking at what is stored. Columns are the source's, unchanged; columns that the source
adds later are added, dropped ones stay and are null from then on. A table with soft deletes has
`_deleted` too: its deleted rows stay, with the values that they had last.

A small table is merged in every epoch. A large one takes the epoch into its tail, and a thread
folds the tail into the base; see `tail`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.positions import Epoch
from projections.log.attempts import Attempts
from projections.log.datasets import dataset_of, schema_of
from projections.log.images import (
    COMMITTED_AT,
    EVENT_TIME,
    HI,
    HIDDEN,
    LO,
    newest_per_key,
    row_images,
)
from projections.log.layout import Lake, current_name
from projections.log.order import places_of
from projections.log.rewriting import evolve, must_evolve
from projections.log.steps import NOTHING, Evolution
from projections.log.tables import TableAt, Tables
from projections.log.unchanged import any_of, rows_of_keys
from projections.log.writer import DELETE, OP, UPSERT, ArrowWriter, Guard, reached
from projections.state.kept import KeptBases
from projections.state.key_buckets import Known, Part, gone_through
from projections.state.large import (
    SLICE_ROWS,
    ArrowStagedMerge,
    LogRows,
    StagedMerge,
    Staging,
    after,
    holds_rows,
    last_truncate,
    slices,
)
from projections.state.layers import tail_name, whole
from projections.state.merging import BaseMerge, MergeKept
from projections.state.tail import FoldPolicy, TailTables
from schemas.records import Operation
from schemas.registry import SchemaLookup

FOLDS_AT_ONCE = 4
SMALL_BYTES = 64 * 2**20
"""Rows of small tables that stay in memory from one epoch to the next, of all together."""
DELETED = "_deleted"
"""Column of tables with soft deletes: the source has the row no more."""

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
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._schemas = schemas
        self._soft = soft_deletes
        self.merge_staged = large or ArrowStagedMerge(tables)
        self._small = MergeKept(KeptBases(SMALL_BYTES), tables=tables)
        self.tails = TailTables(lake, tables, policy, beside=beside)

    def fold(
        self,
        source: str,
        table: str,
        changes: pa.Table,
        epoch: Epoch,
        evolution: Evolution = NOTHING,
    ) -> Mapping[str, TableAt]:
        """Fold log rows of one table, all of complete transactions newer than the last fold.

        `changes` has the columns of a changes log, in any order, each row once. `evolution`
        (`evolution.plan`) is what DDL among them did to the columns. Returns the
        versions of the table and of its tail, where there is one. Raises `SchemaViolation` when
        bytes do not fit the schema that the log names for them.
        """
        name = current_name(source, table)
        path = self._lake.path(name)
        guard = Guard(name, epoch)
        handle = self._tables.open(path)
        if handle is not None and self._small.reached(path, handle, guard):
            return self._at(name, handle.version(), epoch)
        evolved = bool(evolution) and self._evolve(name, path, evolution, epoch)
        truncated, rest = after_truncate(changes)
        if rest.num_rows == 0 and not truncated and not evolved:
            return {}
        soft = self._soft(source, table)
        if truncated:
            self._clear(path, name, guard, last=rest.num_rows == 0, soft=soft)
        if rest.num_rows == 0:
            handle = self._tables.open(path)
            return {} if handle is None else self._at(name, handle.version(), epoch)
        stored = partial(self._stored, name, truncated and not soft)
        images, keys = row_images(rest, self._schemas, stored=stored, evolution=evolution)
        rows = newest_per_key(images, keys)
        rows = _softly(rows, images, keys, stored) if soft else rows
        rows = rows.drop_columns([HI, LO, EVENT_TIME, COMMITTED_AT])
        if truncated and not soft:
            kept = rows.filter(pc.equal(rows[OP], UPSERT)).drop_columns([OP])
            return self._at(name, self._writer.overwrite(path, kept, guard), epoch)
        if not (truncated or evolved) and self.tails.wants(handle):
            return self.tails.add(name, rows, keys, epoch)
        self.tails.settle(name)
        return self._at(name, self._small.merge(path, rows, guard, keys), epoch)

    def fold_large(
        self,
        source: str,
        table: str,
        rows: LogRows,
        epoch: Epoch,
        evolution: Evolution = NOTHING,
    ) -> Mapping[str, TableAt]:
        """Fold log rows as `fold` does, in slices, with one commit from Spark's executors."""
        name = current_name(source, table)
        path, guard = self._lake.path(name), Guard(name, epoch)
        handle = self._tables.open(path)
        staging = Staging(self._lake, self._tables, name, epoch)
        if handle is not None and reached(handle, guard):
            return self._at(name, handle.version(), epoch)
        if evolution:
            self._evolve(name, path, evolution, epoch)
        self.tails.settle(name)
        soft = self._soft(source, table)
        cleared = last_truncate(rows)
        if cleared is not None:
            rows = rows.narrowed(after(cleared))
            self._clear(path, name, guard, last=False, soft=soft)
        gone = cleared is not None and not soft
        keys = self._stage(staging, rows, evolution, name, gone=gone, soft=soft)
        if not keys:
            self._clear(path, name, guard, last=True, soft=soft)
            handle = self._tables.open(path)
            return {} if handle is None else self._at(name, handle.version(), epoch)
        replace = gone or not holds_rows(self._tables, path)
        version = self.merge_staged(path, staging.path, guard, keys, replace=replace)
        failpoints.hit(failpoints.LARGE_AFTER_MERGE)
        staging.remove()
        return self._at(name, version, epoch)

    def _stage(
        self,
        staging: Staging,
        rows: LogRows,
        evolution: Evolution,
        name: str,
        *,
        gone: bool,
        soft: bool,
    ) -> tuple[str, ...]:
        """Stage the newest images of all rows; return the key columns, none without a row."""
        stored = partial(self._staged, staging, name, gone)

        def stage(parts: Iterable[Part]) -> tuple[str, ...]:
            keys: tuple[str, ...] = ()
            for part in parts:
                images, keys = row_images(
                    part.rows, self._schemas, stored=part.stored, evolution=evolution
                )
                newest = newest_per_key(images, keys)
                newest = _softly(newest, images, keys, part.stored) if soft else newest
                newest = newest.drop_columns([HI, LO, EVENT_TIME, COMMITTED_AT])
                staging.add(newest, keys)
                part.became(newest)
                failpoints.hit(failpoints.LARGE_AFTER_SLICE)
            return keys

        handle = None if gone else self._tables.open(self._lake.path(name))
        known = Known(base=None if handle is None else dataset_of(handle))
        return gone_through(
            [*slices(rows)],
            stage,
            known=None if evolution else known,
            stored=stored,
            anew=staging.remove,
            schemas=self._schemas,
            per_part=SLICE_ROWS,
        )

    def _staged(self, staging: Staging, name: str, gone: bool, wanted: pa.Table) -> pa.Table | None:
        known = self._stored(name, gone, wanted)
        found = staging.newest(any_of(wanted))
        if found is None:
            return known
        newest, keys = found
        if known is None:
            known = newest.schema.remove(newest.schema.get_field_index(OP)).empty_table()
        return rows_of_keys(whole(known, newest, keys), wanted)

    def fold_all(
        self,
        source: str,
        folds: Mapping[str, tuple[pa.Table | LogRows, Evolution]],
        epoch: Epoch,
    ) -> Attempts:
        """Fold several tables of one source, some at a time: most of it is waiting for files.

        `folds` has rows and evolution by table, as `fold` and `fold_large` take them; large ones
        go one by one. What fails, by table, keeps no other from being folded. Raises `LeaseLost`.
        """
        attempts = Attempts()
        started: dict[str, Future[Mapping[str, TableAt]]] = {}
        with ThreadPoolExecutor(FOLDS_AT_ONCE, thread_name_prefix="fold") as pool:
            for table, (rows, evolution) in folds.items():
                with attempts.of(table):
                    if isinstance(rows, LogRows):
                        attempts.done |= self.fold_large(source, table, rows, epoch, evolution)
                    elif len(folds) == 1:
                        attempts.done |= self.fold(source, table, rows, epoch, evolution)
                    else:
                        work = (source, table, rows, epoch, evolution)
                        started[table] = pool.submit(self.fold, *work)
        for table, each in started.items():
            with attempts.of(table):
                attempts.done |= each.result()
        return attempts

    def _evolve(self, name: str, path: str, evolution: Evolution, epoch: Epoch) -> bool:
        """Bring the rows that are there to the new columns; return whether that did anything."""
        handle, guard = self._tables.open(path), Guard(f"{name}/columns", epoch)
        steps = evolution.all_steps()
        if handle is None or not (reached(handle, guard) or must_evolve(handle, steps)):
            return False
        self.tails.settle(name)
        evolve(self._tables, path, steps, guard)
        tail = tail_name(name)
        evolve(self._tables, self._lake.path(tail), steps, Guard(f"{tail}/columns", epoch))
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

    def _stored(self, name: str, gone: bool, wanted: pa.Table) -> pa.Table | None:
        if gone:
            return None
        # The tail first: what is folded meanwhile, the base has.
        tail = self.tails.newest(name)
        known = self._tables.read(self._lake.path(name), where=any_of(wanted))
        if tail is not None and known is not None:
            known = whole(known, tail, self.tails.keys(name))
        return rows_of_keys(known, wanted)

    def _clear(self, path: str, name: str, guard: Guard, *, last: bool, soft: bool) -> None:
        """Take a TRUNCATE in; only where nothing follows it (`last`) does it carry the guard."""
        self.tails.settle(name)
        handle = self._tables.open(path)
        if handle is None:
            return
        if soft:
            self._writer.mark_all(path, DELETED, guard if last else None)
        elif last:
            self._writer.overwrite(path, schema_of(handle).empty_table(), guard)


def after_truncate(changes: pa.Table) -> tuple[bool, pa.Table]:
    """Return whether a TRUNCATE is among the rows, and the row changes that came after it."""
    is_truncate = pc.equal(changes["operation"], Operation.TRUNCATE.value)
    if not pc.any(is_truncate).as_py():
        return False, changes
    truncates = changes.filter(is_truncate)
    rows = changes.filter(pc.invert(is_truncate))
    last = max(places_of(truncates))
    return True, rows.filter(pa.array([place > last for place in places_of(rows)], pa.bool_()))


def _softly(
    rows: pa.Table,
    images: pa.Table,
    keys: tuple[str, ...],
    stored: Callable[[pa.Table], pa.Table | None],
) -> pa.Table:
    """Turn deletes into rows that are marked and keep their last values."""
    gone = pc.equal(rows[OP], DELETE)
    kept = rows.filter(pc.invert(gone))
    kept = kept.append_column(DELETED, pa.array([False] * kept.num_rows, pa.bool_()))
    deleted = rows.filter(gone)
    if deleted.num_rows == 0:
        return kept
    before = newest_per_key(images.filter(pc.equal(images[OP], UPSERT)), keys)
    wanted = deleted.select(list(keys))
    known = stored(wanted)
    names = [n for n in deleted.schema.names if n not in HIDDEN]
    last: dict[tuple[object, ...], dict[str, object]] = {}
    for source in (known, rows_of_keys(before, wanted)):
        for row in source.to_pylist() if source is not None else []:
            last[tuple(row[k] for k in keys)] = row
    places = zip(*(deleted[k].to_pylist() for k in keys), strict=True)
    found = [last.get(place, {}) for place in places]
    for name in names:
        if name not in keys:
            field = deleted.schema.field(name)
            values = pa.array([row.get(name) for row in found], field.type)
            deleted = deleted.set_column(deleted.schema.get_field_index(name), field, values)
    n = deleted.num_rows
    deleted = deleted.set_column(
        deleted.schema.get_field_index(OP), OP, pa.array([UPSERT] * n, pa.string())
    ).append_column(DELETED, pa.array([True] * n, pa.bool_()))
    return pa.concat_tables([kept, deleted.select(kept.schema.names)], promote_options="permissive")
