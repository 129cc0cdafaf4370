"""Servers beside the pipeline that do not answer are told, whoever needs them now."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge

from cdc.upkeep.neighbours import STRIKES, Neighbours, neighbours_of
from kernel.errors import Unavailable
from pipeline.read import kafka_topics
from pipeline.read.kafka_topics import KafkaTopics
from schemas.registry import ConfluentRegistry, MemoryRegistry


@pytest.fixture(autouse=True)
def _clients_end() -> Iterator[None]:
    """A client of Kafka that is left would write its search for a server into what others print."""
    yield
    gc.collect()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def up() -> Gauge:
    return Gauge("up", "", ["part"], registry=CollectorRegistry())


def shown(up: Gauge) -> dict[str, float]:
    return {sample.labels["part"]: sample.value for sample in up.collect()[0].samples}


def test_a_server_is_silent_after_three_questions_and_answers_at_once(
    pool: ThreadPoolExecutor, up: Gauge
) -> None:
    hangs = True

    def ask() -> None:
        if hangs:
            raise Unavailable("no answer", remedy="penstock mend it")

    asked = Neighbours({"registry": ask, "kafka": lambda: None}, up)
    for _ in range(STRIKES - 1):
        asked.look(pool)
        assert (asked.silent, shown(up)) == ({}, {"registry": 1.0, "kafka": 1.0})
    asked.look(pool)
    assert asked.silent == {"registry": "no answer"}
    assert shown(up) == {"registry": 0.0, "kafka": 1.0}
    hangs = False
    asked.look(pool)
    assert (asked.silent, shown(up)) == ({}, {"registry": 1.0, "kafka": 1.0})


def test_servers_are_asked_side_by_side(pool: ThreadPoolExecutor, up: Gauge) -> None:
    both = threading.Barrier(2, timeout=10)
    asked = Neighbours({"registry": both.wait, "kafka": both.wait}, up)
    for _ in range(STRIKES):
        asked.look(pool)
    assert asked.silent == {}


def test_what_the_settings_name_is_asked(
    tmp_path: Path, up: Gauge, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing listens where the settings lead: each question ends in an error of its own."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        at = f"127.0.0.1:{closed.getsockname()[1]}"
    text = f'[postgres]\ndsn = "postgresql://{at}/none"\n[connect]\nurl = "http://{at}"\n'
    (tmp_path / "penstock.toml").write_text(text)
    monkeypatch.setattr(kafka_topics, "TIMEOUT_S", 0.1)
    dsn, topics = f"postgresql://{at}/none", KafkaTopics(at)
    registry = ConfluentRegistry(f"http://{at}")
    asked = neighbours_of(dsn, f"http://{at}", registry, topics, up)
    for _ in range(STRIKES):
        asked.look(pool)
    assert sorted(asked.silent) == ["connect", "kafka", "postgres", "registry"]
    assert all(at.rpartition(":")[2] in cause for cause in asked.silent.values())
    asked = neighbours_of(dsn, "", MemoryRegistry(), topics, up)
    for _ in range(STRIKES):
        asked.look(pool)
    assert sorted(asked.silent) == ["kafka", "postgres"]
