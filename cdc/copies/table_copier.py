"""Copies tables in bulk, in a thread of the pipeline: what the stream does not bring.

Wanted are, for a source with `snapshot = "copy"` (or with another than its first slot), all
captured tables once per slot; a table that joins later; and whatever `installs.request` asks for.
A copy goes through these states, each kept in the lake, so that a new process goes on from there:

1. a temporary slot's exported snapshot at L, and a plan of chunks in the book (`run`);
2. chunks, each one commit; after a crash the missing ones are read in a new snapshot at L2;
3. all tables of the copy are announced in one commit;
4. ingest installs them in the epoch whose cut has reached L. A message in the source's stream makes
   sure that there is one. What it declines (`pipeline.installs.installation`) is copied again.

A table that nothing of this brings on, although its changes wait for a copy, is told to ingest,
which holds it with the command that has it copied.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter

from cdc.connectors import replication_name
from cdc.copies.copy_plan import CopyPlan, new_run, plan_table
from cdc.copies.copy_run import CopyRun, CopyStopped, TableChanged
from cdc.copies.copy_wanted import (
    open_run,
    released,
    stranded,
    unreleased,
    wanted,
    wants_beside,
)
from cdc.database import connected
from cdc.declarations import FILES
from cdc.replication import slot
from cdc.site import CaptureSite
from cdc.snapshot.chunks import CHUNK_BYTES
from cdc.snapshot.copying import copied_columns, prepare
from cdc.snapshot.slot import ExportedSnapshot, exported_snapshot, mark
from cdc.sources import COPY, Source, load_all
from kernel import failpoints
from kernel.errors import cause_and_fix
from kernel.loops import Loop
from kernel.positions import lsn_from_text
from lake.layout import Lake
from lake.space import SpaceGuard
from lake.tables import Tables
from pipeline.commit.epoch_memory import EpochMemory
from pipeline.commit.manifest import Manifest, first_progress
from pipeline.installs.install_book import (
    DONE,
    INSTALL,
    STRAND,
    WANT,
    Install,
    InstallBook,
    InstallEntry,
)
from pipeline.installs.old_generations import remove_old_generations
from pipeline.position.progress import Progress
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import DeployedCatalog, Deployment
from schemas.registry import SchemaLookup

LOOK_S = 1.0
MARK_AGAIN_S = 5.0
TIDY_EVERY_S = 3600.0
PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)

log = logging.getLogger("penstock.copy")


class CopyMetrics:
    """What a copy tells Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Counter(
            "penstock_copied_rows_total",
            "Rows read by bulk copies",
            ["source", "table"],
            registry=registry,
        )


@dataclass(slots=True)
class _Pause:
    failures: int = 0
    until: float = 0.0


