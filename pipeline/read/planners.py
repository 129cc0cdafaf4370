"""How far reading may go: asked of Spark for lanes that keep up, of the broker for one by itself.

    Spark: a stream over all topics -> its checkpoint says where a batch ends -> work
    broker: where the topics of one lane end, asked again and again        -> work

What is read between two offsets is up to who is told of them: see `stream.IngestRun`.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from kernel.errors import Unavailable
from kernel.positions import Offsets, covers
from lake.sessions import spark_signs
from pipeline.read.kafka_records import stream_records
from pipeline.read.kafka_topics import KafkaTopics

Work = Callable[[int, Offsets], None]
"""Called with the number of a batch and where it ends; one call at a time. What it raises ends the
planner, with that as its error."""

_TOPICS_APPEARED = "you must specify all TopicPartitions"
"""Part of what Spark says when its own list of partitions is newer than the one we gave."""
_LOOK_S = 0.1
_LOOKS_BETWEEN = 10
"""Looks at where known partitions end between two at which ones there are."""
_PATIENCE_S = 20.0
"""A broker that does not answer for so long ends the planner."""


class Planner(Protocol):
    """Tells `work` how far it may read, from `start` until `stop` or an error."""

    def start(self, work: Work) -> None:
        """Begin, in another thread."""
        ...

    @property
    def active(self) -> bool:
        """Whether it goes on."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What ended it."""
        ...

    @property
    def progress(self) -> object:
        """What changes whenever something was done for it that cannot be seen otherwise."""
        ...

    def stop(self) -> None:
        """End it; returns when `work` is not called any more."""
        ...


class SparkPlanner:
    """A streaming query whose batches are offsets alone: nobody asks for its rows."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        pattern: str,
        start: Offsets,
        *,
        max_records: int,
        checkpoints: Path,
        run_id: str,
    ) -> None:
        self._spark = spark
        self._checkpoints = checkpoints
        self._checkpoint = checkpoints / run_id
        self._records = stream_records(spark, bootstrap, pattern, start, max_records=max_records)
        self._query: StreamingQuery | None = None

    def start(self, work: Work) -> None:
        """Begin a query with a checkpoint of its own."""
        for old in self._checkpoints.glob("*"):
            shutil.rmtree(old, ignore_errors=True)

        def batch(_: DataFrame, batch_id: int) -> None:
            work(batch_id, self._planned(batch_id))

        self._query = (
            self._records.writeStream.foreachBatch(batch)
            # Hadoop takes the name as it is: a space in it is not written as a URI has it.
            .option("checkpointLocation", f"file://{self._checkpoint}")
            # The next batch begins when the last one is through: a fixed beat would be waited for.
            .trigger(processingTime="0 seconds")
            .start()
        )

    @property
    def active(self) -> bool:
        """Whether the query runs."""
        return self._query is not None and bool(self._query.isActive)

    @property
    def error(self) -> BaseException | None:
        """What the query says that ended it; Spark has what `work` raised as text alone."""
        failure: BaseException | None = self._query.exception() if self._query is not None else None
        if failure is not None and _TOPICS_APPEARED in str(failure):
            return Unavailable("topics appeared while the stream was starting: it starts again")
        return failure

    @property
    def progress(self) -> object:
        """The jobs and tasks that Spark did for the query."""
        query = self._query
        return None if query is None else spark_signs(self._spark, str(query.runId)).progress

    def stop(self) -> None:
        """End the query; a batch under way is finished first."""
        if self._query is not None:
            self._query.stop()

    def _planned(self, batch_id: int) -> Offsets:
        """Return the end offsets of a batch, from the checkpoint that the stream writes here.

        Nothing public tells them before the batch is through: see ADR 0035. The format (a version
        line, metadata, one line per source) is one that later versions of Spark have to read.
        """
        text = (self._checkpoint / "offsets" / str(batch_id)).read_text(encoding="utf-8")
        offsets: Offsets = json.loads(text.splitlines()[2])
        return offsets


class BrokerPlanner:
    """A thread that asks the broker where topics end that match a pattern. It begins at once."""

    def __init__(
        self,
        topics: KafkaTopics,
        pattern: str,
        start: Offsets,
        *,
        name: str,
        begins: Callable[[], None],
    ) -> None:
        """`begins` is called in the thread before anything else."""
        self._topics = topics
        self._pattern = pattern
        self._known = {topic: [int(p) for p in places] for topic, places in start.items()}
        self._through = start
        self._begins = begins
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._work: Work | None = None
        self._batch = 0

    def start(self, work: Work) -> None:
        """Begin to ask."""
        self._work = work
        self._thread.start()

    @property
    def active(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def error(self) -> BaseException | None:
        """What ended the thread."""
        return self._error

    @property
    def progress(self) -> object:
        """How many batches were told of."""
        return self._batch

    def stop(self) -> None:
        """End the thread; a batch under way is finished first."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._begins()
            self._follow()
        except BaseException as error:
            self._error = error

    def _follow(self) -> None:
        assert self._work is not None, "it was started with work"
        looks = 0
        while not self._over.is_set():
            ends = self._ends(new=looks % _LOOKS_BETWEEN == 0)
            looks += 1
            if covers(self._through, ends):
                self._over.wait(_LOOK_S)
                continue
            self._work(self._batch, ends)
            self._through = ends
            self._batch += 1

    def _ends(self, *, new: bool) -> Offsets:
        """Return where the topics end, those that are `new` among them."""
        waited = 0.0
        while True:
            try:
                if new:
                    self._known |= self._topics.matching(self._pattern)
                return self._topics.readable_ends(self._known)
            except Unavailable:
                if waited >= _PATIENCE_S or self._over.wait(1.0):
                    raise
                waited += 1.0
