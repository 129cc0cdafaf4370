"""Lanes on the real broker and stream: trouble of one is its own, the others go on meanwhile."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import SparkSession

from apps.pipeline.routing import router_of
from apps.settings import Settings
from kernel.errors import Unavailable
from kernel.loops import Loop
from kernel.retry import Backoff
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.folding import Folding
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed
from pipeline.executor import Executor, ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.lanes import lane_book
from pipeline.lanes.lane_book import LaneBook
from pipeline.read import kafka_topics
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.lane_runs import LaneRuns
from pipeline.read.stream import IngestRun
from projections.run.catalog import DeployedCatalog
from tests.support.lake.feeding import Epochs
from tests.support.lake.topic_stream import FOR_EVER, READING, TopicStream, ping, reading
from tests.support.services.proxy import Proxy
from tests.support.services.waiting import until

SOME = 40
"""Records of one lane in a batch that make it one to be read apart."""
SOURCES = """
CREATE SOURCE pings (device BIGINT, at TIMESTAMP, v INT) WITH (
  topic = '{0}-pings', format = 'json', key = device, event_time = at);
CREATE SOURCE readings WITH (topic = '{0}-readings', format = 'avro');
"""
FAST = 20
"""So many seconds of the book pass in one."""


class Registry(Proxy):
    """The way to the registry, which may be cut."""

    cut = False

    def asked(self, connection: list[bytes], piece: bytes) -> bool:
        if self.cut:
            self.break_all()
        return not self.cut


class Leaders(KafkaTopics):
    """Topics of which some have no leader."""

    lost: frozenset[str] = frozenset()

    def _leaderless(self, topics: Collection[str]) -> dict[str, str]:
        return {name: f"{name} has no leader" for name in self.lost & {*topics}}


@dataclass
class Lanes:
    """Two lanes, run after run, as a pipeline's process reads them."""

    stream: TopicStream
    registry_url: str
    book: LaneBook = field(default_factory=lambda: LaneBook(lambda: time.monotonic() * FAST))
    made: list[Committed] = field(default_factory=list)
    runs: LaneRuns | None = None
    topics: Leaders = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.stream.prefix.rstrip(".")
        self.pings, self.readings = f"{self.name}-pings", f"{self.name}-readings"
        self.stream.deploy(SOURCES.format(self.name))
        self.stream.make(self.pings)
        self.stream.make(self.readings)
        told = self.stream.registry.register(f"{self.readings}-value", json.dumps(READING))
        self.schema_id = told
        self.topics = Leaders(self.stream.bootstrap)

    def begin(self) -> None:
        """Begin to read, as a process does that has just started: the book stays."""
        spark, lake = self.stream.spark, self.stream.lake
        deployment = DeployedCatalog(lake, Tables()).deployment()
        router = router_of(deployment, prefix=self.stream.prefix, registry_url=self.registry_url)
        epochs = Epochs(spark, lake, router, self.stream.bootstrap, lateness=FOR_EVER)
        new_run = partial(
            IngestRun,
            spark,
            self.topics,
            router,
            epochs.ingest,
            InstallBook(lake, epochs.tables),
            captures={},
            executor=ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**25),
            loop=Loop("ingest"),
            before_epoch=lambda: None,
            after_epoch=self.made.append,
            after_rest=lambda _: None,
        )
        settings = Settings(self.stream.folder, self.stream.stack.values)
        self.runs = LaneRuns(
            spark,
            new_run,
            self.book,
            lanes=router.lanes,
            checkpoints=settings.state_dir / "checkpoints",
            max_records=settings.number("pipeline.max_records_per_epoch"),
            lane_records=SOME,
            much=SOME,
        )
        self.runs.finish_unfinished(epochs.manifest)
        self.runs.start()

    def stop(self) -> None:
        if self.runs is not None:
            self.runs.stop()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Look after the lanes until something holds."""

        def look() -> bool:
            assert self.runs is not None
            self.runs.look()
            return holds()

        until(look, what, deadline_s=60)

    def send(self, pings: int = 0, readings: int = 0) -> None:
        self.stream.send(self.pings, [ping(n, n % 60) for n in range(pings)])
        self.stream.send(self.readings, [reading(self.schema_id, n, 20.5) for n in range(readings)])

    def logged(self) -> Counter[str]:
        """Return how many records the log has of each lane, none of them twice."""
        found: Counter[str] = Counter()
        for source in ("pings", "readings"):
            places = self.stream.rows(f"log/topics/{source}", "partition", "offset")
            assert len(set(places)) == len(places), "none twice"
            found[source] = len(places)
        return found

    def state(self, lane: str) -> object:
        return self.book.document().get(lane, {}).get("state")


@pytest.fixture
def registry(stack: Settings) -> Iterator[Registry]:
    port = urlsplit(stack.required("registry.url")).port
    assert port is not None
    with Registry(port) as proxy:
        yield proxy


@pytest.fixture
def lanes(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    tmp_path: Path,
    registry: Registry,
) -> Iterator[Lanes]:
    found = Lanes(TopicStream(stack, spark, lake, prefix, tmp_path), registry.url)
    yield found
    found.stop()


def test_p9_a_lane_without_its_registry_is_held_alone_and_read_when_it_is_back(
    lanes: Lanes, registry: Registry
) -> None:
    lanes.begin()
    assert lanes.runs is not None
    common = lanes.runs.together
    lanes.send(pings=5)
    lanes.until(lambda: lanes.logged()["pings"] == 5, "what needs no registry is read")
    registry.cut = True
    registry.break_all()
    lanes.send(pings=5, readings=7)
    lanes.until(lambda: lanes.logged() == {"pings": 10, "readings": 0}, "one epoch, without it")
    lanes.until(lambda: lanes.state("readings") == "held", "it is left out of its epoch")
    assert "registry" in lanes.book.held()["readings"]
    for more in range(3):
        lanes.send(pings=5)
        expected = {"pings": 15 + 5 * more, "readings": 0}
        lanes.until(lambda want=expected: lanes.logged() == Counter(want), "the other goes on")
    tries = lanes.book.document()["readings"]["failures"]
    lanes.until(lambda: lanes.book.document()["readings"]["failures"] != tries, "it is tried again")
    assert lanes.made[-1].end.get(lanes.readings, {"0": 0}) == {"0": 0}, "its offsets stay"

    registry.cut = False
    lanes.until(lambda: lanes.logged()["readings"] == 7, "it is read when the registry is back")
    lanes.until(lambda: not lanes.book.names, "it joins the others")
    lanes.send(pings=1, readings=1)
    lanes.until(lambda: lanes.logged() == {"pings": 26, "readings": 8}, "both are read together")
    assert lanes.runs is not None
    assert lanes.runs.together is common, "nobody else began anew"
    epochs = [done.epoch for done in lanes.made]
    assert epochs == list(range(epochs[0], epochs[0] + len(epochs)))


@pytest.mark.parametrize(
    "step", [pytest.param("Manifest.leave_out", marks=pytest.mark.matrix), "Ingest._sorted_out"]
)
def test_p1_an_epoch_that_ends_amid_the_leaving_out_of_a_lane_is_finished_without_it(
    lanes: Lanes, registry: Registry, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that is noted, and behind it: the lane's records come once, and later."""
    lanes.begin()
    lanes.send(pings=5)
    lanes.until(lambda: lanes.logged()["pings"] == 5, "what needs no registry is read")
    registry.cut = True
    registry.break_all()
    owner, _, name = step.partition(".")
    with monkeypatch.context() as patched:
        patched.setattr({"Ingest": Ingest, "Manifest": Manifest}[owner], name, _storage_is_away)
        lanes.send(pings=5, readings=7)
        with pytest.raises(Unavailable, match="storage"):
            lanes.until(lambda: False, "its epoch fails")
    lanes.stop()
    lanes.begin()
    lanes.until(lambda: lanes.logged() == {"pings": 10, "readings": 0}, "it is left out")
    lanes.until(lambda: lanes.state("readings") == "held", "it is held")
    registry.cut = False
    lanes.until(lambda: lanes.logged() == {"pings": 10, "readings": 7}, "it is read when it can be")


