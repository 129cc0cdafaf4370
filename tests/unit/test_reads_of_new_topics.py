"""The first record of a topic comes as soon as any other, and nobody waits a second for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from pipeline.read import driver_reads
from pipeline.read.driver_reads import DriverReads

TOPICS = ("one", "two", "three", "four", "five")


@pytest.fixture
def cluster() -> Producer:
    """Return a producer that brings a broker of its own, without a server."""
    made = Producer(
        {"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0},
    )
    for topic in TOPICS:
        made.produce(topic, topic.encode(), partition=0)
    assert made.flush(30) == 0
    return made


@pytest.fixture
def reads(cluster: Producer) -> Iterator[DriverReads]:
    (broker,) = cluster.list_topics(timeout=30).brokers.values()
    with closing(DriverReads(f"{broker.host}:{broker.port}")) as made:
        yield made


def first_record(reads: DriverReads, *topics: str) -> list[bytes]:
    """Read the first record of topics that were not read before."""
    places = [{topic: {"0": at} for topic in topics} for at in (0, 1)]
    found = reads.read(*places, most_bytes=2**20)
    assert found is not None, "the broker has them"
    return sorted(found["value"].to_pylist())


def test_a_topic_that_is_new_is_not_waited_for_until_the_next_look_of_the_client(
    reads: DriverReads,
) -> None:
    took = []
    for topic in TOPICS:
        began = time.monotonic()
        assert first_record(reads, topic) == [topic.encode()]
        took.append(time.monotonic() - began)
    # The client looks once a second by itself: each but the first would wait for nearly as long.
    assert min(took[1:]) < 0.6, took


def test_many_new_topics_are_asked_for_together(
    reads: DriverReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_reads, "_FEW_TOPICS", 2)
    assert first_record(reads, *TOPICS) == sorted(topic.encode() for topic in TOPICS)


def test_a_broker_that_tells_of_no_topic_is_read_all_the_same(reads: DriverReads) -> None:
    class Silent:
        """A consumer whose broker does not answer."""

        def list_topics(self, topic: str | None, timeout: float) -> None:
            raise KafkaException("nobody answers")

    silent: Any = Silent()
    reads._ask_for_leaders(silent, TOPICS)
    assert first_record(reads, "one") == [b"one"]
