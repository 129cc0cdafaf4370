"""Runs projections beside ingest: each over the epochs since its own cursor.

A projection's cursor is the guard in its own table's commit; the manifest's entry is written
afterwards and rebuilt from it, so that a crash between the two repeats nothing. A projection that
fails keeps its last version and its error; the others go on, and ingest never waits for any.

One run of a projection over the epochs (C, E]:
1. Find the keys that what is new touches, and compute their rows again (`key_runs`): of a
   projection of one step. One of several steps is kept by the operators of its tree instead
   (`region_runs`).
2. Merge them into the target in one guarded commit; touched keys without a row are deleted.
3. Note the run in the manifest.
A first run, and a rebuild, compute the whole: the same rows by P6 (`whole_tables`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from kernel import failpoints
from kernel.errors import BeyondThisProcess, LeaseLost, TooLarge
from kernel.positions import CLOSED, Epoch
from lake.datasets import schema_of
from lake.file_merges import FileMerges
from lake.guarded_commits import mark_of
from lake.layout import Lake
from lake.sessions import Spark, SparkOnDemand
from lake.small_files import SmallFiles
from lake.tables import TableAt, Tables, greatest
from lake.views import DeltaFrames
from lake.writer import DELETE, OP, ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from pipeline.executor import ExecutorChoice
from projections.run.corrections import Corrections
from projections.run.database import MEMORY_BYTES, Database
from projections.run.driver_builds import DriverBuilds
from projections.run.engines import PlanSessions, SparkEngine
from projections.run.final_rows import FinalRows
from projections.run.input_rows import anything_new, repeated, versions_read
from projections.run.key_runs import changed_rows
from projections.run.meanings import Meanings
from projections.run.pending_notes import PendingNotes
from projections.run.projection_states import Run, run_of
from projections.run.region_runs import Reading, RegionRuns, shape_of
from projections.run.relations import LakeCatalog, retyped
from projections.run.result_rows import stamped
from projections.run.targets import Target
from projections.run.watermark import greater
from projections.run.whole_tables import BOUNDED_BYTES, WholeTables
from projections.sql.operators.shape import END, ORDER, PARTIAL
from projections.sql.plans.plan import Plan, Strategy

log = logging.getLogger("penstock.projections")


class Projector:
    """Runs plans over the typed and history tables of one lake."""

    def __init__(
        self,
        spark: Spark,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        *,
        bounded_bytes: int = BOUNDED_BYTES,
        state_memory_bytes: int = MEMORY_BYTES,
        brief: bool = False,
        choice: ExecutorChoice | None = None,
    ) -> None:
        """`brief`: of what takes long, a run raises `BeyondThisProcess` before it begins.

        `choice` says who makes builds.
        """
        self._brief = brief
        self._spark = SparkOnDemand.of(spark)
        self._lake = lake
        self._tables = tables
        self._manifest = manifest
        self._frames = DeltaFrames(self._spark, tables)
        merges = FileMerges()
        self._writer = ArrowWriter(tables, files=merges)
        self._files = SmallFiles()
        self._regions = RegionRuns(lake, tables, memory_bytes=state_memory_bytes, small=self._files)
        database = Database(memory_bytes=state_memory_bytes)
        self._sessions = PlanSessions(database, lake, tables, self._files, merges, brief=brief)
        self.builds = DriverBuilds(lake, tables, choice or ExecutorChoice())
        self._whole = WholeTables(
            self._spark,
            lake,
            tables,
            self._regions,
            self._sessions,
            self.builds,
            bounded_bytes=bounded_bytes,
            begins_long=self._at_length,
        )
        self._read: dict[str, dict[str, int]] = {}
        self._final = FinalRows(manifest)
        self._corrections = Corrections(lake, tables)
        self.meanings = Meanings(manifest)
        self.notes = PendingNotes(manifest)
        self._known_noted: set[str] = set()

    def keep_only(self, targets: Iterable[Target]) -> None:
        """Forget what is held in memory of all targets but these."""
        kept = {target.app_id for target in targets}
        self._regions.keep_only(kept)
        self._sessions.keep_only(kept)
        self._read = {name: read for name, read in self._read.items() if name in kept}
        self._final.keep_only(kept)
        self._known_noted &= kept
        self._manifest.forget_notes(kept)

    def take_over(self, other: Projector, app_id: str) -> None:
        """Go on with a target, with what the projector holds of it that had it so far."""
        self._regions.take_over(other._regions, app_id)
        self._sessions.take_over(other._sessions, app_id)
        read = other._read.pop(app_id, None)
        self._read = self._read | ({app_id: read} if read is not None else {})
        for each in (self, other):
            # What the other of both notes of it is read again.
            each._final.forget(app_id)
            each.meanings.forget(app_id)
            each._manifest.forget_note(app_id)

    def close(self) -> None:
        """Give back the memory of all that this projector holds still."""
        self._regions.keep_only(())
        self._sessions.close()

    def cursor(self, target: Target) -> Epoch | None:
        """Return the epoch up to which a target has taken input; None before its first run."""
        table = self._tables.open(target.path)
        done = None if table is None else mark_of(table, target.app_id)
        return Epoch(done) if done is not None else None

    def run(self, plan: Plan, target: Target, catalog: LakeCatalog, up_to: Epoch) -> Run:
        """Take in everything up to an epoch that typed and history tables have reached.

        Raises `LeaseLost` when another generation has taken this one's place.
        """
        started = time.perf_counter()
        cursor = self.cursor(target)
        if cursor == CLOSED:
            raise LeaseLost(
                f"{target.app_id} was replaced by another generation of {target.name}",
                remedy=f"Finish what was begun: penstock replay status, then penstock replay swap "
                f"{plan.name}",
            )
        self._note_again(plan, target, catalog, cursor)
        others = versions_read(self._lake, self._tables, plan, target.versions)
        # Rows that went leave no epoch behind, nor does the swap of a generation.
        moved = bool(others) and self._read.get(target.app_id) != others
        again = cursor == up_to and moved
        if cursor is not None and cursor >= up_to and not again:
            run = self._unchanged(plan, target, catalog, cursor, started)
            if cursor == up_to:
                self._note(plan, target, run)
            return run
        half = self._corrections.begun(plan, target)
        if cursor is not None and half is not None and cursor < half < up_to:
            # Its corrections are written, its rows are not.
            run = self._taken_in(plan, target, catalog, cursor, Guard(target.app_id, half))
            self._note(plan, target, run)
            cursor = half
        moved = moved or self._final.passes(plan, target, catalog, up_to)
        if not (moved or anything_new(self._lake, self._tables, plan, catalog, cursor)):
            # Nothing to commit: the table at this version is also the one of `up_to`.
            run = self._unchanged(plan, target, catalog, up_to, started)
            self._note(plan, target, run)
            return run
        run = self._taken_in(plan, target, catalog, cursor, Guard(target.app_id, up_to, again))
        failpoints.hit(failpoints.PROJECTION_AFTER_COMMIT)
        # The same may have been committed by a process that died before its note.
        self._note(plan, target, run, unsure=again and target.app_id not in self._read)
        self._read[target.app_id] = others
        return run

    def _note_again(
        self, plan: Plan, target: Target, catalog: LakeCatalog, cursor: Epoch | None
    ) -> None:
        """Note a commit that a process left without its note when it died.

        Of final rows each run looks for one: their watermark follows from the one before, and is
        none that has not passed its rows, as later runs ask what had ended at it.
        """
        table = self._tables.open(target.path) if cursor else None
        if (
            table is None
            or not cursor
            or not (plan.final or target.app_id not in self._known_noted)
        ):
            return
        self._known_noted.add(target.app_id)
        noted = self._manifest.noted(target.app_id)
        if noted is None or noted < cursor:
            run = self._nothing(target, cursor, time.perf_counter())
            if plan.final:
                ended = self._final.watermark(plan, target, catalog, cursor)
                run = replace(run, ended_us=greater(ended, greatest(table, END)))
            self._note(plan, target, run)

    def computed(self, plan: Plan, target: Target) -> None:
        """Take note that a target's rows were computed by this process, as `whole` gives them."""
        others = versions_read(self._lake, self._tables, plan, target.versions)
        self._read[target.app_id] = others

    def begun(self, plan: Plan, target: Target, epoch: Epoch, ended_us: int | None) -> None:
        """Note of a target that its rows are those that another one had at an epoch."""
        run = self._nothing(target, epoch, time.perf_counter())
        self._note(plan, target, replace(run, ended_us=ended_us))

    def _taken_in(
        self, plan: Plan, target: Target, catalog: LakeCatalog, cursor: Epoch | None, guard: Guard
    ) -> Run:
        """Commit what a target lacks of an epoch."""
        started = time.perf_counter()
        ended = self._final.watermark(plan, target, catalog, guard.epoch)
        changes = self._mergeable(plan, target, catalog, cursor, guard.epoch)
        if changes is None:
            reading = self.reading(plan, target, catalog, guard.epoch)
            version, rows = self._whole.write(reading, guard)
            run = run_of(TableAt(version=version, as_of_epoch=guard.epoch), rows, 0, True, started)
            return replace(run, ended_us=ended)
        before = self._final.before(plan, target, guard.epoch)
        last = self._regions.last if plan.final else None
        self._corrections.write(plan, target, catalog, last, before, cursor, guard.epoch)
        failpoints.hit(failpoints.PROJECTION_BEFORE_COMMIT)
        if guard.again and changes.num_rows == 0:
            run = self._nothing(target, guard.epoch, started)
        else:
            version = self._writer.merge(
                target.path,
                changes,
                guard,
                keys=plan.key,
                newer=ORDER if plan.strategy is Strategy.NEWEST else (),
                twice=repeated,
            )
            gone = pc.sum(pc.equal(changes[OP], DELETE)).as_py() or 0
            table = TableAt(version=version, as_of_epoch=guard.epoch)
            run = run_of(table, changes.num_rows - gone, gone, False, started)
        self._regions.committed(target.app_id, run.table.version)
        return self._with_state(run, target, ended)

    def _nothing(self, target: Target, epoch: Epoch, started: float) -> Run:
        """Return a run that changed nothing."""
        table = self._tables.open(target.path)
        version = table.version() if table is not None else 0
        return run_of(TableAt(version=version, as_of_epoch=epoch), 0, 0, False, started)

    def _unchanged(
        self, plan: Plan, target: Target, catalog: LakeCatalog, epoch: Epoch, started: float
    ) -> Run:
        """Return a run that changed nothing, and what waits all the same."""
        ended = self._final.watermark(plan, target, catalog, epoch)
        return self._with_state(self._nothing(target, epoch, started), target, ended)

    def _with_state(self, run: Run, target: Target, ended_us: int | None) -> Run:
        waiting = self._regions.waiting(target.app_id)
        held = self._regions.state_bytes(target.app_id)
        state_bytes = self._sessions.state_bytes(target.app_id) if held is None else held
        return replace(run, ended_us=ended_us, waiting=waiting, state_bytes=state_bytes)

    def _note(self, plan: Plan, target: Target, run: Run, *, unsure: bool = False) -> None:
        epoch = Epoch(run.table.as_of_epoch)
        noted = self._manifest.noted(target.app_id)
        changed = run.rows + run.deleted > 0
        if unsure and not changed and noted == epoch:
            last = self._manifest.history_of(target.app_id)[-1:]
            changed = [each.tables[target.name].version for each in last] != [run.table.version]
        done = Projected(
            epoch=epoch,
            name=target.app_id,
            tables={target.name: run.table},
            counts={"rows": run.rows, "deleted": run.deleted}
            | self._final.counts(target, run.ended_us),
            timings_ms={"run": run.milliseconds},
            meaning=self.meanings.of(plan, target, whole=run.whole),
        )
        # Rows of an epoch that was noted changed with those of another projection.
        self.notes.add(done, again=changed and noted is not None and noted >= epoch)

    def whole(self, plan: Plan, target: Target, catalog: LakeCatalog, up_to: Epoch) -> DataFrame:
        """Return all rows as they are at an epoch, as a frame that is computed when it is used."""
        return self._whole.frame(self.reading(plan, target, catalog, up_to), up_to)

    def _mergeable(
        self, plan: Plan, target: Target, catalog: LakeCatalog, after: Epoch | None, up_to: Epoch
    ) -> pa.Table | None:
        """Return what a merge takes; None where only the whole has the table's columns right.

        What the inputs' columns became, as an INT a DOUBLE, the stored column may not hold.
        """
        table = self._tables.open(target.path)
        if after is None or table is None or plan.strategy is Strategy.WHOLE:
            return None
        stored = schema_of(table)
        if plan.strategy is Strategy.REGIONS and retyped(stored, shape_of(plan.tree)):
            return None
        hidden = {each.name for each in plan.tree.columns if each.name.startswith(PARTIAL)}
        held = {name for name in stored.names if name.startswith(PARTIAL)}
        shown = plan.adding is None or not (hidden or plan.ordered)
        unlike = hidden != held or not (shown or self.meanings.same(plan, target))
        if unlike or plan.ordered != ({*ORDER} <= {*stored.names}):
            # Another version of the software kept it, by other means: what is hidden in its rows
            # may be none of this plan's, or NULL as if there were nothing to add to.
            return None
        try:
            changes = self._changes(plan, target, catalog, after, up_to)
        except (BeyondThisProcess, TooLarge) as error:
            self._at_length()
            if isinstance(error, TooLarge):
                # As of one key with more rows than fit: it goes on, if slower, until there is room.
                log.warning(
                    "%s is computed as a whole: %s (%s)", target.app_id, error, error.remedy
                )
            return None
        return None if retyped(stored, changes.schema) else changes

    def _changes(
        self, plan: Plan, target: Target, catalog: LakeCatalog, after: Epoch, up_to: Epoch
    ) -> pa.Table:
        reading = self.reading(plan, target, catalog, up_to)
        if plan.strategy is Strategy.REGIONS:
            if self._brief and not self._regions.holds(target.app_id):
                self._at_length(not self._whole.is_small(plan, catalog))
            return stamped(self._regions.changes(reading, up_to), up_to)
        if plan.small:
            with suppress(BeyondThisProcess), self._sessions.engine(reading, up_to) as engine:
                return stamped(changed_rows(engine, plan, after, up_to), up_to)
        self._at_length()
        spark = SparkEngine(self._spark.session, self._lake, self._tables, self._frames, reading)
        return stamped(changed_rows(spark, plan, after, up_to), up_to)

    def _at_length(self, much: bool = True) -> None:
        """Refuse what takes long, where runs are to be brief. Raises `BeyondThisProcess`."""
        if self._brief and much:
            raise BeyondThisProcess("the run takes long, and others would wait for it")

    def reading(self, plan: Plan, target: Target, catalog: LakeCatalog, up_to: Epoch) -> Reading:
        """Return what a run up to an epoch reads."""
        return Reading(
            plan=plan,
            catalog=catalog,
            app_id=target.app_id,
            path=target.path,
            include_late=target.include_late,
            versions=dict(target.versions),
            watermark_us=self._final.watermark(plan, target, catalog, up_to),
        )