def test_p9_a_lane_whose_topic_has_no_leader_is_held_alone_until_it_has_one(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_book, "PAUSES_S", lane_book.PAUSES_S[:3])
    monkeypatch.setattr(kafka_topics, "_PATIENCE", Backoff(attempts=4))
    lanes.topics.lost = frozenset({lanes.readings})
    lanes.send(pings=5, readings=7)
    lanes.begin()
    assert "has no leader" in lanes.book.held()["readings"]
    lanes.until(lambda: lanes.logged() == {"pings": 5, "readings": 0}, "the other one is read")

    lanes.topics.lost = frozenset()
    lanes.until(lambda: lanes.logged()["readings"] == 7, "it is read when it has a leader")
    lanes.until(lambda: not lanes.book.names, "it joins the others")


@pytest.mark.matrix
def test_p9_a_lane_with_much_to_read_is_read_apart_until_it_keeps_up(lanes: Lanes) -> None:
    lanes.send(pings=3, readings=10 * SOME)
    lanes.begin()
    lanes.until(lambda: lanes.state("readings") == "apart", "it is read apart")
    lanes.until(lambda: lanes.logged()["readings"] == 10 * SOME, "all of it is read")
    lanes.until(lambda: lanes.logged()["pings"] == 3, "the other one is read")
    assert max(done.counts.get("records", 0) for done in lanes.made) <= SOME
    assert lanes.runs is not None
    common = lanes.runs.together
    first = next(at for at, done in enumerate(lanes.made) if lanes.pings in _moved(done))
    assert first < len(lanes.made) - 1, "the other one goes between its epochs"
    lanes.until(lambda: not lanes.book.names, "it joins the others")
    lanes.send(pings=1, readings=1)
    lanes.until(lambda: lanes.logged() == {"pings": 4, "readings": 10 * SOME + 1}, "together")
    assert lanes.runs.together is common, "nobody else began anew"


