"""Lag goes on being measured whatever goes wrong: gauges that stand still look like no lag."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import TopicPartition

from apps.capture import capture_site
from apps.pipeline.metrics import PipelineMetrics
from apps.settings import load
from cdc.upkeep.source_lag import SourceHeads, _Source
from kernel.errors import Unavailable
from kernel.retry import Backoff
from pipeline.commit.manifest_rows import Committed
from pipeline.process.lag_watch import LagWatch
from pipeline.read import kafka_topics as topics
from pipeline.read import topic_lag
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.topic_lag import TopicHeads


class SilentAdmin:
    """A broker that takes a question and never answers it."""

    def list_offsets(
        self, wanted: dict[TopicPartition, Any], *, isolation_level: object
    ) -> dict[TopicPartition, Any]:
        return {place: Future[Any]() for place in wanted}


def test_offsets_that_do_not_come_in_time_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TIMEOUT_S", 0.01)
    monkeypatch.setattr(topics, "_PATIENCE", Backoff(attempts=2, base_s=0.0))
    asked = KafkaTopics("127.0.0.1:1")
    monkeypatch.setattr(asked, "_admin", SilentAdmin())
    with pytest.raises(Unavailable, match="no offsets within"):
        asked.ends({"a": [0]})


def test_a_source_whose_lag_cannot_be_read_is_named_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "penstock.toml").write_text("")
    heads = SourceHeads(capture_site(load(tmp_path)), KafkaTopics("127.0.0.1:1"))

    def broken(name: str, last: object) -> object:
        raise OSError(f"{name} cannot be read")

    monkeypatch.setattr(heads, "_lag", broken)
    found = heads.look(["a", "b"], None)
    assert {name: lag.unknown for name, lag in found.items()} == {
        "a": "a cannot be read",
        "b": "b cannot be read",
    }


def test_ten_hours_of_lag_are_not_said_to_be_two() -> None:
    known = _Source()
    hours = range(10 * 3600)
    for second in hours:
        known.remember(float(second), second, second, {})
    assert known.samples[0] == (0.0, 0)
    assert known.samples[-1] == (float(hours[-1]), hours[-1])
    assert len(known.samples) <= 7_200
    # What was settled later is told apart still, and never by a look that came after it.
    after = next(moment for moment, head in known.samples if head > 20_000)
    assert 20_000 < after < 20_100


def test_what_was_behind_before_a_start_is_not_said_to_be_new(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    day = timedelta(days=1)
    ends: dict[str, dict[str, int]] = {"t": {"0": 7}}
    monkeypatch.setattr(topic_lag, "ends_of", lambda *_: ends)
    heads = TopicHeads(cast(Any, None))
    heads.declared = cast(Any, {"source": SimpleNamespace(topic="t")})
    last = cast(Committed, SimpleNamespace(end={"t": {"0": 5}}, at=datetime.now(UTC) - day))
    lag = heads.look(last)["source"]
    assert lag.records == 2
    assert lag.seconds >= day.total_seconds()
    ends["t"]["0"] = 5
    assert heads.look(last)["source"].seconds == 0
    ends["t"]["0"] = 6
    assert 0 < heads.look(last)["source"].seconds < 3_600


class FailingHeads:
    """Fails in two ways, then answers; ends the watch after that."""

    def __init__(self, stop: threading.Event) -> None:
        self.calls = 0
        self.stop = stop

    def lag(self, heads: object) -> tuple[str, int, float]:
        self.calls += 1
        if self.calls == 1:
            raise TimeoutError
        if self.calls == 2:
            raise Unavailable("the store does not answer")
        self.stop.set()
        return "main", 7, 1.5


class FailingSources:
    def look(self, names: object, last: object) -> dict[str, object]:
        raise RuntimeError("nobody thought of this")

    def look_at_store(self, events: int, last: object) -> None:
        self.events = events

    def close(self) -> None:
        self.closed = True


class Now(threading.Event):
    """An event that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()


def test_the_thread_that_measures_lag_survives_every_error() -> None:
    stop, sources, metrics = Now(), FailingSources(), PipelineMetrics()
    heads = FailingHeads(stop)
    watch = LagWatch(heads, cast(Any, sources), cast(Any, sources), metrics)
    watch.run(stop)
    assert heads.calls == 3
    assert (sources.closed, sources.events) == (True, 7)
    assert "nobody thought of this" in watch.unknown["sources"]
    assert metrics.lag_events.labels("main")._value.get() == 7