class TableCopier:
    """Looks for wanted copies and makes them, one source at a time.

    `states` says per source what its copy does, or why it waits.
    """

    def __init__(
        self,
        site: CaptureSite,
        lake: Lake,
        schemas: SchemaLookup,
        *,
        metrics: CopyMetrics | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        memory: EpochMemory | None = None,
    ) -> None:
        """`memory` has the epochs that ingest, in this process, has committed."""
        self._site = site
        self._chunk_bytes = chunk_bytes
        self._lake = lake
        self._schemas = schemas
        self._tables = Tables()
        self._book = InstallBook(lake, self._tables)
        self._deployed = DeployedCatalog(lake, self._tables)
        self._manifest = Manifest(lake, self._tables, memory=memory)
        self._pauses: dict[str, _Pause] = {}
        self._marked: dict[str, float] = {}
        self._stop = threading.Event()
        self.states: dict[str, str] = {}
        self._metrics = metrics
        self._space = SpaceGuard(lake.root, reserve_bytes=site.min_free_bytes)
        self._tidied = time.monotonic()
        self.loop = Loop("copies")

    def run(self, stop: threading.Event) -> None:
        """Copy what is wanted until `stop` is set."""
        self._stop = stop
        while not stop.is_set():
            try:
                with self.loop.working("a look at wanted copies"):
                    self.look()
                    self._tidy()
                self.states.pop(FILES, None)
            except Exception as error:
                self.states[FILES] = f"waits: {cause_and_fix(error, most=800)}"
                log.error("copies: %s", error, exc_info=error)
            stop.wait(LOOK_S)

    def look(self) -> None:
        """Bring every source's copy as far as it goes now; what fails is noted and tried later."""
        deployment = self._deployed.deployment()
        declared = load_all(self._site.folder)
        for name in self.states.keys() - {FILES, *(source.name for source in declared)}:
            self.states.pop(name)
        for source in declared:
            pause = self._pauses.setdefault(source.name, _Pause())
            if time.monotonic() < pause.until:
                continue
            try:
                if source.name not in deployment.captures or not self._look_at(source, deployment):
                    self._rests(source)
                pause.failures = 0
            except CopyStopped:
                return
            except Exception as error:
                # The next look begins with a new snapshot; chunks that are there stay.
                wait_s = PAUSES_S[min(pause.failures, len(PAUSES_S) - 1)]
                pause.failures, pause.until = pause.failures + 1, time.monotonic() + wait_s
                self.states[source.name] = f"waits: {cause_and_fix(error, most=800)}"
                log.warning("copy of %s: %s", source.name, error, exc_info=error)

    def _tidy(self) -> None:
        """Now and then, remove staged rows that no kept version refers to."""
        if time.monotonic() - self._tidied < TIDY_EVERY_S:
            return
        last = self._manifest.last()
        if last is None:
            return
        self._tidied = time.monotonic()
        remove_old_generations(
            self._lake,
            self._tables,
            taken=Progress.from_json(last.progress).installs,
            kept=last.tables,
            retention=self._site.retention,
        )

    def _rests(self, source: Source) -> None:
        """Forget why a copy waited that nobody waits for any more."""
        if self.states.get(source.name, "").startswith("waits"):
            self.states.pop(source.name)

    def _look_at(self, source: Source, deployment: Deployment) -> bool:
        """Return whether the source has a copy to be made, or one was made."""
        entries = [entry for entry in self._book.entries() if entry.source == source.name]
        progress = first_progress(self._manifest.last())
        declined = frozenset(map(int, progress.declined))
        self._announced(source, entries, progress)
        incarnation = deployment.slots.get(source.name)
        if incarnation is None or incarnation.lost is not None:
            return False
        captured = deployment.captures[source.name]
        whole = source.snapshot == COPY or incarnation.slots > 1
        plan = open_run(entries)
        if plan is not None and plan.slots != incarnation.slots:
            self._book.put([InstallEntry(kind=DONE, id=plan.run, source=source.name)])
            plan = None
        missing = wanted(entries, captured, incarnation.slots, whole=whole, declined=declined)
        holds = plan is None and unreleased(source.name, entries, progress, incarnation.slots)
        if holds:
            # Whatever was copied before: behind the release only what comes with it is folded.
            missing = list(captured)
        copied = {*missing, *(() if plan is None else (each.table for each in plan.tables))}
        self._strand(source, stranded(source.name, entries, captured, progress, copied=copied))
        if plan is None and not missing:
            return False
        if not self._streams(source):
            self.states[source.name] = "waits: nothing reads the source's slot yet"
            return True
        if plan is None:
            plan = CopyPlan(
                run=new_run(),
                source=source.name,
                slots=incarnation.slots,
                since=int(lsn_from_text(incarnation.since)),
                releases=holds or (whole and not released(entries, incarnation.slots, declined)),
                wants=tuple(e.number for e in entries if e.kind == WANT),
                tables=(),
                read_at=datetime.now(UTC),
            )
        else:
            plan = replace(plan, wants=(*plan.wants, *wants_beside(plan, entries)))
        self._copy(source, plan, {table: captured[table] for table in missing}, captured)
        return True

    def _copy(
        self,
        source: Source,
        plan: CopyPlan,
        wanted: Mapping[str, CapturedTable],
        captured: Mapping[str, CapturedTable],
    ) -> None:
        dsn = source.full_dsn(self._site.folder)
        self.states[source.name] = "copies: waits for a snapshot"
        with exported_snapshot(dsn) as exported:
            failpoints.hit(failpoints.SNAPSHOT_AFTER_SLOT)
            plan = self._planned(source, dsn, plan, exported, wanted, captured)
            self.states[source.name] = f"copies {len(plan.tables)} tables"
            run = CopyRun(
                self._lake,
                source,
                plan,
                dsn=dsn,
                salt=source.full_salt(self._site.folder),
                readers=self._site.copy_readers,
                stop=self._stop,
                on_rows=lambda table, rows: self._count(source.name, table, rows),
                shortage=self._space.shortage,
            )
            try:
                run.read_all(exported)
            except TableChanged as changed:
                self._begin_anew(plan, changed.table)
                raise
        installs = run.installs()
        if installs or not run.failed:
            self._announce(source, dsn, plan, installs, rest=_rest(plan, run.failed))
        if run.failed:
            raise next(iter(run.failed.values()))

    def _planned(
        self,
        source: Source,
        dsn: str,
        plan: CopyPlan,
        exported: ExportedSnapshot,
        wanted: Mapping[str, CapturedTable],
        captured: Mapping[str, CapturedTable],
    ) -> CopyPlan:
        """Plan the tables of a new copy; of one that goes on, new ones and those that changed."""
        with connected(dsn) as connection:
            prepare(connection, exported.name)
            tables = []
            for each in plan.tables:
                if each.table not in captured:
                    continue
                found = captured[each.table]
                columns = copied_columns(connection, each.table, source.options_of(each.table))
                fits = each.same_shape(columns, found)
                tables.append(
                    each
                    if fits
                    else plan_table(
                        connection, source, each.table, found, chunk_bytes=self._chunk_bytes
                    )
                )
            known = {each.table for each in tables}
            new = wanted if plan.tables else wanted or captured
            tables += [
                plan_table(connection, source, table, found, chunk_bytes=self._chunk_bytes)
                for table, found in new.items()
                if table not in known
            ]
            connection.execute("ROLLBACK")
        made = replace(plan, tables=tuple(tables))
        if made.tables != plan.tables:
            self._book.put([made.entry()])
        return made

    def _announce(
        self,
        source: Source,
        dsn: str,
        plan: CopyPlan,
        installs: list[Install],
        *,
        rest: CopyPlan | None,
    ) -> None:
        """Have ingest take what was read; `rest` is the copy of what could not be."""
        self.states[source.name] = f"installs {len(installs)} tables"
        failpoints.hit(failpoints.SNAPSHOT_BEFORE_ANNOUNCE)
        if installs:
            others = [] if rest is None else [rest.entry()]
            self._book.put([*(install.entry() for install in installs), *others])
        else:
            self._book.put([InstallEntry(kind=DONE, id=plan.run, source=source.name)])
        failpoints.hit(failpoints.SNAPSHOT_AFTER_ANNOUNCE)
        mark(dsn, plan.run)
        rows = sum(install.rows for install in installs)
        log.info("copied %d rows of %s, %d tables", rows, source.name, len(installs))

    def _begin_anew(self, plan: CopyPlan, table: str) -> None:
        """Forget what was staged of one table: it is planned again in the next snapshot."""
        tables = tuple(
            replace(each, install=new_run(), columns=()) if each.table == table else each
            for each in plan.tables
        )
        self._book.put([replace(plan, tables=tables).entry()])

    def _strand(self, source: Source, tables: list[str]) -> None:
        """Have ingest hold tables that nobody brings on."""
        if tables:
            log.error("%s of %s: not folded, and not copied", ", ".join(tables), source.name)
            told = InstallEntry(
                kind=STRAND, id=source.name, source=source.name, detail={"tables": tables}
            )
            self._book.put([told])

    def _announced(self, source: Source, entries: list[InstallEntry], progress: Progress) -> None:
        """Say what waits for ingest, and move a resting source's cut past it."""
        waiting = [
            entry
            for entry in entries
            if entry.kind in (INSTALL, STRAND) and entry.number not in progress.installs
        ]
        installs = sum(entry.kind == INSTALL for entry in waiting)
        if installs:
            self.states[source.name] = f"installs {installs} tables"
        elif self.states.get(source.name, "").startswith("installs"):
            self.states.pop(source.name)
        if not waiting:
            return
        now = time.monotonic()
        if now - self._marked.get(source.name, -MARK_AGAIN_S) >= MARK_AGAIN_S:
            self._marked[source.name] = now
            mark(source.full_dsn(self._site.folder), waiting[-1].id)

    def _streams(self, source: Source) -> bool:
        """Say whether the source's slot is read: then the stream begins before any new snapshot."""
        name = replication_name(self._site.name, source.name)
        with connected(source.full_dsn(self._site.folder)) as connection:
            at = slot(connection, name)
        return at is not None and at.active_pid is not None and at.confirmed_lsn is not None

    def _count(self, source: str, table: str, rows: int) -> None:
        if self._metrics is not None:
            self._metrics.rows.labels(source, table).inc(rows)


def _rest(plan: CopyPlan, failed: Collection[str]) -> CopyPlan | None:
    """Return the copy that tries again what failed; the others of the plan do not wait for it."""
    tables = tuple(each for each in plan.tables if each.table in failed)
    return replace(plan, run=new_run(), tables=tables) if tables else None
