"""Installs staged rows: later changes folded over them, then the table swapped, or a range mended.

    Install -> catch_up (generation: rows as of the cut) -> swap | mend -> TableAt

Ingest calls it, in the epoch to which the install is bound. Each commit is guarded: after a crash
the same call finds what is done. Readers of the table see one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import create_table_with_add_actions

from kernel import failpoints
from kernel.errors import InstallDeclined
from kernel.positions import Epoch
from lake.adoption import adopted, put_in_place_of_all
from lake.datasets import dataset_of, scanner_of, schema_of
from lake.guarded_commits import committing, guarded
from lake.layout import Lake, current_name
from lake.table_columns import SCHEMA_TABLE
from lake.table_settings import TABLE_SETTINGS
from lake.tables import TableAt, Tables, columns_guard
from lake.writer import DELETE, UPSERT, ArrowWriter, Guard, reached, with_op
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.moved_keys import moved_unseen
from pipeline.current.newest_images import DELETED
from pipeline.current.tables import CurrentTables
from pipeline.ddl.held_tables import Hold
from pipeline.ddl.steps import Evolution
from pipeline.ddl.table_plans import SchemaFollower, evolved_since
from pipeline.ddl.unchanged_values import rows_without_keys
from pipeline.installs.install_book import Install
from pipeline.installs.staging import GenerationLake, generation_folder, generation_lake
from pipeline.installs.vanished_keys import Vanished
from pipeline.log.committed_changes import CommittedChanges, EndsBetween, Slice
from pipeline.log.large_folds import slices
from pipeline.order import BEFORE_ALL
from schemas.key_ranges import KeyRange, lake_filter, ordered_key
from schemas.pg_types import lake_type
from schemas.registry import SchemaLookup

MOST_MENDED_ROWS = 500_000
"""Rows of a range that is mended: ingest holds them in memory, those of the lake and the new."""
TOO_LARGE = "too many rows to be replaced as a range"
"""Begins the reason of an install that is declined for its size: again, it would be declined too.
"""
_BEFORE_ALL = (-1, -1)
_NO_TAIL = FoldPolicy(direct_bytes=2**62)


def mend_guard(id_: str) -> str:
    """Return the app id under which an install mends a range of a table."""
    return f"install/{id_}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Brings installs into `current` tables."""

    lake: Lake
    tables: Tables
    schemas: SchemaLookup
    current: CurrentTables
    most_mended: int = MOST_MENDED_ROWS

    def replace(
        self,
        install: Install,
        ends: EndsBetween,
        epoch: Epoch,
        held: Hold | None = None,
        *,
        stands_at: int = 0,
    ) -> dict[str, TableAt]:
        """Make the staged rows, with the changes of `ends`, the table; one commit.

        The table has everything of the epoch then, as if it had been folded. `held` says since when
        it stands still, if it does; else it is as of the cut `stands_at`. `ends` begin at the first
        LSN of the chunks. Raises `InstallDeclined` when DDL behind them cannot be followed, or when
        chunks of several LSNs cannot be brought together.
        """
        name = current_name(install.source, install.table)
        path, guard = self.lake.path(name), Guard(name, epoch)
        stable = self.tables.open(path)
        if not reached(stable, guard):
            self.current.settle(install.source, install.table)
            stable = self.tables.open(path)
            built = self._built(install)
            stands = Hold(order=(stands_at, BEFORE_ALL), reason="it was not folded yet")
            gone = Vanished(
                self.lake,
                self.tables,
                self.schemas,
                install,
                called={}
                if stable is None
                else self._called(install, held or stands, stable, ends),
                since=self._evolved(install, ends),
            )
            self._bring(install, ends, touched=None if stable is None else gone.touched)
            built.update_incremental()
            if stable is not None:
                soft = self.current.keeps_deleted(install.source, install.table)
                gone.note(stable, built, soft=soft)
                built.update_incremental()
            failpoints.hit(failpoints.INSTALL_BEFORE_SWAP)
            _swap(path, stable, built, install, guard)
            self.tables.forget(path)
            failpoints.hit(failpoints.INSTALL_AFTER_SWAP)
        done = self.tables.open(path)
        assert done is not None, "the table was just written"
        at = {name: TableAt(version=done.version(), as_of_epoch=epoch)}
        return at | self.current.tails.clear(name, epoch)

    def _called(
        self, install: Install, stands: Hold, stable: DeltaTable, ends: EndsBetween
    ) -> dict[str, str]:
        """Return the names of now of the table's columns, where they were other ones."""
        stored = schema_of(stable)
        follower = SchemaFollower(self.lake, self.tables, self.schemas)
        since = follower.since(install.source, install.table, stands, ends.up_to, stored)
        names = zip(stored.names, since.names_after(stored.names, _BEFORE_ALL), strict=True)
        return {old: new for old, new in names if new != old}

    def _evolved(self, install: Install, ends: EndsBetween) -> Evolution:
        """Return what DDL behind the first place that was read did to the columns of a copy."""
        log = CommittedChanges(self.lake, self.tables)
        behind = (log.last_end(install.source, ends.after), BEFORE_ALL), 0
        columns = pa.schema([(each.lake_name, lake_type(each)) for each in install.columns])
        of = install.source, install.table
        return evolved_since(self.lake, self.tables, *of, behind, ends.up_to, columns)

    def _bring(
        self, install: Install, ends: EndsBetween, touched: Callable[[pa.Table], None] | None
    ) -> None:
        """Fold `ends` over chunks of one LSN, or of several: a copy that was resumed.

        An image says all of its row, so folding over a row what it has seen already ends in the
        same row, as long as everything behind the first LSN is folded. Not so where an image is not
        whole: a key that moved with a large value unsent, a delete that leaves a marked row.
        """
        first, last = min(install.lsns), max(install.lsns)
        if first < last:
            if self.current.keeps_deleted(install.source, install.table):
                raise InstallDeclined("the copy was interrupted, and deleted rows are to be kept")
            between = replace(ends, after=first, up_to=last)
            self.catch_up(install, between, touched=touched, whole=False)
        self.catch_up(install, replace(ends, after=last), touched=touched)

    def mend(self, install: Install, ends: EndsBetween, epoch: Epoch) -> dict[str, TableAt]:
        """Replace a range of keys by the staged rows, with the changes of `ends`; one commit.

        Call it after the epoch's own changes were folded. Raises `InstallDeclined` when changes
        since then do not tell the whole rows, and for a range of more than `most_mended` rows: an
        ingest that is killed for its memory would repeat the epoch, with the same install.
        """
        self._refuse_large(install, install.rows)
        name = current_name(install.source, install.table)
        path, guard = self.lake.path(name), Guard(mend_guard(install.id), epoch)
        stable = self.tables.open(path)
        if stable is None:
            raise InstallDeclined(f"{name} is not there")
        if not reached(stable, guard):
            self.current.settle(install.source, install.table)
            stable.update_incremental()
            where = _range_filter(install, schema_of(stable))
            self._refuse_large(install, scanner_of(dataset_of(stable), where).count_rows())
            built = self._built(install)
            self.catch_up(install, ends, whole=False)
            rows = self.tables.read(generation_root(self.lake, install), where=where)
            known = self.tables.read(path, where=where)
            assert rows is not None
            assert known is not None
            gone = _gone(rows, known, install.keys)
            Vanished(self.lake, self.tables, self.schemas, install).keep(
                gone.select(list(install.keys))
            )
            changed = _difference(rows, gone)
            failpoints.hit(failpoints.INSTALL_BEFORE_SWAP)
            ArrowWriter(self.tables).merge(path, changed, guard, keys=install.keys)
            built.update_incremental()
            failpoints.hit(failpoints.INSTALL_AFTER_SWAP)
        stable.update_incremental()
        self.current.tails.named(name)
        return {name: TableAt(version=stable.version(), as_of_epoch=epoch)}

    def catch_up(
        self,
        install: Install,
        ends: EndsBetween,
        *,
        touched: Callable[[pa.Table], None] | None = None,
        whole: bool = True,
    ) -> None:
        """Fold the changes of transactions in `ends` into the generation, slice by slice.

        `touched` is told the log rows of each slice. Not `whole`: the generation has not all rows
        as of where `ends` begin, and a key that moved may bring values that it lacks. That, and
        DDL, is `InstallDeclined`.
        """
        nested = self._nested(install)
        current = CurrentTables(
            nested,
            self.tables,
            self.schemas,
            soft_deletes=self.current.keeps_deleted,
            policy=_NO_TAIL,
            large=self.current.merge_staged,
            executors=self.current.executors,
        )
        follower = SchemaFollower(self.lake, self.tables, self.schemas)
        log = CommittedChanges(self.lake, self.tables, self.current.executors)
        for slice_ in log.slices(install.source, install.table, ends):
            looked_at = touched is not None or not whole
            for rows in _parts(slice_, install.table) if looked_at else ():
                if touched is not None:
                    touched(rows)
                if not whole and (SCHEMA_TABLE in slice_.rows or moved_unseen(rows, self.schemas)):
                    raise InstallDeclined("a key moved, or DDL came, while the range was read")
            plans = follower.plans(
                install.source,
                slice_.rows,
                slice_.ends,
                partial(self._columns_before, install, slice_.last_end),
                from_epoch=ends.first_epoch,
            )
            if install.table not in plans:
                continue
            own, planned = plans[install.table]
            if planned.hold is not None:
                raise InstallDeclined(planned.hold.reason)
            if own.num_rows or planned.evolution:
                place = install.source, install.table
                epoch, evolution = Epoch(slice_.last_end), planned.evolution
                if slice_.large is None:
                    current.fold(*place, own, epoch, evolution)
                else:
                    current.fold_large(*place, slice_.large, epoch, evolution)

    def _columns_before(self, install: Install, lsn: int, table: str) -> pa.Schema | None:
        """Return the generation's columns as of before a slice, also when it is folded again."""
        if table != install.table:
            return None
        root = generation_root(self.lake, install)
        name = current_name(install.source, install.table)
        handle = self.tables.open(root)
        assert handle is not None, "the generation was staged"
        version = handle.version()
        while handle.transaction_version(columns_guard(name)) == lsn and version > 0:
            version -= 1
            handle = DeltaTable(root, version=version)
        return schema_of(handle)

    def _refuse_large(self, install: Install, rows: int) -> None:
        if rows > self.most_mended:
            raise InstallDeclined(
                f"{TOO_LARGE}: {rows}, and {self.most_mended} are the most; copy the table instead:"
                f" penstock source resnapshot {install.source} --tables {install.table} --yes"
            )

    def _nested(self, install: Install) -> GenerationLake:
        return generation_lake(self.lake, install.source, install.table, install.id)

    def _built(self, install: Install) -> DeltaTable:
        built = self.tables.open(generation_root(self.lake, install))
        if built is None:
            raise InstallDeclined(f"the staged rows of {install.id} are gone")
        return built


