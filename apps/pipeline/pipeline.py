"""The pipeline process: ingest in one thread, projections in another, both with a stated health.

What fails is started again with a growing pause; what cannot be mended by trying stands still
with its reason and the command that helps, and the other goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial

from pyspark.sql import SparkSession

from apps.capture import capture_site
from apps.executor_choice import executor_choice
from apps.pipeline.folding import current_tables, folds_beside
from apps.pipeline.metrics import PipelineMetrics
from apps.pipeline.routing import router_of
from apps.pipeline.sinks import sinks_of
from apps.pipeline.upkeep import upkeep_of
from apps.settings import Settings
from cdc.copies.table_copier import TableCopier
from cdc.upkeep.connector_keeper import ConnectorKeeper
from cdc.upkeep.neighbours import neighbours_of
from cdc.upkeep.source_lag import SourceHeads
from cdc.verification.verifier import Verifying
from kernel.errors import Retry, StoreDiverged, Unavailable, cause_and_fix, retry_directive
from kernel.loops import Loop, Signs, passed
from kernel.positions import Offsets
from lake.executor_tasks import SparkTasks
from lake.layout import Lake
from lake.sessions import answers, fit_to_cores, spark_signs, work_for
from lake.space import SpaceGuard
from lake.tables import Tables
from lake.upkeep.spark_compaction import SparkCompaction
from pipeline.commit.folds_beside import FoldsBeside
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed
from pipeline.commit.retries import Patience
from pipeline.current.tables import CurrentTables
from pipeline.installs.install_book import InstallBook
from pipeline.lanes.lane_book import LaneBook
from pipeline.position.lag import StoreHeads
from pipeline.process.health import PartState, waiting_in
from pipeline.process.lag_watch import LagWatch
from pipeline.process.watchdog import Ends, Looping, Watchdog, end_process, watchdog_of
from pipeline.read.gaps import told
from pipeline.read.kafka_records import IngestBroker, decode_again
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.lane_runs import LaneRuns
from pipeline.read.stream import IngestRun
from pipeline.read.stuck_sources import StuckSources, poisoned
from pipeline.read.topic_lag import TopicHeads
from projections.run.catalog import DeployedCatalog, Deployment
from projections.run.projection_rounds import Projecting
from projections.run.runs_beside import RunsBeside
from schemas.identifiers import OUTBOX
from schemas.registry import ConfluentRegistry

log = logging.getLogger("penstock.pipeline")

PROJECTIONS = "projections"
"""What their loop, its pool and its jobs are called in Spark."""
IDLE_S, _SELDOM, _GAP_LOOKS = 0.1, 5, 20
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class Pipeline:
    """Wires ingest and projections for one workspace; runs until `stopping` is set."""

    def __init__(
        self, spark: SparkSession, settings: Settings, metrics: PipelineMetrics, heads: StoreHeads
    ) -> None:
        self._spark = spark
        self._settings, self._metrics = settings, metrics
        self._lake = Lake.at(settings.lake)
        self._registry = ConfluentRegistry(settings.required("registry.url"))
        self._tables = Tables(owned=self._lake.written_by_ingest)
        self._manifest = Manifest(self._lake, self._tables)
        memory = self._manifest.memory
        self._deployed = DeployedCatalog(self._lake, self._tables)
        self._book = InstallBook(self._lake, self._tables)
        self.gaps: dict[str, str] = {}
        self._lanes = LaneBook()
        self._topics = KafkaTopics(settings.required("kafka.bootstrap"))
        reserve_bytes = settings.number("storage.min_free_bytes")
        self._space = SpaceGuard(self._lake.root, reserve_bytes=reserve_bytes)
        self._executor = executor_choice(settings, settings.text("spark.master"))
        self._executors = self._executor.executors(SparkTasks(spark))
        large = self._executor.large_compaction(SparkCompaction(spark))
        self._upkeep = upkeep_of(settings, self._lake, large)
        self._topic_heads = TopicHeads(self._topics)
        site = capture_site(settings)
        self._lag = LagWatch(heads, SourceHeads(site, self._topics), self._topic_heads, metrics)
        self._keeper = ConnectorKeeper(site, self._lake, metrics.slots)
        self._copier = TableCopier(
            site, self._lake, self._registry, metrics=metrics.copies, memory=memory
        )
        self._projecting = Projecting(
            spark,
            self._lake,
            self._registry,
            on_run=metrics.ran,
            state_memory_bytes=settings.number("pipeline.state_memory_bytes"),
            choice=self._executor,
            executors=self._executors,
            large=large,
            lateness=settings.lateness,
            memory=memory,
            beside=RunsBeside(begins=partial(work_for, spark, PROJECTIONS)),
        )
        self._verifying = Verifying(site, self._registry, metrics.verify)
        self._sinks = sinks_of(settings, self._lake, self._registry, metrics.sinks)
        dsn, connect_url = settings.required("postgres.dsn"), settings.text("connect.url")
        self._neighbours = neighbours_of(
            dsn, connect_url, self._registry, self._topics, metrics.part_up
        )
        beside = self._verifying, self._lag, self._sinks, self._neighbours
        self._others: tuple[Looping, ...] = (self._keeper, self._copier, *beside)
        self.stopping, self._patience, self._stuck = threading.Event(), Patience(), StuckSources()
        self._last: Committed | None = None
        self._ingest_loop, self._topology_loop = Loop("ingest"), Loop("topology")
        self._projections_loop = Loop(PROJECTIONS)
        self._reading: IngestRun | None = None
        self._watchdog = self._watching()
        self.ingest, self.projections = PartState(), PartState()

    def run(self) -> None:
        """Run until the end is asked for: ingest here, all others in threads of their own."""
        workers = [
            threading.Thread(target=work, args=(self.stopping,), name=name, daemon=True)
            for name, work in {
                **{each.loop.name: each.run for each in self._others},
                PROJECTIONS: self._project,
                "watchdog": self._watchdog.run,
            }.items()
        ]
        for worker in workers:
            worker.start()
        failures = 0
        while not self.stopping.is_set():
            try:
                if self._one_run():
                    failures = 0
            except Exception as error:
                if not self._note_failure(error):
                    self.stopping.wait()
                    break
                self.stopping.wait(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
        for worker in workers:
            worker.join(timeout=30)
        self._upkeep.close()
        self.ingest = PartState("stopped")

    def _watching(self) -> Watchdog:
        """Return the watchdog over all loops of this process."""
        settings = self._settings
        return watchdog_of(
            vital={
                self._ingest_loop: self._signs,
                self._topology_loop: Signs,
                self._projections_loop: self._spark_signs,
            },
            others=[each.loop for each in self._others],
            slow=[self._upkeep.loop],
            bound_s=float(settings.number("pipeline.standstill_seconds")),
            end_after_s=settings.number("pipeline.standstill_end_seconds"),
            ends=Ends(settings.state_dir / "standstills.json"),
        )

    def _signs(self) -> Signs:
        return Signs() if self._reading is None else self._reading.signs()

    def _spark_signs(self) -> Signs:
        if not (answers(self._spark) or self.stopping.is_set()):
            end_process("Spark's Java process is gone, or Spark has stopped itself")
        return spark_signs(self._spark, PROJECTIONS)

    def wait(self, state: str, reason: str) -> None:
        """Say why nothing runs yet: another pipeline writes the lake, or nobody can see who."""
        self.ingest, self.projections = PartState(state, reason), PartState(state)

    def health(self) -> tuple[bool, Mapping[str, object]]:
        """Return readiness and the state of each part, for `/health/ready`."""
        still = dict(self._watchdog.still)
        held, quarantine = waiting_in(self._last)
        return self.ingest.ready, {
            "ingest": self.ingest.shown(still, "ingest", "topology", step=self._ingest_loop.step),
            "projecting": self.projections.shown(still, PROJECTIONS),
            "loops": still | self._sinks.troubles,
            "parts": self._neighbours.silent,
            "connectors": dict(self._keeper.states),
            "failing": dict(self._keeper.failing),
            "silent": self._lag.silent,
            "copies": dict(self._copier.states),
            "slot_alarms": self._keeper.alarms,
            "verify": self._verifying.states,
            "sources": {name: asdict(lag) for name, lag in self._lag.lags.items()},
            "epoch": self._last.epoch if self._last else 0,
            "held": held | self._projecting.held(),
            "quarantine": quarantine,
            "stuck": self._stuck.reasons() | self._lanes.held(),
            "lanes": self._lanes.document(),
            "upkeep": dict(self._upkeep.troubles),
            "lag_unknown": dict(self._lag.unknown),
            "gaps": self.gaps,
            "projections": self._projecting.documents(),
            "sinks": self._sinks.documents(),
        }

    def _one_run(self) -> bool:
        """Run ingest until the topology changes, it fails, or the pipeline stops."""
        self._tables.forget_all()
        fit_to_cores(self._spark, self._settings.spark())
        self._projecting.follow(self._spark)
        deployment = self._deployed.deployment()
        self._lag.captures, self._topic_heads.declared = [*deployment.captures], deployment.topics
        current = current_tables(
            self._spark,
            self._settings,
            self._tables,
            self._registry,
            self._executors,
            deployment.keeps_deleted,
        )
        beside = folds_beside(self._spark, self._lake, self._registry, current)
        try:
            return self._run_ingest(deployment, current, beside)
        finally:
            beside.close()
            current.close()

    def _prepared(
        self, deployment: Deployment, current: CurrentTables, beside: FoldsBeside
    ) -> tuple[Ingest, LaneRuns]:
        """Return runs that can start: what a crash left unfinished is finished."""
        settings = self._settings
        prefix, registry = settings.text("kafka.topic_prefix"), settings.required("registry.url")
        router = router_of(deployment, prefix=prefix, registry_url=registry)
        ingest = Ingest(
            self._lake,
            self._tables,
            self._manifest,
            self._registry,
            lateness=lambda name: deployment.closed_after(name, settings.lateness),
            broker=IngestBroker(
                self._topics, group=f"penstock.{settings.name}.ingest", prefix=prefix
            ),
            current=current,
            beside=beside,
            patience=self._patience,
            redecode=lambda records: decode_again(records, router),
            idle_timeouts=deployment.idle_timeouts,
            ahead=settings.ahead,
        )
        self._note(ingest.last)
        if ingest.last is not None:
            self._upkeep.committed(ingest.last.tables)
        new_run = partial(
            IngestRun,
            self._spark,
            self._topics,
            router,
            ingest,
            self._book,
            captures=deployment.captures,
            executor=self._executor,
            loop=self._ingest_loop,
            before_epoch=self._wait_for_space,
            after_epoch=self._committed,
            after_rest=self._rested,
            after_round=self._manifest.memory.rounds.wait,
        )
        runs = LaneRuns(
            self._spark,
            new_run,
            self._lanes,
            lanes=router.lanes,
            checkpoints=settings.state_dir / "checkpoints",
            max_records=settings.number("pipeline.max_records_per_epoch"),
            lane_records=settings.number("pipeline.lane_records"),
        )
        runs.finish_unfinished(self._manifest)
        return ingest, runs

    def _run_ingest(
        self, deployment: Deployment, current: CurrentTables, beside: FoldsBeside
    ) -> bool:
        with self._ingest_loop.working("the begin of a run"):
            ingest, runs = self._prepared(deployment, current, beside)
        try:
            with self._ingest_loop.working("the start of the stream"):
                runs.start()
        except Unavailable as waiting:
            self.gaps = told(runs.gaps)
            self.ingest = PartState("waiting", waiting.message)
            self.stopping.wait(IDLE_S * _SELDOM)
            return True
        self.ingest = PartState("running")
        try:
            self._watch(runs, ingest, deployment)
        finally:
            runs.stop()
        if runs.together.error is not None:
            raise runs.together.error
        return True

    def _watch(self, runs: LaneRuns, ingest: Ingest, deployment: Deployment) -> None:
        """Look at what a run waits for, until it ends or has to: the topology changed, say.

        Tables are opened for it at every fifth look only: that takes milliseconds each.
        """
        looks = 0
        while not self.stopping.is_set():
            looks += 1
            with self._topology_loop.working("a look at what is to be read"):
                runs.look()
                self.gaps, self._reading = told(runs.gaps), runs.together
                recovered = runs.gaps and looks % _GAP_LOOKS == 0 and self._reading.recovered()
                if recovered or (looks % _SELDOM == 1 and self._moved(deployment)):
                    break
                held = ingest.waiting_for()
                stuck = ingest.stuck() | {s: poisoned(t) for s, t in ingest.poisoned().items()}
                self._stuck.look(held, ingest.last.cuts if ingest.last else {}, stuck)
            if self.ingest.state == "running":
                self.ingest.reason = "; ".join(f"{s}: {r}" for s, r in held.items()) or None
            if looks % _SELDOM == 1:
                runs.together.decide()
            time.sleep(IDLE_S)

    def _moved(self, deployment: Deployment) -> bool:
        if self._deployed.version() == deployment.version:
            return False
        now = self._deployed.deployment()
        return (now.captures, now.sources) != (deployment.captures, deployment.sources)

    def _note_failure(self, error: Exception) -> bool:
        """Note why ingest ended; return whether to start it again."""
        again = retry_directive(error) is not Retry.NEVER or not hasattr(error, "remedy")
        if isinstance(error, StoreDiverged):
            # The epoch is made again without the store's events; every other source goes on.
            self._lanes.hold(OUTBOX, cause_and_fix(error, most=800), lasting=True)
            again = True
        reason = cause_and_fix(error, most=800)
        if not again:
            reason = f"{reason} Then: penstock restart pipeline"
        self.ingest = PartState("restarting" if again else "failed", reason)
        self._metrics.restarts.inc()
        log.error("ingest ended: %s", self.ingest.reason, exc_info=error)
        return again

    def _committed(self, done: Committed) -> None:
        self._note(done)
        self._upkeep.committed(done.tables)
        self._metrics.committed(done)
        ms = sum(done.timings_ms.values())
        log.info("epoch %d: %s in %.0f ms", done.epoch, dict(done.counts), ms)

    def _rested(self, read: Offsets) -> None:
        """Count a batch that said nothing as read, for lag: the manifest has it one epoch later."""
        if self._last is not None:
            self._note(replace(self._last, end={**self._last.end, **read}))

    def _note(self, last: Committed | None) -> None:
        self._last = self._lag.last = last

    def _wait_for_space(self) -> None:
        """Pause while the lake's disk is below its reserve; the reason stands in the health."""
        while (shortage := self._space.shortage()) is not None and not self.stopping.is_set():
            self.ingest = PartState("paused", shortage)
            passed("a pause for lack of room")
            self.stopping.wait(1.0)
        if self.ingest.state == "paused":
            self.ingest = PartState("running")

    def _project(self, stop: threading.Event) -> None:
        work_for(self._spark, PROJECTIONS)
        failures = 0
        while not stop.is_set():
            try:
                looking = self._projections_loop.working("a look at what is due")
                with looking, self._manifest.memory.rounds.round():
                    busy = self._projecting.step()
                self.projections = PartState("running")
                failures = 0
                if not busy:
                    self._manifest.memory.wait(self._projecting.pause_s(IDLE_S))
            except Exception as error:
                self.projections = PartState("restarting", cause_and_fix(error, most=500))
                log.error("projections: %s", self.projections.reason, exc_info=error)
                stop.wait(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
                failures += 1
