"""Topics that are deleted, made again or widened between two runs of the stream."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from apps import gaps
from apps.pipeline.stream import IngestRun
from apps.settings import Settings
from apps.topics import KafkaTopics
from kernel.errors import StoreDiverged, Unavailable
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.executor import Executor, ExecutorChoice
from projections.runner.manifest import Manifest
from projections.state.installs import InstallBook
from tests.support.lake.feeding import STORE, Epochs, EventFeed, Fed, event_router
from tests.support.services.waiting import until


class Reader:
    """Reads a topic of events in one run of the stream after the other."""

    def __init__(
        self, stack: Settings, spark: SparkSession, lake: Lake, prefix: str, scratch: Path
    ) -> None:
        self.feed = EventFeed(stack, prefix)
        self.prefix = prefix
        self.topics = KafkaTopics(self.feed.bootstrap)
        self.admin = AdminClient({"bootstrap.servers": self.feed.bootstrap})
        self.book = InstallBook(lake, Tables())
        self._spark, self._lake, self._scratch = spark, lake, scratch
        self.epochs = Epochs(spark, lake, event_router(stack, prefix), self.feed.bootstrap)

    def run(self, *, without: Collection[str] = ()) -> IngestRun:
        """Return the next run of the stream, as a process that has just started makes it."""
        self.epochs.restart()
        run = IngestRun(
            self._spark,
            self.topics,
            self.epochs.router,
            self.epochs.ingest,
            InstallBook(self._lake, Tables()),
            captures={},
            without=without,
            checkpoints=self._scratch,
            max_records=1_000,
            executor=ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**25),
            before_epoch=lambda: None,
            after_epoch=lambda _: None,
            after_rest=lambda _: None,
        )
        run.finish_unfinished(self.epochs.manifest)
        return run

    def read(self, expected: Collection[int]) -> None:
        """Read until the log has exactly these positions, each once."""
        run = self.run()
        run.start()
        assert run.gaps == {}
        try:
            until(lambda: run.error is not None or self.positions() == sorted(expected), "read")
        finally:
            run.stop()
        assert run.error is None
        assert self.positions() == sorted(expected)

    def positions(self) -> list[int]:
        rows = Tables().read(self._lake.path(f"log/events/{STORE}"), columns=["position"])
        return [] if rows is None else sorted(rows["position"].to_pylist())

    def refused(self) -> gaps.Gap:
        """Return why the next run does not read, as the health says it too."""
        run = self.run()
        with pytest.raises(Unavailable):
            run.start()
        return run.gaps[gaps.OUTBOX][0]

    def lost(self) -> list[gaps.Gap]:
        """Return what a recovery finds to be lost."""
        last = Manifest(self._lake, Tables()).last()
        pattern = self.epochs.router.pattern()
        found = gaps.look(self.topics, pattern, last, self.book, {}, self.prefix)
        return found[gaps.OUTBOX]

    def delete(self) -> None:
        """Delete the topic and wait until the broker has forgotten it."""
        for future in self.admin.delete_topics([self.feed.topic]).values():
            future.result(timeout=30)
        until(lambda: not self.topics.ids([self.feed.topic]), "the topic is gone")


@pytest.fixture
def reader(stack: Settings, spark: SparkSession, lake: Lake, prefix: str, tmp_path: Path) -> Reader:
    return Reader(stack, spark, lake, prefix, tmp_path / "checkpoints")


def events(first: int, last: int) -> list[Fed]:
    return [Fed(position=p, flight=p % 7) for p in range(first, last + 1)]


def test_p9_a_topic_that_was_made_again_and_outgrew_the_old_offsets_is_named(
    reader: Reader, stack: Settings
) -> None:
    reader.feed.send(events(1, 20))
    reader.read(range(1, 21))
    reader.delete()
    deleted = reader.lost()
    assert "was deleted" in str(deleted[0])

    reader.feed = EventFeed(stack, reader.prefix)
    reader.feed.send(events(21, 120))
    assert "was deleted and made again" in str(reader.refused())
    assert reader.positions() == list(range(1, 21)), "nothing was read from its middle"

    gaps.skip(reader.book, gaps.OUTBOX, reader.lost())
    reader.read(range(1, 121))
    reader.feed.send(events(121, 130))
    reader.read(range(1, 131))


def test_partitions_that_are_added_are_read_from_their_beginning(reader: Reader) -> None:
    reader.feed.send(events(1, 20))
    reader.read(range(1, 21))
    added = [NewPartitions(reader.feed.topic, 3)]
    for future in reader.admin.create_partitions(added).values():
        future.result(timeout=30)
    producer = Producer({"bootstrap.servers": reader.feed.bootstrap})
    for event in events(11, 30):
        # The outbox starts again: some come once more, all of them in the partition that is new.
        headers = [(name, text.encode()) for name, text in reader.feed.headers(event).items()]
        producer.produce(
            reader.feed.topic, reader.feed.value(event), key="x", partition=2, headers=headers
        )
    assert producer.flush(30) == 0
    reader.read(range(1, 31))


def test_p9_a_store_that_diverged_holds_its_own_topics_alone(reader: Reader) -> None:
    reader.feed.send(events(1, 20))
    reader.read(range(1, 21))
    before = reader.epochs.manifest.last()
    assert before is not None
    reader.feed.send([Fed(position=5, flight=6, delay=99), Fed(position=21)])
    run = reader.run()
    run.start()
    until(lambda: run.error is not None, "the other content is noticed")
    run.stop()
    assert isinstance(run.error, StoreDiverged)
    with pytest.raises(StoreDiverged):
        reader.run()

    run = reader.run(without={gaps.OUTBOX})
    done = reader.epochs.manifest.last()
    assert done is not None
    assert (done.epoch, done.end) == (before.epoch + 1, before.end), "the epoch is finished"
    assert reader.positions() == list(range(1, 21))
    with pytest.raises(Unavailable, match="source outbox is not read"):
        run.start()
