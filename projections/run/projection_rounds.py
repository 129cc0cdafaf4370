"""The loop that keeps derived tables and projections up with ingest, each at its own freshness."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from kernel.errors import BeyondThisProcess
from kernel.loops import passed
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.executor_tasks import Executors
from lake.layout import Lake
from lake.sessions import follow, session_beside
from lake.tables import Tables
from lake.upkeep.compaction import LargeCompaction, compact
from pipeline.commit.epoch_memory import EpochMemory
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed
from pipeline.executor import ExecutorChoice
from pipeline.history.tables import HistoryTables
from pipeline.typed.tables import TypedTables
from projections.run.catalog import LIVE, PAUSED, DeployedCatalog, Deployment
from projections.run.database import MEMORY_BYTES
from projections.run.derived_holds import held_input
from projections.run.derived_tables import Brought, DerivedTables
from projections.run.due_projections import DueProjections
from projections.run.due_triggers import Triggering
from projections.run.event_fields import EventFields
from projections.run.projection_states import (
    ProjectionState,
    Run,
    final_rows_wait,
    held_documents,
)
from projections.run.projector import Projector
from projections.run.relations import LATENESS, LakeCatalog
from projections.run.round_plans import RoundPlans
from projections.run.runs_beside import RoundOfProjections, RunsBeside
from projections.run.step_budget import within_budget
from projections.run.targets import live_target
from projections.sql.plans.plan import InputKind, Plan
from projections.sql.statements.lineage import in_order, read_by, with_what_they_read
from schemas.registry import SchemaRegistry

VERSIONS = (InputKind.HISTORY, InputKind.LATEST)
COMPACT_EVERY = 64
TYPED_EVERY_S = 2.0
"""Pause between two runs of typed tables while neither a projection nor a history reads them."""


class Projecting:
    """Brings typed and history tables forward, then runs the projections that are due."""

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        registry: SchemaRegistry,
        *,
        on_run: Callable[[str, Run], None],
        state_memory_bytes: int = MEMORY_BYTES,
        choice: ExecutorChoice | None = None,
        executors: Executors | None = None,
        large: LargeCompaction | None = None,
        lateness: timedelta = LATENESS,
        memory: EpochMemory | None = None,
        beside: RunsBeside | None = None,
    ) -> None:
        """`memory` has what ingest, in this process, has committed; `choice` says who computes.

        With `beside`, what takes long is computed there, and no round waits for it.
        """
        # Handles and temporary views of its own: ingest works in another thread.
        tables = Tables()
        choice = choice or ExecutorChoice()
        session = self._session = session_beside(spark)
        self._lake, self._tables = lake, tables
        self._manifest = Manifest(lake, tables, memory=memory)
        self._deployed = DeployedCatalog(lake, tables)
        self._deployment: Deployment | None = None
        self._beside = beside or RunsBeside(most=0)
        self._projector_of = partial(
            Projector, lake=lake, state_memory_bytes=state_memory_bytes, choice=choice
        )
        self._projector = self._projector_of(
            session, tables=tables, manifest=self._manifest, brief=self._beside.most > 0
        )
        self._derived = DerivedTables(
            lake,
            tables,
            self._manifest,
            TypedTables(lake, tables, registry, executors, recent=self._manifest.memory.logged),
            HistoryTables(session, lake, tables, driver_bytes=choice.history_bytes),
            note=self._projector.notes.add,
        )
        self._on_run = on_run
        self._large, self._lateness = large, lateness
        self._fields = EventFields(registry)
        self._triggering = Triggering(lake, tables)
        self._settled = (-2, -2)
        self._steps, self._typed_at = 0, 0.0
        self.states: dict[str, ProjectionState] = {}
        self._round_plans = RoundPlans(self.states)
        self._due = DueProjections(self.states)
        self._busy = False

    def follow(self, spark: SparkSession) -> None:
        """Make shuffles as large as those of ingest, where executors came or went."""
        follow(self._session, spark)

    def held(self) -> dict[str, dict[str, object]]:
        """Return the typed and history tables that stand still: why, and the next command."""
        return held_documents(self._derived)

    def documents(self) -> dict[str, dict[str, object]]:
        """Return what health and status show of each projection."""
        return {
            state.name: state.document() | {"beside_s": self._beside.since(state.name)}
            for state in [*self.states.values()]
        }

    def step(self) -> bool:
        """Do what is due; return whether anything was done. Errors of one projection stay its own.

        Raises what derived tables raise: without them no projection can go on.
        """
        busy, self._busy = self._busy, False
        last = self._manifest.last()
        if last is None:
            return False
        seen = (int(last.epoch), self._deployed.version())
        if seen == self._settled and not self._derived.due() and not self._beside.any_ended():
            return False
        self._due.begin(busy=busy)
        # Derived tables are noted with the first of the projections that are computed from them.
        with self._tables.looked_at_once(), self._projector.notes.together():
            self._busy = self._step(seen, last)
        if self._steps >= COMPACT_EVERY:
            self._compact()
        return self._busy

    def pause_s(self, most: float) -> float:
        """Return for how many seconds no projection becomes due, `most` at most."""
        return self._due.pause_s(most)

    def _step(self, seen: tuple[int, int], last: Committed) -> bool:
        deployment = self._current_deployment()
        self._take_back(deployment)
        before = brought = self._derived.at()
        up_to = within_budget(self._manifest, brought.epoch, last)
        catalog = self._catalog(deployment, brought)
        plans = self._round_plans.of(deployment, catalog, before.epoch)
        joined = [i.name for made in plans.values() for i in made.inputs if i.kind in VERSIONS]
        histories = {
            history.name: history
            for name in (*deployment.histories(), *joined)
            if (history := catalog.history_of(name)) is not None
        }
        read = bool(plans or histories) or up_to.epoch < last.epoch
        behind = up_to.epoch > brought.epoch and (read or self._typed_due())
        if behind or self._derived.lacks(brought, histories.values()) or self._derived.due():
            self._steps += 1
            anew = self._derived.topics.declared_anew(brought.held)
            brought = self._derived.bring(brought, up_to, list(histories.values()))
            if anew:
                # The plans are of columns that are no more: the next step makes others.
                return True
            catalog = self._catalog(deployment, brought)
        ran, reads = False, {name: read_by(made) for name, made in plans.items()}
        # Whoever is due is computed from what others have at this very epoch: they run before.
        waits = self._waiting(plans, reads, deployment, catalog, brought.epoch)
        wanted = self._wanted(plans, deployment, brought.epoch)
        due = with_what_they_read(wanted | self._beside.readers(wanted, reads), reads)
        first = with_what_they_read(self._due.first(due, self._freshness(plans, deployment)), reads)
        order = [name for name in in_order(reads) if name in due]
        for names in ([n for n in order if n in first], [n for n in order if n not in first]):
            for name in names:
                ran |= self._run(name, plans[name], deployment, catalog, brought)
                self._seen(self._projector.notes.write_due())
            self._projector.notes.write()
            self._seen(True)
        at = RoundOfProjections(self._lake, plans, reads, deployment, brought, self.states, waits)
        self._beside.let_leave(at, self._projector, self._alone, self._tables)
        # Over a table that is new there may be histories and projections; a trigger counts rows.
        done = not (behind or ran) or not (waits or brought.differs(before))
        if done and brought.epoch == last.epoch and self._all_at(brought.epoch, deployment):
            # Nothing can change before there is another epoch, or the catalog changes.
            self._settled = seen
        return behind or ran

    def _seen(self, noted: bool) -> None:
        """Let what was done be told once it can be seen by name."""
        for state in self.states.values() if noted else ():
            state.noted = state.epoch
        if noted:
            self._due.seen()

    def _wanted(self, plans: Collection[str], deployment: Deployment, up_to: Epoch) -> set[str]:
        """Return the projections that this round is to run, but for those that they read."""
        freshness = self._freshness(plans, deployment)
        due = {name for name in freshness if self._due.is_due(name)}
        return self._due.chosen(due, up_to, freshness)

    def _freshness(self, plans: Collection[str], deployment: Deployment) -> dict[str, timedelta]:
        """Return that of the projections that rounds run just now: for no other one room is made.

        None is paused, claimed, computed beside, or waits for a trigger.
        """
        able = (n for n in plans if self._is_run(n, deployment) and n not in self._beside)
        return {n: deployment.declared[n].freshness for n in able if not self.states[n].trigger}

    def _is_run(self, name: str, deployment: Deployment) -> bool:
        status = deployment.projections[name][0].status
        return status == LIVE and not deployment.claimed(name)

    def _waiting(
        self,
        plans: Mapping[str, Plan],
        reads: Mapping[str, Collection[str]],
        deployment: Deployment,
        catalog: LakeCatalog,
        up_to: Epoch,
    ) -> dict[str, str]:
        """Say of projections that wait for a trigger what for, here and in their state."""
        declared = deployment.declared
        triggers = {n: t for n in plans if (t := declared[n].trigger) is not None}
        cursors: dict[str, Epoch] = {}
        for name in triggers:
            target = live_target(self._lake, name, deployment.projections[name][0].generation)
            noted = self._manifest.noted(target.app_id)
            if noted is not None and self._projector.cursor(target) is not None:
                cursors[name] = Epoch(max(noted, self.states[name].epoch))
        waits = self._triggering.waiting(plans, reads, triggers, cursors, catalog, up_to)
        for name in plans:
            state = self.states[name]
            state.trigger = waits.get(name)
            if state.first_row is None:  # Else the epoch of the run that looked for it counts.
                state.asked = up_to
        return waits

    def _typed_due(self) -> bool:
        """Say whether to bring typed tables forward that nothing reads just now: now and then."""
        if time.monotonic() < self._typed_at:
            return False
        self._typed_at = time.monotonic() + TYPED_EVERY_S
        return True

    def _compact(self) -> None:
        """Put small files of what rounds write together: what came can be seen by now."""
        self._steps, deployment = 0, self._current_deployment()
        others = [n for n in deployment.projections if deployment.claimed(n) or n in self._beside]
        own = deployment.projections.keys() - {*others}
        targets = [f"{kind}/{name}" for name in own for kind in ("projection", "corrections")]
        for name in (*self._derived.at_last().tables, *targets):
            # A table that cannot be opened is held where it is written, and stops no other.
            with Attempts().of(name):
                compact(self._lake, self._tables, [name], self._large)

    def _all_at(self, epoch: Epoch, deployment: Deployment) -> bool:
        return all(
            self.states[name].epoch >= epoch
            or self.states[name].held
            or self.states[name].rests(epoch)
            or name in self._beside
            for name, (entry, _) in deployment.projections.items()
            if entry.status == LIVE
        )

    def _run(
        self,
        name: str,
        made: Plan,
        deployment: Deployment,
        catalog: LakeCatalog,
        brought: Brought,
    ) -> bool:
        up_to = brought.epoch
        entry, decl = deployment.projections[name]
        passed(f"projection {name}")
        state = self.states.setdefault(name, ProjectionState(name))
        if not self._is_run(name, deployment) or state.epoch >= up_to or name in self._beside:
            return False
        target = live_target(self._lake, name, entry.generation, include_late=entry.include_late)
        self._due.begun(name, decl.freshness)
        held = held_input(made, brought.held)
        state.held = held is not None
        if held is not None:
            # What its input lacks would be missed for good: rows come under the epochs they missed.
            state.first_row, state.error = None, held
            return False
        behind = self._behind(made, deployment, up_to)
        if behind is not None:
            state.held, state.first_row, state.error = behind
            state.asked = up_to
            return False
        if state.slow and not self._beside.full:
            self._beside.wanted.add(name)
            return False
        try:
            run = self._projector.run(made, target, catalog, up_to)
        except Exception as error:
            if isinstance(error, BeyondThisProcess) and self._beside.most:
                self._beside.wanted.add(name)
            else:
                state.stops(error, asked=up_to)
            return False
        self._done(name, made, run, up_to)
        return True

    def _done(self, name: str, made: Plan, run: Run, up_to: Epoch) -> None:
        """Take note of a run."""
        state = self.states[name]
        state.epoch, state.last_ms = up_to, run.milliseconds
        state.error = state.first_row = None
        state.waits = final_rows_wait(run) if made.final else None
        state.slow = run.milliseconds > self._beside.slow_ms and not run.whole
        state.runs, state.state_bytes = state.runs + 1, run.state_bytes
        self._triggering.written(name)
        self._on_run(name, run)

    def _take_back(self, deployment: Deployment) -> None:
        """Go on with projections that were computed beside the rounds."""
        for each in self._beside.take_back(self._projector, deployment, self._lake):
            state = self.states.setdefault(each.run.name, ProjectionState(each.run.name))
            if each.done is not None:
                self._done(each.run.name, each.run.plan, each.done, each.run.up_to)
                state.noted = state.epoch
            elif each.error is not None:
                state.stops(each.error, asked=each.run.up_to)

    def _alone(self, at: RoundOfProjections) -> tuple[Projector, LakeCatalog]:
        """Return what computes projections in another thread, and what it looks up."""
        tables = Tables()
        manifest = Manifest(self._lake, tables, memory=self._manifest.memory)
        session = session_beside(self._session)
        projector = self._projector_of(session, tables=tables, manifest=manifest)
        return projector, self._catalog(at.deployment, at.brought, tables)

    def _behind(
        self, made: Plan, deployment: Deployment, up_to: Epoch
    ) -> tuple[bool, str | None, str | None] | None:
        """Say why a projection that a plan reads is not at an epoch: if that will last, and the
        first row that it waits for or an error. Of one that is replaced just now nothing is said.
        """
        for name in read_by(made):
            other = self.states.get(name) or ProjectionState(name)
            if other.epoch >= up_to:
                continue
            if deployment.claimed(name) or name in self._beside:
                return False, None, None
            entry = deployment.projections.get(name)
            if entry is not None and entry[0].status == PAUSED:
                fix = f"penstock projection resume {name}"
                return True, None, f"waits for the projection {name}, which is paused | fix: {fix}"
            return other.held, *other.told_to_readers(up_to)
        return None

    def _current_deployment(self) -> Deployment:
        known = self._deployment
        if known is not None and known.version == self._deployed.version():
            return known
        self._deployment = now = self._deployed.deployment()
        if known is not None and known.changed == now.changed:
            return now  # A claim, which changes nothing for the others.
        self._round_plans.keep_only(now.projections)
        gone = set(self.states) - set(now.generations)
        for name in gone:
            del self.states[name]
            self._triggering.forget(name)
        for state in self.states.values():
            # Another query may find rows where the one before had none.
            state.epoch, state.due_at, state.asked = 0, 0.0, 0
        self._projector.keep_only(
            live_target(self._lake, name, entry.generation)
            for name, (entry, _) in now.projections.items()
            if entry.status == LIVE
        )
        self._derived.try_now()
        return now

    def _catalog(
        self, deployment: Deployment, brought: Brought, tables: Tables | None = None
    ) -> LakeCatalog:
        return LakeCatalog(
            self._lake,
            tables or self._tables,
            deployment,
            typed=[name for name in brought.tables if name.startswith("typed/")],
            fields=self._fields.columns(),
            lateness=self._lateness,
        )
