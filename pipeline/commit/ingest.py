"""How a batch of Kafka records becomes an epoch. The protocol, with the numbers used below:

1. **Bind.** The manifest binds epoch E to exact offsets, and to the announced installs that wait,
   before anything is written: beside step 2, which writes nothing. Whoever starts next finishes a
   bound epoch first, over those.
2. **Decode.** Records become rows in Arrow batches; one that fails becomes a quarantine row.
   Schemas not yet kept are written to `log/_schemas`. A large batch is decoded by executors, which
   write the log's files at once, behind step 1 (`log_task`).
3. **Drop duplicates** by what row E-1 of the manifest says was seen (`arrival.sort_out`,
   `staged.sort_staged`).
4. **Append** to the log with `epoch = E`, guarded by (app id, E): rows from here, or the files of
   the executors. From here on the log's rows count, never those of a batch that came again.
5. **Fold** state over the log's rows between cut(E-1) and cut(E), guarded likewise; installs whose
   LSN the cut has reached become tables, with the changes since then folded over them.
6. **Commit** row E of the manifest. Only now is the epoch visible to who asks for consistency.
7. **Publish** the offsets to a consumer group, so that any Kafka tool shows the lag.

A crash between any two steps repeats the step and ends in the same rows; each has a failpoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

import pyarrow as pa

from kernel import failpoints
from kernel.errors import TooLarge
from kernel.positions import Epoch, Offsets, TopicId
from lake.layout import Lake, current_name
from lake.tables import TableAt, Tables
from pipeline.arrive.arrival import Arrival, says_something, sort_out
from pipeline.arrive.sorter import Released
from pipeline.arrive.widened_topics import widened, without_moved
from pipeline.commit.due_installs import BulkInstalls
from pipeline.commit.foldable_rows import foldable_rows
from pipeline.commit.folding import Folding
from pipeline.commit.folds_beside import BESIDE, FoldsBeside
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.commit.pending_transactions import PendingTransactions
from pipeline.commit.quarantine import Quarantine, Redecode, nothing_decoded
from pipeline.commit.retries import Patience
from pipeline.commit.silences import Silences
from pipeline.commit.stopwatch import Stopwatch
from pipeline.current.tables import CurrentTables
from pipeline.ddl.held_tables import Held
from pipeline.installs.installation import Installer
from pipeline.log.epoch_log import EpochLog
from pipeline.log.log_task import Facts
from pipeline.log.staged_rows import Stage, Staged, sort_staged
from pipeline.position.progress import Lateness, Progress
from schemas.registry import SchemaLookup

REST = timedelta(hours=1)  # So long after an epoch heartbeats alone are passed by.


class Broker(Protocol):
    """What ingest asks of Kafka beside the records of its batch."""

    def publish(self, offsets: Offsets) -> None:
        """Commit `offsets` (the next ones to read) to a group. Best effort: nothing reads them."""
        ...

    def ends(self, source: str) -> Offsets:
        """Return where a captured source's topics end now, uncommitted records included.

        Raises `Unavailable`.
        """
        ...


class Ingest:
    """Runs epochs, one at a time. One instance at a time may write a lake (the guards see to it).

    Raises `StoreDiverged` when a known position arrives with other content, `LeaseLost` when
    another ingest writes the same lake, `Unavailable` when storage or registry do not answer. After
    any of these nothing of the epoch is visible and the next start finishes it.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        schemas: SchemaLookup,
        *,
        lateness: Lateness,
        broker: Broker,
        current: CurrentTables | None = None,
        beside: FoldsBeside | None = None,
        patience: Patience | None = None,
        rest: timedelta = REST,
        idle_timeouts: Collection[timedelta] = (),
        redecode: Redecode = nothing_decoded,
        ahead: timedelta | None = None,
    ) -> None:
        """`patience` is kept over restarts of ingest: it counts how often a table failed.

        With `beside` large folds do not keep the epochs of others waiting.

        `redecode` decodes records that were in quarantine. Event times that are further `ahead` of
        the clock than that move no watermark.
        """
        self._lake = lake
        self._tables = tables
        self._manifest = manifest
        self._lateness = lateness
        self._broker = broker
        self._rest, self._ahead = rest, ahead
        self._silences = Silences(idle_timeouts)
        self._current = current or CurrentTables(lake, tables, schemas)
        installer = Installer(lake=lake, tables=tables, schemas=schemas, current=self._current)
        patience = patience or Patience()
        self._quarantine = Quarantine(lake, tables, redecode)
        self._pending = PendingTransactions(lake, tables)
        self._bulk = BulkInstalls(lake, tables, manifest, installer, self._quarantine, patience)
        self._folding = Folding(
            lake=lake,
            tables=tables,
            current=self._current,
            rows=foldable_rows(lake, tables, schemas, self._current.executors),
            bulk=self._bulk,
            patience=patience,
            beside=beside,
        )
        self._last = manifest.last()
        if self._last is not None:
            self._silences.note(self._last)
        begun = manifest.unfinished()
        unfinished = begun.epoch if begun else None
        self._log = EpochLog(lake, tables, schemas, unfinished, manifest.memory.logged)
        self._current.resume(self._last.tables if self._last else {})
        self._progress = self._folding.resume(self._pending.resume(self._last))

    @property
    def last(self) -> Committed | None:
        """The newest committed epoch."""
        return self._last

    @property
    def next_epoch(self) -> Epoch:
        """The epoch that the next batch becomes."""
        return Epoch(self._last.epoch + 1 if self._last else 1)

    def run_epoch(
        self,
        bound: Bound,
        decode: Callable[[], pa.Table] | None,
        *,
        stage: Stage | None = None,
        without: Collection[str] = (),
        left_out: Callable[[], Collection[str]] = tuple,
    ) -> Committed:
        """Make epoch `bound.epoch` from the batch that `decode` reads and decodes.

        `decode` is called once and returns `frames.DECODED` rows of exactly the bound offsets, but
        none of the topics `without`: these stay as far as they were read. So do those that
        `left_out` returns behind it: they could not be decoded. `stage` does the same on
        executors: where there is no `decode`, and where that raises `TooLarge`.
        """
        whole, bound = bound, _leaving_out(bound, without)
        watch = Stopwatch()
        epoch = bound.epoch
        if bound.installs is None:
            bound = replace(bound, installs=self._bulk.waiting(self._progress))
            bound = self._folding.bind(bound, self._progress)
        installs = bound.installs or ()
        failpoints.hit(failpoints.EPOCH_BEFORE_BIND)
        if bound.end != whole.end:
            self._manifest.leave_out(bound)
        batch = self._decoded(bound, decode, stage, watch)
        if topics := left_out():
            bound = _leaving_out(bound, topics)
            self._manifest.leave_out(bound)
        progress = self._progress.copy(ahead=self._ahead)
        self._bulk.begin(installs, progress)
        released = self._quarantine.take(self._bulk.decisions(installs), progress, epoch)
        arrival = self._sorted_out(batch, bound, progress, released)  # 3
        watch.lap("dedupe")
        self._log.keep_schemas(arrival.schema_ids, epoch)
        failpoints.hit(failpoints.EPOCH_AFTER_SCHEMAS)
        tables = self._log.append(arrival, epoch)  # 4
        self._log.tidy(batch, epoch)
        watch.lap("append")
        read = self._read(bound)
        for source, cut in progress.cuts.items():
            cut.settle(read, partial(self._broker.ends, source))
        arrived = {source: self._log.take_added(source) for source in arrival.captured()}
        folded, taken = self._folding.fold(progress, arrived, bound, self._last)  # 5
        tables |= folded
        watch.lap("fold")
        failpoints.hit(failpoints.EPOCH_AFTER_FOLD)
        self._quarantine.note()
        kept = self._pending.keep(progress, epoch)
        done = self._committed(
            replace(bound, installs=taken), progress, kept, tables, arrival, watch
        )
        self._manifest.commit(done)  # 6
        failpoints.hit(failpoints.EPOCH_AFTER_MANIFEST)
        self._last, self._progress = done, progress
        self._silences.note(done)
        self._broker.publish(bound.end)  # 7
        failpoints.hit(failpoints.EPOCH_AFTER_OFFSETS)
        return done

    def _decoded(
        self,
        bound: Bound,
        decode: Callable[[], pa.Table] | None,
        stage: Stage | None,
        watch: Stopwatch,
    ) -> pa.Table | Staged:
        """Bind the epoch and decode its records, here or on executors.

        Decoding here writes nothing: it goes on beside the manifest's commit, for which all that
        follows waits. Executors write files.
        """
        decoded: pa.Table | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="bind") as beside:
            binding = beside.submit(self._manifest.bind, bound)  # 1
            try:
                decoded = decode() if decode is not None else None  # 2
            except TooLarge:
                if stage is None:
                    raise
            watch.lap("decode")
            binding.result()
        watch.lap("bind")
        failpoints.hit(failpoints.EPOCH_AFTER_BIND)
        if decoded is not None:
            return self._once(decoded, bound)
        assert stage is not None, "somebody decodes"
        staged = stage(self._facts(bound))
        watch.lap("decode")
        failpoints.hit(failpoints.STAGED_BEFORE_COMMIT)
        return staged

    def _facts(self, bound: Bound) -> Facts:
        return Facts(
            lake=self._lake,
            epoch=bound.epoch,
            now=datetime.now(UTC),
            attempt=uuid.uuid4().hex[:8],
            limits=self._progress.watermarks.limits(self._lateness),
            positions=self._progress.positions,
            moved=self._widened(bound),
            ids=self._topic_ids(bound),
        )

    def _sorted_out(
        self,
        batch: pa.Table | Staged,
        bound: Bound,
        progress: Progress,
        released: Released | None,
    ) -> Arrival:
        partitions = {topic: len(places) for topic, places in bound.end.items()}
        compare = partial(self._log.compare_repeated, epoch=bound.epoch)
        if isinstance(batch, Staged):
            return sort_staged(
                batch,
                progress,
                before=self._progress,
                lateness=self._lateness,
                partitions=partitions,
                released=released,
                compare=compare,
                logged=partial(self._log.moved, bound.epoch),
            )
        arrival = sort_out(
            batch,
            progress,
            before=self._progress,
            epoch=bound.epoch,
            lateness=self._lateness,
            partitions=partitions,
            now=datetime.now(UTC),
            released=released,
            ids=self._topic_ids(bound),
        )
        compare(arrival.repeated)
        return arrival

    def _once(self, decoded: pa.Table, bound: Bound) -> pa.Table:
        """Drop changes that partitions added to their topic moved, and that came before."""
        topics = self._widened(bound)
        if not topics:
            return decoded
        logged = partial(self._log.moved, bound.epoch)
        return without_moved(decoded, topics, self._progress.marks, logged)

    def _widened(self, bound: Bound) -> frozenset[str]:
        return widened(bound.end, self._topics(bound))

    def _topics(self, bound: Bound) -> dict[str, TopicId]:
        """Return the topics that the offsets of this epoch belong to."""
        return {**(self._last.topics if self._last else {}), **bound.topics}

    def _topic_ids(self, bound: Bound) -> dict[str, str]:
        return {topic: each.id for topic, each in self._topics(bound).items()}

    def _read(self, bound: Bound) -> Offsets:
        """Return the offsets up to which Kafka has been read with this epoch."""
        return {**(self._last.end if self._last else {}), **bound.end}

    def pass_by(self, bound: Bound, decoded: pa.Table) -> bool:
        """Take a batch that says nothing as read, without an epoch; False where it needs one.

        The next epoch, bound from the last one's offsets, contains it: `rest` later at the latest.
        """
        old = self._last is None or datetime.now(UTC) - self._last.at >= self._rest
        if old or says_something(decoded) or self.waiting_for():
            return False
        if self._bulk.waiting(self._progress):
            return False
        self._broker.publish(bound.end)
        return True

    def in_log(self, epoch: Epoch) -> bool:
        """Say whether an attempt at an epoch has written rows already."""
        return self._log.has(epoch)

    def held(self) -> Held:
        """Return the tables that stand still, per source, and why."""
        return self._progress.held

    def undecided(self) -> bool:
        """Say whether an epoch is due without a record: for decisions about some in quarantine that
        wait for one, for what was folded beside, and where a silence has lasted.
        """
        decisions = self._bulk.decisions(self._bulk.waiting(self._progress))
        silent = self._silences.due(datetime.now(UTC))
        return silent or bool(decisions) or self._folding.due(self._progress)

    def stuck(self) -> dict[str, str]:
        """Say per source why its changes could not be read in the last epoch."""
        return dict(self._folding.stuck)

    def poisoned(self) -> dict[str, str]:
        """Return the topic, per source, of which records in quarantine hold its cut."""
        return self._progress.poisoned()

    def waiting_for(self) -> dict[str, str]:
        """Say per source what holds its cut, for status and alarms."""
        held = {source: cut.waiting_for() for source, cut in self._progress.cuts.items()}
        held |= dict.fromkeys(self._progress.resting, BESIDE)
        return {s: why for s, why in held.items() if why is not None} | self._folding.stuck

    def _committed(
        self,
        bound: Bound,
        progress: Progress,
        kept: str,
        tables: Mapping[str, TableAt],
        arrival: Arrival,
        watch: Stopwatch,
    ) -> Committed:
        epoch = bound.epoch
        before = self._last.tables if self._last else {}
        held = {current_name(s, t) for s, names in progress.held.items() for t in names}
        unchanged = {
            name: at if name in held else TableAt(version=at.version, as_of_epoch=epoch)
            for name, at in before.items()
        }
        return Committed(
            epoch=epoch,
            run_id=bound.run_id,
            batch_id=bound.batch_id,
            end=self._read(bound),
            progress=kept,
            heads={store: seen.head for store, seen in progress.positions.items()},
            cuts={source: cut.lsn for source, cut in progress.cuts.items()},
            pending_from={
                source: cut.pending_from_epoch(default=epoch + 1)
                for source, cut in progress.cuts.items()
            },
            tables=unchanged | dict(tables),
            counts=dict(arrival.counts) | arrival.freshness(datetime.now(UTC)),
            timings_ms=dict(watch.steps),
            at=datetime.now(UTC),
            installs=bound.installs or (),
            topics=self._topics(bound),
        )


def _leaving_out(bound: Bound, without: Collection[str]) -> Bound:
    """Return an epoch as if it had no record of these topics: they stay where it began.

    So says its row also where it is the first that has the topic. What Kafka loses of it from then
    on is a gap; nobody would miss the records of a topic that was never read.
    """
    stays = {topic: bound.start[topic] for topic in bound.end if topic in without}
    return replace(bound, end={**bound.end, **stays})
