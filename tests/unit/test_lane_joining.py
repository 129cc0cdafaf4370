"""Who reads a lane: with the others or apart, and never two, nor nobody."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import SparkSession

from kernel.errors import Unavailable
from kernel.positions import Epoch, Offsets
from pipeline.commit.manifest_rows import Bound
from pipeline.lanes.lane_book import LaneBook
from pipeline.read.driver_reads import RECORDS
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.lane_decoding import decoded_by_lane
from pipeline.read.lane_runs import LaneRuns
from pipeline.read.reach import LATELY_S, Reach
from pipeline.read.stream import IngestRun
from pipeline.read.turns import Turn
from schemas.records import KafkaRecord, Rejected


def no_messages(_: str) -> bool:
    return False


def test_a_lane_joins_when_it_has_read_what_was_planned_for_the_others_meanwhile() -> None:
    book, planned = LaneBook(), {"quiet": {"0": 6}, "busy": {"0": 90}}
    reach = Reach(str, book, told=no_messages)
    reach.begin({"quiet": {"0": 5}, "busy": {"0": 70}})
    book.part("busy", "it has much to read")
    assert reach.plan(planned) == {"quiet": {"0": 6}}
    join = partial(book.join, "busy")
    assert not reach.take_over("busy", {"busy": {"0": 89}}, join)
    assert book.names == {"busy"}
    assert reach.take_over("busy", {"busy": {"0": 90}}, join)
    assert not book.names
    assert reach.plan(planned) == planned
    assert not reach.further({"busy": {"0": 90}})
    assert reach.further({"busy": {"0": 91}})


def test_what_is_read_apart_is_no_others_backlog() -> None:
    book = LaneBook()
    reach = Reach(str, book, told=no_messages)
    reach.begin({"quiet": {"0": 5}, "busy": {"0": 70}})
    ends = {"quiet": {"0": 7}, "busy": {"0": 100}}
    topics = SimpleNamespace(
        readable_ends=lambda asked: {topic: ends[topic] for topic in asked},
    )
    assert reach.unread(cast(KafkaTopics, topics)) == 2 + 30
    book.part("busy", "it has much to read")
    assert reach.unread(cast(KafkaTopics, topics)) == 2
    assert reach.further({"quiet": {"0": 6}})
    assert not reach.further({"quiet": {"0": 5}, "busy": {"0": 70}})


def test_a_lane_with_much_leaves_the_very_batch_that_others_wait_for() -> None:
    book, at = LaneBook(), [0.0]
    reach = Reach(str, book, told=lambda topic: topic == "beats", now=lambda: at[0])

    def read(end: Offsets, much: int) -> Offsets:
        def bound() -> Bound:
            here = reach.here(end)
            start = {topic: {"0": reach.taken.get(topic, {}).get("0", 0)} for topic in here}
            return Bound(epoch=Epoch(1), run_id="", batch_id=0, start=start, end=here)

        done = reach.without_bulky(bound, much).end
        reach.take(done)
        return done

    beats = {"beats": {"0": 9}}
    assert read({"busy": {"0": 90}, **beats}, 50) == {"busy": {"0": 90}, **beats}, "it is alone"
    both = {"quiet": {"0": 3}, "busy": {"0": 150}}
    assert read(both, 60) == both, "that is not much"
    at[0] += LATELY_S + 1
    assert read({"busy": {"0": 250}}, 50) == {"busy": {"0": 250}}, "the other one rests"
    assert read({"quiet": {"0": 4}}, 50) == {"quiet": {"0": 4}}
    assert read({"busy": {"0": 350}}, 50) == {}, "the other one may have more at any moment"
    assert book.names == {"busy"}
    more = {"0": 400}
    assert read({"quiet": more, "busy": more}, 50) == {"quiet": more}, "it is alone here now"


@dataclass
class Run:
    """A run that notes what becomes of it."""

    turn: Turn
    apart: bool
    reach: Reach
    lanes: frozenset[str] = frozenset({"quiet", "busy"})
    active: bool = True
    error: BaseException | None = None
    epochs: int = 1
    noted: list[str] = field(default_factory=list)
    silent: dict[str, Exception] = field(default_factory=dict)

    def start(self) -> None:
        self.noted.append("start")

    def leave(self) -> None:
        assert self.turn._held, "an epoch of it may be amid its way"
        self.noted.append("leave")

    def stop(self) -> None:
        assert not self.turn._held, "its thread may wait for its turn"
        self.noted.append("stop")

    def close(self) -> None:
        self.noted.append("close")

    def unread(self) -> int:
        return 0


def test_who_read_a_lane_apart_makes_no_epoch_behind_those_of_the_others(tmp_path: Path) -> None:
    """What it decoded before its turn lies before what they have read of it by then."""
    at, made = [0.0], list[Run]()
    book = LaneBook(lambda: at[0])
    reach = Reach(str, book, told=no_messages)

    def new_run(*, turn: Turn, apart: bool, **_: Any) -> IngestRun:
        made.append(Run(turn, apart, reach))
        return cast(IngestRun, made[-1])

    runs = LaneRuns(
        cast(SparkSession, None),
        new_run,
        book,
        lanes=frozenset({"quiet", "busy"}),
        checkpoints=tmp_path / "checkpoints",
        max_records=10,
        lane_records=10,
    )
    runs.start()
    common = made[-1]
    book.part("busy", "it has much to read")
    runs.look()
    (busy,) = (run for run in made if run.apart)
    for _ in range(40):
        at[0] += 1
        runs.look()
    assert busy.noted == ["start", "leave", "stop"]
    assert not book.names
    assert common.noted == ["start"], "who keeps up began nothing anew"


def records_of(*topics: str) -> pa.Table:
    now = datetime.now(UTC)
    rows = [
        {"topic": topic, "partition": 0, "offset": n, "timestamp": now, "value": b"x"}
        for n, topic in enumerate(topics)
    ]
    return pa.Table.from_pylist(rows, RECORDS)


@dataclass
class Decoders:
    """Decodes all but the records of `away`, which wait or raise."""

    hangs: threading.Event | None = None

    def decoder(self, topic: str) -> Any:
        def decode(record: KafkaRecord) -> Rejected:
            if topic == "away":
                if self.hangs is None:
                    raise Unavailable("the registry does not answer")
                assert self.hangs.wait(60)
            return Rejected(record=record, stage="decode", reason=topic)

        return decode


def test_a_lane_that_cannot_be_decoded_leaves_the_rows_of_all_others() -> None:
    found = decoded_by_lane(records_of("a", "away", "b", "a"), Decoders(), str)
    assert sorted(found.rows["reason"].to_pylist()) == ["a", "a", "b"]
    assert {lane: str(error) for lane, error in found.refused.items()} == {
        "away": "the registry does not answer"
    }
    assert not found.late


def test_others_do_not_wait_for_a_server_that_hangs() -> None:
    decoders = Decoders(threading.Event())
    assert decoders.hangs is not None
    try:
        records = records_of("a", "away")
        found = decoded_by_lane(records, decoders, str, patience_s=1.0)
        assert found.late == found.refused.keys() == {"away"}
        assert found.rows["reason"].to_pylist() == ["a"]
    finally:
        decoders.hangs.set()