def _parts(slice_: Slice, table: str) -> Iterator[pa.Table]:
    """Read a table's rows, those of a large transaction part by part."""
    if slice_.large is None:
        yield slice_.rows[table]
    else:
        yield from (part.read() for part in slices(slice_.large))


def generation_root(lake: Lake, install: Install) -> str:
    """Return where an install's generation lies."""
    return generation_lake(lake, install.source, install.table, install.id).root


def _swap(
    path: str, stable: DeltaTable | None, built: DeltaTable, install: Install, guard: Guard
) -> None:
    adds = adopted(built, generation_folder(install.id))
    told = {"penstock.install": install.id}
    # On top of the version that was read, or not at all: see `replay.generations`.
    properties = guarded(guard.app_id, guard.epoch, retries=0, metadata=told)
    with committing(stable, guard.app_id, guard.epoch, f"the swap of {path}"):
        if stable is None:
            create_table_with_add_actions(
                path,
                built.schema(),
                adds,
                mode="error",
                configuration=dict(TABLE_SETTINGS),
                commit_properties=properties,
            )
        else:
            put_in_place_of_all(stable, adds, built.schema(), properties)


def _range_filter(install: Install, schema: pa.Schema) -> pc.Expression | None:
    by_name = {column.lake_name: column for column in install.columns}
    key = ordered_key([by_name[name] for name in install.keys])
    return lake_filter(KeyRange(low=install.low, high=install.high), key or (), schema)


def _gone(rows: pa.Table, known: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Return the known rows whose keys are not among `rows`, without those marked as deleted."""
    gone = rows_without_keys(known, rows.select(list(keys)))
    assert gone is not None
    if DELETED in gone.schema.names:
        gone = gone.filter(pc.invert(pc.fill_null(gone[DELETED], False)))
    return gone


def _difference(rows: pa.Table, gone: pa.Table) -> pa.Table:
    """Return upserts of all rows, and what becomes of those that are gone.

    They are deleted or, in a table that keeps deleted rows, marked with their last values.
    """
    n, kept = gone.num_rows, gone.schema.get_field_index(DELETED)
    if kept >= 0:
        gone = gone.set_column(kept, DELETED, pa.array([True] * n, pa.bool_()))
    op = DELETE if kept < 0 else UPSERT
    return pa.concat_tables(
        [with_op(rows, UPSERT), with_op(gone, op)], promote_options="permissive"
    )
