"""Topics that are deleted, made again or widened between two runs of the stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from apps.settings import Settings
from cdc.connect import ConnectClient
from kernel.errors import StoreDiverged, Unavailable
from kernel.loops import Loop
from lake.layout import Lake, changes_log
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.executor import Executor, ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.read import gaps
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.stream import IngestRun
from schemas.identifiers import OUTBOX
from tests.support.lake.feeding import STORE, Epochs, EventFeed, Fed, event_router
from tests.support.services.waiting import until
from tests.support.sources.mirroring import mirrored


@dataclass
class Runs:
    """One run of the stream after the other, over whatever a router reads."""

    epochs: Epochs
    scratch: Path
    captures: Mapping[str, Collection[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = self.epochs.router.prefix
        self.topics = KafkaTopics(self.epochs.bootstrap)
        self.admin = AdminClient({"bootstrap.servers": self.epochs.bootstrap})
        self.book = InstallBook(self.epochs.lake, Tables())

    def run(self, *, without: Collection[str] = ()) -> IngestRun:
        """Return the next run of the stream, as a process that has just started makes it."""
        self.epochs.restart()
        run = IngestRun(
            self.epochs.spark,
            self.topics,
            self.epochs.router,
            self.epochs.ingest,
            InstallBook(self.epochs.lake, Tables()),
            captures=self.captures,
            without=without,
            checkpoints=self.scratch,
            max_records=1_000,
            executor=ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**25),
            loop=Loop("ingest"),
            before_epoch=lambda: None,
            after_epoch=lambda _: None,
            after_rest=lambda _: None,
        )
        run.finish_unfinished(self.epochs.manifest)
        return run

    def read_until(self, reached: Callable[[], bool]) -> None:
        """Read in one run until something is true."""
        run = self.run()
        run.start()
        assert run.gaps == {}
        try:
            until(lambda: run.error is not None or reached(), "it is read", deadline_s=120)
        finally:
            run.stop()
        assert run.error is None

    def refused(self, source: str = OUTBOX) -> gaps.Gap:
        """Return why the next run does not read, as the health says it too."""
        run = self.run()
        with pytest.raises(Unavailable):
            run.start()
        return run.gaps[source][0]

    def lost(self, source: str = OUTBOX) -> list[gaps.Gap]:
        """Return what a recovery finds to be lost."""
        last = Manifest(self.epochs.lake, Tables()).last()
        pattern = self.epochs.router.pattern()
        found = gaps.look(self.topics, pattern, last, self.book, self.captures, self.prefix)
        return found[source]

    def widen(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, and wait until the broker tells of them."""
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(timeout=30)

        def told() -> int:
            found = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
            return sum(each.leader >= 0 for each in found.values())

        # A record for a partition that nobody knows yet is not delivered.
        until(lambda: told() == partitions, "the partitions are there")

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until the broker has forgotten it."""
        for future in self.admin.delete_topics([topic]).values():
            future.result(timeout=30)
        until(lambda: not self.topics.ids([topic]), "the topic is gone")


class Reader(Runs):
    """Reads a topic of events."""

    def __init__(
        self, stack: Settings, spark: SparkSession, lake: Lake, prefix: str, scratch: Path
    ) -> None:
        self.feed = EventFeed(stack, prefix)
        router = event_router(stack, prefix)
        super().__init__(Epochs(spark, lake, router, self.feed.bootstrap), scratch)

    def read(self, expected: Collection[int]) -> None:
        """Read until the log has exactly these positions, each once."""
        self.read_until(lambda: self.positions() == sorted(expected))
        assert self.positions() == sorted(expected)

    def positions(self) -> list[int]:
        rows = Tables().read(self.epochs.lake.path(f"log/events/{STORE}"), columns=["position"])
        return [] if rows is None else sorted(rows["position"].to_pylist())

    def delete(self) -> None:
        """Delete the topic."""
        self.delete_topic(self.feed.topic)


ACCOUNT = "public.account"
ACCOUNTS = """
CREATE TABLE account (id bigint PRIMARY KEY, balance bigint);
INSERT INTO account SELECT i, 0 FROM generate_series(1, 40) i;
"""
_RAISE = "UPDATE account SET balance = balance + 1"


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

    gaps.skip(reader.book, OUTBOX, reader.lost())
    reader.read(range(1, 121))
    reader.feed.send(events(121, 130))
    reader.read(range(1, 131))


def test_partitions_that_are_added_are_read_from_their_beginning(reader: Reader) -> None:
    reader.feed.send(events(1, 20))
    reader.read(range(1, 21))
    reader.widen(reader.feed.topic, 3)
    producer = Producer({"bootstrap.servers": reader.feed.bootstrap})
    lost: list[str] = []

    def delivered(error: KafkaError | None, _: object) -> None:
        lost.extend([] if error is None else [error.str()])

    for event in events(11, 30):
        # The outbox starts again: some come once more, all of them in the partition that is new.
        told = reader.feed.headers(event)
        producer.produce(
            reader.feed.topic,
            reader.feed.value(event),
            key=told["stream"],
            partition=2,
            headers=[(name, text.encode()) for name, text in told.items()],
            on_delivery=delivered,
        )
    assert (producer.flush(30), lost) == (0, [])
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

    run = reader.run(without={OUTBOX})
    done = reader.epochs.manifest.last()
    assert done is not None
    assert (done.epoch, done.end) == (before.epoch + 1, before.end), "the epoch is finished"
    assert reader.positions() == list(range(1, 21))
    with pytest.raises(Unavailable, match="source outbox is not read"):
        run.start()


@pytest.mark.matrix
def test_p9_topics_of_a_connector_that_is_restarted_while_they_grow_and_are_made_again(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    tmp_path: Path,
    new_source: Callable[[str], str],
) -> None:
    with (
        mirrored(stack, spark, lake, prefix, new_source(ACCOUNTS), [ACCOUNT]) as mirror,
        ConnectClient(stack.required("connect.url")) as connect,
    ):
        runs = Runs(mirror.epochs, tmp_path / "checkpoints", {mirror.name: [ACCOUNT]})
        connector = f"test-{mirror.name}"
        topic = f"{prefix}{mirror.name}.{ACCOUNT}"

        def read() -> None:
            mark = mirror.mark()
            runs.read_until(lambda: mirror.cut() > mark)
            mirror.assert_equal()
            log = Tables().read(lake.path(changes_log(mirror.name)))
            assert log is not None
            rows = log.filter(pc.equal(log["table"], ACCOUNT))
            places = rows.group_by(["lsn", "total_order", "key"]).aggregate([])
            assert places.num_rows == rows.num_rows, "none twice"

        mirror.catch_up()
        mirror.assert_equal()
        runs.widen(topic, 5)
        mirror.execute(_RAISE)
        connect.restart(connector)
        mirror.execute(_RAISE)
        # The rows of a key before and behind that may be in different partitions.
        read()
        connect.restart(connector)
        mirror.execute(_RAISE)
        read()

        connect.stop(connector)
        runs.delete_topic(topic)
        mirror.execute(*[_RAISE] * 12)
        connect.resume(connector)
        connect.await_running(connector, timeout_s=60)
        connect.restart(connector)
        connect.await_running(connector, timeout_s=60)
        until(lambda: grown(runs.topics, topic) >= 12 * 40, "it has outgrown the old offsets")
        before = Manifest(lake, Tables()).last()
        assert "was deleted and made again" in str(runs.refused(mirror.name))
        assert Manifest(lake, Tables()).last() == before, "nothing was read from its middle"
        gaps.skip(runs.book, mirror.name, runs.lost(mirror.name))
        read()


def grown(topics: KafkaTopics, topic: str) -> int:
    """Return how many offsets a topic has, of all its partitions together."""
    found = topics.matching(f"^{re.escape(topic)}$")
    return sum(topics.ends(found).get(topic, {}).values())
