"""Ingest as a Structured Streaming query: Spark plans offsets, every batch becomes an epoch.

The manifest is the truth, Spark's checkpoint is scratch: each start is a new run with a fresh
checkpoint that begins at the manifest's offsets, after the epoch that a crash left unfinished was
finished over exactly its own offsets. A change of topology (a new captured source) is a new run.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from apps.gaps import (
    Gap,
    gaps_of,
    kept_by,
    look,
    next_offsets,
    reason,
    skips_of,
    source_of,
    standing_of,
    still_there,
)
from apps.pipeline.kafka import (
    decode_records,
    read_records,
    records_between,
    stage_records,
    stream_records,
)
from apps.pipeline.routing import TopicRouter
from apps.pipeline.watchdog import Signs, spark_signs
from apps.topics import KafkaTopics
from kernel.errors import TooLarge, Unavailable
from kernel.loops import Loop
from kernel.positions import Offsets, TopicId
from lake.table_columns import DECODED
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Bound, Committed, Manifest
from pipeline.decode.side_by_side import Many
from pipeline.executor import Executor, ExecutorChoice
from pipeline.installs.announced import InstallBook

_TOPICS_APPEARED = "you must specify all TopicPartitions"
"""Part of what Spark says when its own list of partitions is newer than the one we gave."""


_MESSAGES = ".message"
"""How the topics end that Debezium sends logical messages to."""


class Stopped(Exception):
    """Ends a run between two epochs."""


def _only_messages(bound: Bound) -> bool:
    """Whether only topics of logical messages moved on, where heartbeats are among the records."""
    moved = (topic for topic, places in bound.end.items() if places != bound.start.get(topic))
    return all(topic.endswith(_MESSAGES) for topic in moved)


def _not_read(source: str) -> str:
    return f"source {source} is not read"


class IngestRun:
    """One run of the streaming query, from `start` to `stop` or to an error.

    Sources `without` stand still: their records are not read, and their offsets stay.
    """

    def __init__(
        self,
        spark: SparkSession,
        topics: KafkaTopics,
        router: TopicRouter,
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
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._router = router
        self._ingest = ingest
        self._book = book
        self._skips = skips_of(book)
        self._captures = captures
        self._without = without
        self._topic_ids: dict[str, TopicId] = {}
        self.gaps: dict[str, list[Gap]] = {}
        self._checkpoints = checkpoints
        self._max_records = max_records
        self._executor = executor
        self._loop = loop
        self._before_epoch = before_epoch
        self._after_epoch = after_epoch
        self._after_rest = after_rest
        self._run_id = uuid.uuid4().hex
        self._busy = threading.Lock()
        self._stopping = False
        self._error: BaseException | None = None
        self._start: Offsets = {}
        self._taken: Offsets = {}
        self._query: StreamingQuery | None = None

    def finish_unfinished(self, manifest: Manifest) -> Committed | None:
        """Finish the epoch that was bound and not committed, over exactly its offsets.

        Raises `Unavailable` when Kafka does not have them any more, until a recovery lets it skip.
        """
        bound = manifest.unfinished()
        if bound is None:
            return None
        there = still_there(bound, self._ingest.last, self._skips, self._topics, self._told)
        left_out = [t for t in bound.end if source_of(t, *self._told) in self._without]
        start = {t: at for t, at in there.items() if t not in left_out}
        end = {t: {p: bound.end[t][p] for p in places} for t, places in start.items()}
        if end:
            records = read_records(self._spark, self._topics.bootstrap, start, end)
            done = self._run(bound, records, (start, end), may_rest=False, without=left_out)
        else:
            done = self._ingest.run_epoch(bound, DECODED.empty_table, without=left_out)
        assert done is not None, "a bound epoch is finished, whatever it says"
        self._after_epoch(done)
        return done

    def start(self) -> None:
        """Start the query at the manifest's offsets; partitions it does not know, at their first.

        Raises `Unavailable` while there is no topic to read.
        """
        read, pattern, told = standing_of(self._ingest.last), self._router.pattern(), self._told
        kept = kept_by(self._topics, pattern, read, self._captures, *told)
        going_on = next_offsets(read, self._skips, kept.topics)
        self.gaps, self._topic_ids = gaps_of(going_on, kept, *told), dict(kept.topics)
        router = self._router.leaving_out({*self.gaps, *self._without})
        self._start = {
            topic: {p: going_on.offsets.get(topic, {}).get(p, at) for p, at in places.items()}
            for topic, places in kept.first.items()
            if re.fullmatch(router.pattern(), topic)
        }
        if not self._start:
            gone = "; ".join(
                [*(reason(gaps) for gaps in self.gaps.values()), *map(_not_read, self._without)]
            )
            raise Unavailable(gone or f"no topic matches {pattern} yet")
        self._taken = self._start
        for old in self._checkpoints.glob("*"):
            shutil.rmtree(old, ignore_errors=True)
        records = stream_records(
            self._spark,
            self._topics.bootstrap,
            router.pattern(),
            self._start,
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
        """Make an epoch of decisions that wait, where nothing else is to be read just now."""
        if not self._ingest.undecided():
            return
        with self._loop.working("a decision"), self._busy:
            if self._stopping or self._error is not None or not self._ingest.undecided():
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
        pattern, last = self._router.pattern(), self._ingest.last
        now = look(self._topics, pattern, last, self._book, self._captures, *self._told)
        return now != self.gaps

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

        Spark's `stop` returns when the query's thread has ended: whoever holds `busy` meanwhile
        waits for ever for a batch that has just begun and waits for `busy`.
        """
        self._stopping = True
        with self._loop.working("the end of a run"):
            with self._busy:
                query = self._query  # No batch is amid its epoch; one that begins now ends at once.
            if query is not None:
                query.stop()

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

    def _at_work(self, records: DataFrame, batch_id: int) -> None:
        with self._loop.working("the begin of a batch"):
            self._batch(records, batch_id)

    def _batch(self, records: DataFrame, batch_id: int) -> None:
        with self._busy:
            if self._stopping:
                raise Stopped
            try:
                self._before_epoch()
                bound = self._bind(batch_id)
                within = bound.start, bound.end
                done = self._run(bound, records, within, may_rest=_only_messages(bound))
            except BaseException as error:
                # Spark wraps what a callback raises in text: keep the error itself.
                self._error = error
                raise
        self._taken = {**self._taken, **bound.end}
        if done is None:
            self._after_rest(bound.end)
        else:
            self._after_epoch(done)

    def _run(
        self,
        bound: Bound,
        records: DataFrame,
        within: tuple[Offsets, Offsets],
        *,
        may_rest: bool,
        without: Collection[str] = (),
    ) -> Committed | None:
        """Return the epoch; None for a batch that said nothing and was passed by.

        `records` are those `within` two offsets.
        """
        decode = partial(self._decoded, records, *within)
        small = self._executor.of(records_between(*within)) is Executor.DRIVER
        if may_rest and small:
            decoded = decode()
            if self._ingest.pass_by(bound, decoded):
                return None
            return self._ingest.run_epoch(bound, lambda: decoded)
        stage = partial(stage_records, self._spark, self._topics.bootstrap, *within, self._router)
        return self._ingest.run_epoch(
            bound,
            decode if small else None,
            stage=self._executor.noting(stage) if self._executor.may_pass_on else None,
            without=without,
        )

    def _decoded(self, records: DataFrame, start: Offsets, end: Offsets) -> pa.Table:
        """Decode records in this process."""
        slow = {t: p for t, p in end.items() if not isinstance(self._router.decoder(t), Many)}
        try:
            decoded = decode_records(
                records,
                self._router,
                one_by_one=records_between(start, slow),
                most_bytes=self._executor.most_bytes,
            )
        except TooLarge:
            self._executor.refused(records_between(start, end))
            raise
        self._executor.saw(decoded.num_rows, decoded.nbytes)
        return decoded

    def _bind(self, batch_id: int) -> Bound:
        end = self._planned(batch_id)
        start, topics = self._known(end)
        new = {
            topic: [int(p) for p in places if p not in start.get(topic, {})]
            for topic, places in end.items()
        }
        first = self._topics.earliest({t: parts for t, parts in new.items() if parts})
        return Bound(
            epoch=self._ingest.next_epoch,
            run_id=self._run_id,
            batch_id=batch_id,
            start={
                topic: {
                    p: start.get(topic, {}).get(
                        p, self._start.get(topic, {}).get(p, first.get(topic, {}).get(p, 0))
                    )
                    for p in places
                }
                for topic, places in end.items()
            },
            end=end,
            topics=topics,
        )

    def _known(self, end: Offsets) -> tuple[Offsets, dict[str, TopicId]]:
        """Return where a batch begins, and the topics in it that the manifest does not know yet.

        Raises `Unavailable` when a topic with new records is not the one that this run began with:
        the next run looks at all of them.
        """
        read = standing_of(self._ingest.last)
        moved = [topic for topic, places in end.items() if places != read.offsets.get(topic)]
        now = self._topics.ids(moved)
        going_on = next_offsets(read, self._skips, {**self._topic_ids, **now})
        expected = {**self._topic_ids, **going_on.topics}
        for topic in moved:
            if topic not in now or now[topic].id != expected.get(topic, now[topic]).id:
                raise Unavailable(f"topic {topic} was deleted or made again while it was read")
        self._topic_ids |= now
        noted = {**self._topic_ids, **going_on.topics}
        changed = {t: noted[t] for t in end if t in noted and noted[t] != read.topics.get(t)}
        return going_on.offsets, changed

    def _planned(self, batch_id: int) -> Offsets:
        """Return the end offsets of a batch, from the checkpoint that the stream writes here.

        Nothing public tells them before the batch is through: see ADR 0035. The format (a version
        line, metadata, one line per source) is one that later versions of Spark have to read.
        """
        text = (self._checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
        offsets: Offsets = json.loads(text.splitlines()[2])
        return offsets