def _moved(done: Committed) -> set[str]:
    return {topic for topic, places in done.end.items() if any(places.values())}


@pytest.mark.parametrize(
    "step", [pytest.param("Ingest._sorted_out", marks=pytest.mark.matrix), "Folding.fold"]
)
def test_p1_an_epoch_of_a_lane_that_is_apart_is_finished_over_its_offsets(
    lanes: Lanes, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes.send(pings=3)
    lanes.begin()
    lanes.until(lambda: lanes.logged()["pings"] == 3, "the other one is read")
    lanes.stop()
    lanes.book.part("readings", "it has much to read")
    lanes.begin()
    runs = lanes.runs
    assert runs is not None
    runs.look()
    owner, _, name = step.partition(".")
    with monkeypatch.context() as patched:
        patched.setattr({"Ingest": Ingest, "Folding": Folding}[owner], name, _storage_is_away)
        lanes.send(readings=7)
        until(lambda: runs.failed, "its epoch fails, before or behind its rows in the log")
        lanes.send(pings=2)
        until(lambda: not runs.together.active, "the other one makes no epoch behind that one")
        with pytest.raises(Unavailable, match="storage"):
            runs.look()
        lanes.stop()
    lanes.begin()
    assert lanes.logged() == {"pings": 3, "readings": 7}, "the next start finishes it first"
    lanes.send(readings=2)
    lanes.until(lambda: lanes.logged() == {"pings": 5, "readings": 9}, "both go on")


def test_p9_records_of_a_bound_epoch_that_expired_keep_no_other_lane_waiting(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the first ones of their topic: no epoch before has it."""
    lanes.send(pings=2)
    lanes.begin()
    lanes.until(lambda: lanes.logged()["pings"] == 2, "the other one is read")
    lanes.stop()
    lanes.send(pings=3, readings=7)
    with monkeypatch.context() as patched:
        patched.setattr(Ingest, "_sorted_out", _storage_is_away)
        lanes.begin()
        with pytest.raises(Unavailable, match="storage"):
            lanes.until(lambda: False, "its epoch fails before its rows are in the log")
    lanes.stop()
    bound = Manifest(lanes.stream.lake, Tables()).unfinished()
    assert bound is not None
    assert bound.end[lanes.readings]["0"] > 5
    expired = TopicPartition(lanes.readings, 0, 5)
    for done in lanes.stream.admin.delete_records([expired]).values():
        done.result(timeout=30)

    lanes.begin()
    lanes.send(pings=1)
    lanes.until(lambda: lanes.logged()["pings"] == 6, "the other one goes on")
    assert lanes.logged()["readings"] == 0
    state, *_ = lanes.stream.states()["readings"]
    assert state.startswith("gap; gone from Kafka before they were read")
    assert state.endswith("penstock source resnapshot readings --yes")


def _storage_is_away(*_: object, **__: object) -> None:
    raise Unavailable("storage does not answer")
