"""Ingest as a run: a planner says how far to read, what it planned becomes an epoch, or a few.

The manifest is the truth, Spark's checkpoint is scratch: each start is a new run with a fresh
checkpoint that begins at the manifest's offsets, after the epoch that a crash left unfinished was
finished over exactly its own offsets. A change of topology (a new captured source) is a new run;
a lane that is read apart from the others, or is so no more, is none.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from kernel.errors import Unavailable
from kernel.loops import Loop, Signs
from kernel.positions import Offsets
from lake.table_columns import DECODED
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.executor import ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.lanes.lane_book import LaneBook
from pipeline.read.batch_plan import (
    BatchPlans,
    has_messages,
    next_part,
    nothing_more,
    only_messages,
)
from pipeline.read.bound_epoch import UnfinishedEpoch
from pipeline.read.epoch_records import EpochRecords
from pipeline.read.gaps import (
    Gap,
    gaps_of,
    kept_by,
    next_offsets,
    reason,
    silent_of,
    skips_of,
    source_of,
    standing_of,
    still_there,
)
from pipeline.read.kafka_records import records_between
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.lane_ahead import Early, LaneAhead
from pipeline.read.lane_process import LaneProcess
from pipeline.read.lane_records import LaneRecords
from pipeline.read.pace import Pace
from pipeline.read.planners import BrokerPlanner, Planner, SparkPlanner
from pipeline.read.reach import Reach
from pipeline.read.read_topics import ReadTopics
from pipeline.read.turns import Stopped, Turn

POOL = "spark.scheduler.pool"
"""What Spark has jobs of one thread do side by side with those of others."""
_PLANNED = 4
"""Spark plans so many times what an epoch may have: it takes a tenth of a second for a plan."""


class IngestRun:
    """One run, from `start` to `stop` or to an error.

    Lanes `without` are not read here, and their offsets stay; those that `parting` has are not
    read here just now. Runs that read other lanes take turns at making epochs. One that is `apart`
    reads one lane, decodes before its turn, so that others need not wait for what may fail or take
    long, and rests between its epochs; one that is not begins its epochs `after_round`, told how
    many records wait; it has a lane parted that cannot be decoded, or has more than `much` records.
    """

    def __init__(
        self,
        spark: SparkSession,
        topics: KafkaTopics,
        router: ReadTopics,
        ingest: Ingest,
        book: InstallBook,
        *,
        captures: Mapping[str, Collection[str]],
        without: Collection[str],
        checkpoints: Path,
        max_records: int,
        executor: ExecutorChoice,
        loop: Loop,
        before_epoch: Callable[[], None],
        after_epoch: Callable[[Committed], None],
        after_rest: Callable[[Offsets], None],
        after_round: Callable[[int], bool] | None = None,
        turn: Turn | None = None,
        apart: bool = False,
        parting: LaneBook | None = None,
        much: int | None = None,
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._router = router
        self._ingest = ingest
        self._book = book
        self._skips = skips_of(book)
        self._captures, self._without = captures, without
        self.gaps: dict[str, list[Gap]] = {}
        self.silent: dict[str, Exception] = {}
        """Lanes of whose topics Kafka told nothing at the start: they are not read here."""
        self.refused: dict[str, Exception] = {}
        """Lanes whose records of an unfinished epoch could not be had: it was made without."""
        self._checkpoints = checkpoints
        self._max_records = max_records
        process = LaneProcess(topics.bootstrap, router) if apart else None
        self._records = EpochRecords(spark, topics.bootstrap, router, executor, process=process)
        self._loop, self._before_epoch = loop, before_epoch
        self._after_epoch, self._after_rest = after_epoch, after_rest
        self._run_id = uuid.uuid4().hex
        self._turn = turn or Turn()
        self._pace = Pace(max_records, self._turn, beside=apart)
        self._after_round = self._pace.rest if apart else after_round or (lambda _: False)
        # What executors decode of one lane is in a pool of its own: it shares cores, and no queue.
        self._begins = partial(spark.sparkContext.setLocalProperty, POOL, checkpoints.name)
        block = partial(self._parted, most=max_records)
        self._ahead = LaneAhead(self._records, block, begins=self._begins) if apart else None
        self._parting, self._much = parting, much
        self.lanes: frozenset[str] = frozenset()
        """The lanes whose topics are planned for."""
        self.epochs = 0
        self._stopping = False
        self._error: BaseException | None = None
        self.reach = Reach(self._lane, parting, told=self._has_messages)
        self._planner: Planner | None = None

    def finish_unfinished(self, manifest: Manifest) -> Committed | None:
        """Finish the epoch that was bound and not committed, over exactly its offsets.

        Lanes of which Kafka does not have them any more are left out, as those are of which they
        cannot be decoded: see `UnfinishedEpoch`.
        """
        bound = manifest.unfinished()
        if bound is None:
            return None
        there, lost = still_there(bound, self._ingest.last, self._skips, self._topics, self._told)
        epoch = UnfinishedEpoch(
            bound,
            there,
            lost,
            ingest=self._ingest,
            records=self._records,
            lanes=self._router.lanes,
            lane_of=self._lane,
        )
        done, self.refused = epoch.finish(self._without)
        self._after_epoch(done)
        return done

    def start(self) -> None:
        """Start to plan at the manifest's offsets; partitions it does not know, at their first.

        Raises `Unavailable` while there is no topic to read.
        """
        read, pattern, told = standing_of(self._ingest.last), self._router.pattern(), self._told
        kept = kept_by(self._topics, pattern, read, self._captures, *told)
        going_on = next_offsets(read, self._skips, kept.topics)
        self.gaps = gaps_of(going_on, kept, *told)
        self.silent = silent_of(kept.silent, *told)
        router = self._router.leaving_out({*self.gaps, *self.silent, *self._without})
        start = {
            topic: {p: going_on.offsets.get(topic, {}).get(p, at) for p, at in places.items()}
            for topic, places in kept.first.items()
            if re.fullmatch(router.pattern(), topic)
        }
        if not start:
            gone = [reason(gaps) for gaps in self.gaps.values()]
            gone += [str(e) for lane, e in self.silent.items() if lane not in self._without]
            gone += [f"source {lane} is not read" for lane in self._without]
            raise Unavailable("; ".join(gone) or f"no topic matches {pattern} yet")
        self.lanes = router.lanes - {*self.gaps, *self.silent, *self._without}
        self.reach.begin(start, router.pattern())
        self._plans = BatchPlans(
            self._topics,
            self._ingest,
            self._skips,
            run_id=self._run_id,
            start=start,
            ids=kept.topics,
        )
        self._planner = self._planner_of(router.pattern(), start)
        self._planner.start(self._at_work)

    def _planner_of(self, pattern: str, start: Offsets) -> Planner:
        if self._ahead is not None:
            name = self._checkpoints.name
            return BrokerPlanner(self._topics, pattern, start, name=name, begins=self._begins)
        return SparkPlanner(
            self._spark,
            self._topics.bootstrap,
            pattern,
            start,
            max_records=_PLANNED * self._max_records,
            checkpoints=self._checkpoints,
            run_id=self._run_id,
        )

    def decide(self) -> None:
        """Make an epoch that is due without a record, where nothing is to be read just now."""
        if not self._ingest.undecided():
            return
        with self._loop.working("a decision"), self._turn:
            if self._stopping or self._turn.error is not None or not self._ingest.undecided():
                return
            try:
                bound = nothing_more(self._ingest, self._run_id)
                done = self._ingest.run_epoch(bound, DECODED.empty_table)
            except BaseException as error:
                self._error = error
                raise
            self._after_epoch(done)

    def recovered(self) -> bool:
        """Whether the gaps are not those any more that were there at the start; asks the broker."""
        read, pattern, told = standing_of(self._ingest.last), self._router.pattern(), self._told
        kept = kept_by(self._topics, pattern, read, self._captures, *told)
        now = gaps_of(next_offsets(read, skips_of(self._book), kept.topics), kept, *told)
        silent = silent_of(kept.silent, *told)
        before, now = (
            {lane: each for lane, each in gaps.items() if lane not in silent}
            for gaps in (self.gaps, now)
        )
        return before != now

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        return self._planner is not None and self._planner.active

    @property
    def error(self) -> BaseException | None:
        """What ended the run, our own error first; None while it runs or after `stop`."""
        if self._error is not None:
            return self._error
        failure = None if self._planner is None else self._planner.error
        return None if self._stopping else failure

    def stop(self) -> None:
        """End the run between two epochs; an epoch under way is finished first.

        The planner's `stop` returns when its thread has ended: who had the turn meanwhile would
        wait for ever for a batch that waits for its turn.
        """
        self._stopping = True
        self._pace.end()
        self._records.interrupt()
        with self._loop.working("the end of a run"):
            with self._turn:
                planner = self._planner  # No batch is amid its epoch; one that begins now ends.
            with closing(self):
                if planner is not None:
                    planner.stop()

    def leave(self) -> None:
        """Make no further epoch; called by whoever has the turn."""
        self._stopping = True

    def close(self) -> None:
        """Leave the broker; of a run that has ended, or has finished what was unfinished."""
        (self._records if self._ahead is None else self._ahead).close()

    @property
    def _told(self) -> tuple[str, Mapping[str, str]]:
        """What tells of a topic whose it is: see `gaps.source_of`."""
        return self._router.prefix, self._router.owners

    def unread(self) -> int:
        """Return how many records of known partitions no batch has taken yet; asks the broker."""
        return self.reach.unread(self._topics)

    def signs(self) -> Signs:
        """Say what waits for this run, and how far Spark is with what it does for it."""
        if self._planner is None or not self._planner.active:
            return Signs()
        unread = self.unread()
        waits = f"{unread} records wait in Kafka" if unread > 0 else None
        return Signs(waits=waits, progress=self._planner.progress)

    def _at_work(self, batch_id: int, end: Offsets) -> None:
        """Make epochs of what was planned, but for lanes that are apart, and of what comes then.

        Spark need not plan each of them: more comes while epochs wait for rounds, and for others.
        """
        here = self.reach.plan(end)
        more, paced = len(here) < len(end), False
        while self.reach.further(here):
            self._go_on()
            if self._after_round(records_between(self.reach.taken, here)):
                more = paced = True
            # More has come while parts were made; and of a batch a lane apart has most of the room.
            now = self.reach.newest(self._topics, here) if more else here
            early = self._before_turn(batch_id, now)
            with self._loop.working("the begin of a batch"):
                self._part(batch_id, now, early)
            here, more = self.reach.here(end), True
            if not self.reach.further(here):
                rests = self._after_round if paced else None
                here, more = self.reach.behind_plan(self._topics, here, rests, self._go_on), False

    def _go_on(self) -> None:
        """Raise `Stopped` where the run is to end: what is left of a batch is not through then."""
        if self._stopping or self._turn.error is not None:
            self._stopping = True
            raise Stopped

    def _before_turn(self, batch_id: int, end: Offsets) -> Early | None:
        """Ask which topics these are, and decode a part of a lane that is apart: nobody waits."""
        try:
            self._plans.look(end)
            if self._ahead is None:
                return None
            part, rows = self._ahead.take(self._bound(batch_id, end), self._next_part)
            return Early(part.end, rows)
        except BaseException as error:
            if self._stopping:  # Nobody waited for what was amid being decoded.
                raise Stopped from error
            self._error = error
            raise

    def _part(self, batch_id: int, end: Offsets, early: Early | None) -> None:
        """Make an epoch of the next part of a batch."""
        with self._turn:
            self._go_on()
            try:
                self._before_epoch()
                began = time.monotonic()
                whole = self.reach.without_bulky(partial(self._bound, batch_id, end), self._much)
                if not self.reach.further(whole.end):
                    return
                part = early.end if early else self._next_part(whole).end
                bound, rows = replace(whole, end=part), early.rows if early else None
                rest = only_messages(bound, self._has_messages)
                done, taken = self._run(bound, whole=whole, may_rest=rest, early=rows)
            except Stopped:
                raise
            except BaseException as error:
                # Spark wraps what a callback raises in text: keep the error itself.
                self._error = error
                raise
            self.reach.take(taken)
            self.epochs += 1
            if done is None:
                self._after_rest(bound.end)
            else:
                self._pace.took(records_between(bound.start, taken), time.monotonic() - began)
                self._after_epoch(done)

    def _bound(self, batch_id: int, end: Offsets) -> Bound:
        return self._plans.bound(batch_id, self.reach.here(end))

    def _next_part(self, whole: Bound) -> Bound:
        return self._records.part_ahead(whole) or self._parted(whole, self._pace.records())

    def _go_ahead(self, bound: Bound, whole: Bound) -> None:
        """Have the part behind an epoch read while that is made; lanes apart have `LaneAhead`."""
        if self._ahead is None and not self._stopping:
            rest = self._parted(replace(whole, start=bound.end), self._pace.records())
            self._records.ahead(rest, self._lane)

    def _parted(self, whole: Bound, most: int) -> Bound:
        at_once = self._records.at_once
        return next_part(whole, lambda n: at_once(min(n, most)), self._has_messages)

    def _has_messages(self, topic: str) -> bool:
        return has_messages(topic, *self._told)

    def _lane(self, topic: str) -> str:
        return source_of(topic, *self._told)

    def _run(
        self, bound: Bound, *, whole: Bound, may_rest: bool, early: pa.Table | None
    ) -> tuple[Committed | None, Offsets]:
        """Return the epoch, None for a batch that said nothing, and how far it has read."""
        if early is not None:
            return self._ingest.run_epoch(bound, lambda: early), bound.end
        apart = self._parting is not None or self._ahead is not None
        then = partial(self._go_ahead, bound, whole)
        records = LaneRecords(self._records, bound, lane_of=self._lane, apart=apart, then=then)
        return records.made(self._ingest, may_rest=may_rest, refuse=self._refuse)

    def _refuse(self, lane: str, error: Exception, late: bool) -> None:
        """Hold a lane that could not be decoded, part one that is slow; a run of one lane ends."""
        if self._parting is None:
            self._error, self._stopping = error, True
        elif late:
            self._parting.part(lane, str(error))
        else:
            self._parting.refuse(lane, error)
