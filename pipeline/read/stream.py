"""Ingest as a Structured Streaming query: Spark plans offsets, a batch becomes an epoch, or a few.

The manifest is the truth, Spark's checkpoint is scratch: each start is a new run with a fresh
checkpoint that begins at the manifest's offsets, after the epoch that a crash left unfinished was
finished over exactly its own offsets. A change of topology (a new captured source) is a new run.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kernel.errors import Unavailable
from kernel.loops import Loop, Signs
from kernel.positions import Offsets
from lake.sessions import spark_signs
from lake.table_columns import DECODED
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.executor import ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.read.batch_plan import BatchPlans, has_messages, next_part, only_messages
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
from pipeline.read.kafka_records import records_between, stream_records
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.read_topics import ReadTopics
from pipeline.read.turns import Stopped, Turn

_TOPICS_APPEARED = "you must specify all TopicPartitions"
"""Part of what Spark says when its own list of partitions is newer than the one we gave."""


@dataclass(frozen=True, slots=True)
class Early:
    """A part of a batch up to `end`, decoded before its turn; `rows` None: executors decode it."""

    end: Offsets
    rows: pa.Table | None


class IngestRun:
    """One run of the streaming query, from `start` to `stop` or to an error.

    Lanes `without` are not read here, and their offsets stay. Runs that read other lanes take turns
    at making epochs. One that is `apart` decodes before its turn, so that others need not wait for
    what may fail or take long; one that is not ends, and names the lane in `bulky`, when a lane
    with more than `much` records would keep others waiting.
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
        turn: Turn | None = None,
        apart: bool = False,
        much: int | None = None,
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._router = router
        self._ingest = ingest
        self._book = book
        self._skips = skips_of(book)
        self._captures = captures
        self._without = without
        self._plans: BatchPlans | None = None
        self.gaps: dict[str, list[Gap]] = {}
        self.silent: dict[str, Exception] = {}
        """Lanes of whose topics Kafka told nothing at the start: they are not read here."""
        self.refused: dict[str, Exception] = {}
        """Lanes whose records of an unfinished epoch could not be had: it was made without."""
        self._checkpoints = checkpoints
        self._max_records = max_records
        self._records = EpochRecords(spark, topics.bootstrap, router, executor)
        self._loop = loop
        self._before_epoch = before_epoch
        self._after_epoch = after_epoch
        self._after_rest = after_rest
        self._run_id = uuid.uuid4().hex
        self._turn = turn or Turn()
        self._apart = apart
        self._much = much
        self.bulky: str | None = None
        self.epochs = 0
        self._stopping = False
        self._error: BaseException | None = None
        self._taken: Offsets = {}
        self._query: StreamingQuery | None = None

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
        """Start the query at the manifest's offsets; partitions it does not know, at their first.

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
        self._taken = start
        self._plans = BatchPlans(
            self._topics,
            self._ingest,
            self._skips,
            run_id=self._run_id,
            checkpoint=self._checkpoint,
            start=start,
            ids=kept.topics,
        )
        for old in self._checkpoints.glob("*"):
            shutil.rmtree(old, ignore_errors=True)
        records = stream_records(
            self._spark,
            self._topics.bootstrap,
            router.pattern(),
            start,
            max_records=self._max_records,
        )
        self._query = (
            records.writeStream.foreachBatch(self._at_work)
            # Hadoop takes the name as it is: a space in it is not written as a URI has it.
            .option("checkpointLocation", f"file://{self._checkpoint}")
            # The next batch begins when the last one is through: a fixed beat would be waited for.
            .trigger(processingTime="0 seconds")
            .start()
        )

    def decide(self) -> None:
        """Make an epoch that is due without a record, where nothing is to be read just now."""
        if not self._ingest.undecided():
            return
        with self._loop.working("a decision"), self._turn:
            if self._stopping or self._turn.error is not None or not self._ingest.undecided():
                return
            try:
                bound = Bound(
                    epoch=self._ingest.next_epoch,
                    run_id=self._run_id,
                    batch_id=-1,
                    start=self._ingest.last.end if self._ingest.last else {},
                    end=self._ingest.last.end if self._ingest.last else {},
                )
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
        """Whether the query runs."""
        return self._query is not None and bool(self._query.isActive)

    @property
    def error(self) -> BaseException | None:
        """What ended the run, our own error first; None while it runs or after `stop`."""
        if self._error is not None:
            return self._error
        failure: BaseException | None = self._query.exception() if self._query is not None else None
        if self._stopping or failure is None:
            return None
        if _TOPICS_APPEARED in str(failure):
            return Unavailable("topics appeared while the stream was starting: it starts again")
        return failure

    def stop(self) -> None:
        """End the run between two epochs; an epoch under way is finished first.

        Spark's `stop` returns when the query's thread has ended: whoever has the turn meanwhile
        waits for ever for a batch that has just begun and waits for its turn.
        """
        self._stopping = True
        with self._loop.working("the end of a run"):
            with self._turn:
                query = self._query  # No batch is amid its epoch; one that begins now ends at once.
            with closing(self):
                if query is not None:
                    query.stop()

    def close(self) -> None:
        """Leave the broker; of a run that has ended, or has finished what was unfinished."""
        self._records.close()

    @property
    def _told(self) -> tuple[str, Mapping[str, str]]:
        """What tells of a topic whose it is: see `gaps.source_of`."""
        return self._router.prefix, self._router.owners

    @property
    def _checkpoint(self) -> Path:
        return self._checkpoints / self._run_id

    def unread(self) -> int:
        """Return how many records of known partitions no batch has taken yet; asks the broker."""
        taken = self._taken
        ends = self._topics.readable_ends({t: [int(p) for p in at] for t, at in taken.items()})
        return records_between(taken, ends) if taken is self._taken else 0

    def signs(self) -> Signs:
        """Say what waits for this run, and how far Spark is with what it does for it."""
        query = self._query
        if query is None or not query.isActive:
            return Signs()
        unread = self.unread()
        signs = spark_signs(self._spark, str(query.runId), None)
        return replace(signs, waits=f"{unread} records wait in Kafka") if unread > 0 else signs

    def _at_work(self, _: DataFrame, batch_id: int) -> None:
        """Make epochs of the offsets that Spark has planned; its frame is not asked for."""
        more = True
        while more:
            self._go_on()
            early = self._decoded_early(batch_id) if self._apart else None
            with self._loop.working("the begin of a batch"):
                more = self._part(batch_id, early)

    def _go_on(self) -> None:
        """Raise `Stopped` where the run is to end: what is left of a batch is not through then."""
        if self._stopping or self._turn.error is not None:
            self._stopping = True
            raise Stopped

    def _decoded_early(self, batch_id: int) -> Early:
        """Decode a part of a batch of one lane before its turn, unless executors have to do it."""
        try:
            bound = self._next_part(self._bound(batch_id))
            return Early(bound.end, self._records.early(bound.start, bound.end))
        except BaseException as error:
            self._error = error
            raise

    def _part(self, batch_id: int, early: Early | None) -> bool:
        """Make an epoch of the next part of a batch; say whether there is more of it."""
        with self._turn:
            self._go_on()
            try:
                self._before_epoch()
                whole = self._bound(batch_id)
                self._leave_to_others(whole)
                part = early.end if early else self._next_part(whole).end
                bound, rows = replace(whole, end=part), early.rows if early else None
                rest = only_messages(bound, self._has_messages)
                done = self._run(bound, (bound.start, bound.end), may_rest=rest, early=rows)
            except Stopped:
                raise
            except BaseException as error:
                # Spark wraps what a callback raises in text: keep the error itself.
                self._error = error
                raise
            self._taken = {**self._taken, **bound.end}
            self.epochs += 1
            if done is None:
                self._after_rest(bound.end)
            else:
                self._after_epoch(done)
            return bound.end != whole.end

    def _bound(self, batch_id: int) -> Bound:
        assert self._plans is not None, "the run has begun"
        return self._plans.bound(batch_id)

    def _leave_to_others(self, bound: Bound) -> None:
        """End the run, with nothing bound, where a lane that has much would keep others waiting."""
        if self._apart or self._much is None:
            return
        counts: Counter[str] = Counter()
        for topic, places in bound.end.items():
            if not self._has_messages(topic):
                counts[self._lane(topic)] += records_between(bound.start, {topic: places})
        lane, most = max(counts.items(), key=lambda each: each[1], default=("", 0))
        if most > self._much and counts.total() > most:
            self.bulky, self._stopping = lane, True
            raise Stopped

    def _next_part(self, whole: Bound) -> Bound:
        return next_part(whole, self._records.at_once, self._has_messages)

    def _has_messages(self, topic: str) -> bool:
        return has_messages(topic, *self._told)

    def _lane(self, topic: str) -> str:
        return source_of(topic, *self._told)

    def _run(
        self,
        bound: Bound,
        within: tuple[Offsets, Offsets],
        *,
        may_rest: bool,
        early: pa.Table | None = None,
    ) -> Committed | None:
        """Return the epoch; None for a batch that said nothing and was passed by.

        Its records are those `within` two offsets, which were decoded `early` or are now.
        """
        decode = partial(self._records.decoded, *within)
        if early is not None or (may_rest and self._records.small(*within)):
            decoded = decode() if early is None else early
            if may_rest and self._ingest.pass_by(bound, decoded):
                return None
            return self._ingest.run_epoch(bound, lambda: decoded)
        return self._ingest.run_epoch(
            bound,
            decode if self._records.small(*within) else None,
            stage=self._records.stage(*within),
        )
