"""Small ranges that are read by the driver's own consumer are what Spark reads of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel.errors import TooLarge, Unavailable
from kernel.positions import Offsets
from pipeline.read import driver_reads
from pipeline.read.driver_reads import RECORDS, DriverReads
from pipeline.read.kafka_records import RECORD_COLUMNS, read_records
from pipeline.read.kafka_topics import KafkaTopics
from tests.support.lake.feeding import create_topic
from tests.support.services.waiting import until

PARTITIONS = 3
LARGE = 3 * 2**20


@pytest.fixture
def bootstrap(stack: Settings) -> str:
    return stack.required("kafka.bootstrap")


@pytest.fixture
def reads(bootstrap: str) -> Iterator[DriverReads]:
    with closing(DriverReads(bootstrap)) as made:
        yield made


class Feed:
    """Produces odd records to two topics, some of them in transactions that are given up."""

    def __init__(self, bootstrap: str, prefix: str, seed: int) -> None:
        self.draw = random.Random(seed)
        self.topics = [f"{prefix}one", f"{prefix}other"]
        for topic in self.topics:
            create_topic(bootstrap, topic, PARTITIONS)
        limits = {"message.max.bytes": 2 * LARGE}
        self._plain = Producer({"bootstrap.servers": bootstrap, **limits})
        self._transactional = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{prefix}feed", **limits}
        )
        self._transactional.init_transactions(30)
        self._made = 0
        self.known = KafkaTopics(bootstrap)

    def ends(self) -> dict[str, dict[str, int]]:
        """Return where committed records end, once topics that were just made have leaders."""
        asked = {topic: list(range(PARTITIONS)) for topic in self.topics}
        found: list[dict[str, dict[str, int]]] = []

        def told() -> bool:
            with suppress(Unavailable):
                found.append(self.known.readable_ends(asked))
            return bool(found)

        until(told, "the broker tells where the topics end")
        return found[-1]

    def some(self, most: int) -> None:
        """Produce some records."""
        ended = self.draw.choice(["plain", "plain", "commit", "abort"])
        producer = self._plain if ended == "plain" else self._transactional
        if ended != "plain":
            producer.begin_transaction()
        for _ in range(self.draw.randint(1, most)):
            self.one(producer)
        producer.flush()
        if ended == "commit":
            producer.commit_transaction(30)
        elif ended == "abort":
            producer.abort_transaction(30)

    def one(self, producer: Producer, value: bytes | None = None) -> None:
        """Produce a record that may lack this or that."""
        self._made += 1
        name = f"{self._made}".encode()
        producer.produce(
            self.draw.choice(self.topics),
            key=self.draw.choice([None, b"", name]),
            value=self.draw.choice([None, b"", name * 9]) if value is None else value,
            partition=self.draw.randrange(PARTITIONS),
            headers=self.draw.choice([None, [("a", name), ("a", b""), ("ü", None)]]),
            # Of long ago, the broker would remove them for their age.
            timestamp=round(time.time() * 1000) - self.draw.randint(0, 3_600_000),
        )

    def large(self) -> None:
        """Produce a record that is larger than what a fetch asks for of a partition."""
        self.one(self._plain, b"x" * LARGE)
        self._plain.flush()


def same(
    spark: SparkSession, bootstrap: str, found: pa.Table | None, within: tuple[Offsets, Offsets]
) -> None:
    """Compare with what Spark reads."""
    assert found is not None
    expected = read_records(spark, bootstrap, *within).select(*RECORD_COLUMNS).toArrow()
    assert rows_of(found) == rows_of(expected.cast(RECORDS))


def rows_of(records: pa.Table) -> list[dict[str, object]]:
    """Return the records, each partition's in the order in which they were read."""
    rows = records.to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_ranges_are_what_spark_reads(
    spark: SparkSession, bootstrap: str, prefix: str, reads: DriverReads, seed: int
) -> None:
    """Ranges follow each other, or begin anew; what lies behind them may be there already."""
    feed = Feed(bootstrap, prefix, seed)
    first = feed.ends()
    start, ranges = first, []
    for step in range(8):
        for _ in range(feed.draw.randint(0, 3)):
            feed.some(40)
        if step == 4:
            feed.large()
        ends = feed.ends()
        end = {
            topic: {
                p: feed.draw.choice([at, feed.draw.randint(start[topic][p], at)])
                for p, at in places.items()
            }
            for topic, places in ends.items()
        }
        ranges.append((start, end, reads.read(start, end, most_bytes=2**30)))
        start = feed.draw.choice([end, end, first])
    for begin, end, found in ranges:
        same(spark, bootstrap, found, (begin, end))


def test_what_a_transaction_leaves_open_is_not_waited_for(
    bootstrap: str, prefix: str, reads: DriverReads
) -> None:
    feed = Feed(bootstrap, prefix, 3)
    for _ in range(6):
        feed.some(3)
    start = {topic: dict.fromkeys(map(str, range(PARTITIONS)), 0) for topic in feed.topics}
    end = feed.ends()
    found = reads.read(start, end, most_bytes=2**30)
    assert found is not None
    # Markers alone lie between these offsets, or nothing does.
    again = reads.read(end, feed.ends(), most_bytes=2**30)
    assert again is not None
    assert again.num_rows == 0


def test_what_is_too_large_is_not_held(bootstrap: str, prefix: str, reads: DriverReads) -> None:
    feed = Feed(bootstrap, prefix, 4)
    start = feed.ends()
    feed.large()
    end = feed.ends()
    with pytest.raises(TooLarge, match="small epoch"):
        reads.read(start, end, most_bytes=2**20)
    found = reads.read(start, end, most_bytes=2**30)
    assert found is not None
    assert found.num_rows == 1


def test_records_behind_a_range_are_held_or_fetched_again(
    spark: SparkSession,
    bootstrap: str,
    prefix: str,
    reads: DriverReads,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver_reads, "HELD_BYTES", 500)
    feed = Feed(bootstrap, prefix, 5)
    start = feed.ends()
    for _ in range(6):
        feed.some(60)
    end = feed.ends()
    middle = {t: {p: (start[t][p] + at) // 2 for p, at in ps.items()} for t, ps in end.items()}
    for begin, stop in ((start, middle), (middle, end), (start, end)):
        same(spark, bootstrap, reads.read(begin, stop, most_bytes=2**30), (begin, stop))


def test_what_the_broker_has_not_is_left_to_spark(
    bootstrap: str, prefix: str, reads: DriverReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reads, "PATIENCE_S", 0.2)
    feed = Feed(bootstrap, prefix, 6)
    feed.some(5)
    end = feed.ends()
    topic = feed.topics[0]
    beyond: Offsets = {topic: {"0": end[topic]["0"] + 5}}
    assert reads.read({topic: {"0": 0}}, beyond, most_bytes=2**30) is None
    assert reads.read({topic: {"0": end[topic]["0"] + 4}}, beyond, most_bytes=2**30) is None
    assert reads.read({}, beyond, most_bytes=2**30) is None
    gone: Offsets = {f"{topic}-gone": {"0": 1}}
    assert reads.read({f"{topic}-gone": {"0": 0}}, gone, most_bytes=2**30) is None
    found = reads.read({topic: {"0": 0}}, {topic: {"0": end[topic]["0"]}}, most_bytes=2**30)
    assert found is not None
