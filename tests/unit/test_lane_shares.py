"""What a lane that is apart leaves to the others: their share of a batch, their rows, their end."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from kernel.errors import TooLarge, Unavailable
from kernel.loops import Loop
from kernel.positions import Epoch, Offsets
from lake import child_processes
from pipeline.commit.manifest_rows import Bound
from pipeline.executor import Executor, ExecutorChoice
from pipeline.lanes.lane_book import LaneBook
from pipeline.read import epoch_records, lane_decoding, lane_process
from pipeline.read.batch_plan import BatchPlans
from pipeline.read.epoch_records import EpochRecords
from pipeline.read.lane_decoding import decoded_by_lane
from pipeline.read.lane_process import LaneProcess
from pipeline.read.reach import Reach
from pipeline.read.stream import IngestRun
from pipeline.read.turns import Stopped
from tests.unit.test_lane_joining import Decoders, records_of


def run_over(
    ends: Offsets, book: LaneBook, tmp_path: Path, *, apart: bool = False
) -> tuple[IngestRun, list[Bound]]:
    """Return a run for all lanes, and the epochs that it makes; topics end by now at `ends`."""
    topics = SimpleNamespace(
        bootstrap="nowhere",
        readable_ends=lambda asked: {topic: ends[topic] for topic in asked},
        matching=lambda _: {topic: [*map(int, places)] for topic, places in ends.items()},
    )
    router = SimpleNamespace(prefix="", owners={topic: topic for topic in ends})
    spark = SimpleNamespace(sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None))
    nothing: Any = SimpleNamespace(entries=list)
    run = IngestRun(
        cast(Any, spark),
        cast(Any, topics),
        cast(Any, router),
        nothing,
        nothing,
        captures={},
        without=(),
        checkpoints=tmp_path,
        max_records=1_000,
        executor=ExecutorChoice(asked=Executor.DRIVER, driver_bytes=2**20),
        loop=Loop("ingest"),
        before_epoch=lambda: None,
        after_epoch=lambda _: None,
        after_rest=lambda _: None,
        apart=apart,
        parting=book,
        much=100,
    )
    made: list[Bound] = []

    def bound(batch_id: int, end: Offsets) -> Bound:
        start = {topic: {"0": run.reach.taken[topic]["0"]} for topic in end}
        return Bound(epoch=Epoch(1), run_id="", batch_id=batch_id, start=start, end=end)

    def made_of(bound: Bound, **_: object) -> tuple[None, Offsets]:
        made.append(bound)
        return None, bound.end

    run._plans = cast(BatchPlans, SimpleNamespace(bound=bound, look=lambda _: None))
    cast(Any, run)._run = made_of
    run.reach.begin({topic: {"0": 0} for topic in ends})
    return run, made


def test_a_backlog_that_is_read_apart_takes_no_room_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark shares the room of a batch by what waits, also of a lane that is passed over."""
    monkeypatch.setattr(Reach, "goes_on", lambda *_: False)
    book = LaneBook()
    book.part("busy", "it has much to read")
    run, made = run_over({"quiet": {"0": 40}, "busy": {"0": 10**7}}, book, tmp_path)
    run._at_work(0, {"quiet": {"0": 1}, "busy": {"0": 999}})
    assert [each.end for each in made] == [{"quiet": {"0": 40}}]


def test_beside_a_lane_that_is_read_apart_epochs_go_on_without_another_plan(tmp_path: Path) -> None:
    """Spark plans by many threads, and the other lane keeps the processors busy."""
    book, ends = LaneBook(), {"quiet": {"0": 40}, "busy": {"0": 10**7}}
    run, made = run_over(ends, book, tmp_path)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        """Something comes at each third look, until the other lane keeps up."""
        pauses.append(seconds)
        if len(pauses) % 3 == 0:
            ends["quiet"] = {"0": ends["quiet"]["0"] + 1}
        if len(pauses) == 7:
            book.join("busy")

    run.reach._pause = pause
    book.part("busy", "it has much to read")
    run._at_work(0, {"quiet": {"0": 40}, "busy": {"0": 999}})
    assert [each.end for each in made[:3]] == [{"quiet": {"0": end}} for end in (40, 41, 42)]
    assert (len(pauses), max(pauses) < 0.1) == (7, True)


def test_a_run_that_is_to_end_waits_for_nothing_beside_others(tmp_path: Path) -> None:
    book = LaneBook()
    run, made = run_over({"quiet": {"0": 40}, "busy": {"0": 10**7}}, book, tmp_path)
    run.reach._pause = lambda _: run.leave()
    book.part("busy", "it has much to read")
    with pytest.raises(Stopped):
        run._at_work(0, {"quiet": {"0": 40}, "busy": {"0": 999}})
    assert len(made) == 1


def test_beside_a_lane_that_is_held_each_plan_is_one_of_its_own(tmp_path: Path) -> None:
    """It may be held for hours, and keeps nothing busy."""
    book = LaneBook()
    run, made = run_over({"quiet": {"0": 40}, "busy": {"0": 10**7}}, book, tmp_path)
    run.reach._pause = lambda _: pytest.fail("it waits for more")
    book.refuse("busy", Unavailable("it cannot be read"))
    run._at_work(0, {"quiet": {"0": 40}, "busy": {"0": 999}})
    assert len(made) == 1


def test_a_batch_that_says_nothing_is_no_epoch_that_others_are_paced_by(tmp_path: Path) -> None:
    """Heartbeats alone come for ever: a backlog beside them would never be read in large parts."""
    run, made = run_over({"quiet": {"0": 40}}, LaneBook(), tmp_path)
    run._at_work(0, {"quiet": {"0": 1}})
    assert (len(made), run.epochs, run._turn.epochs) == (1, 1, 0)


def test_the_broker_tells_which_topics_these_are_before_a_turn_and_not_in_it(
    tmp_path: Path,
) -> None:
    run, made = run_over({"quiet": {"0": 40}}, LaneBook(), tmp_path)
    asked: list[bool] = []
    cast(Any, run._plans).look = lambda _: asked.append(run._turn._held)
    run._at_work(0, {"quiet": {"0": 40}})
    assert (asked, len(made)) == ([False], 1)


def test_a_lane_is_not_refused_for_the_size_of_its_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Executors decode it, who were asked for all of the epoch and failed for another lane."""
    choice = ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**20, record_bytes=1)
    records = EpochRecords(cast(Any, None), "nowhere", Decoders(), choice)

    def decoded(*_: object) -> pa.Table:
        raise TooLarge("more than the driver takes in")

    def by_executors(records: Offsets, _: Decoders) -> None:
        if "bad" in records:
            raise Unavailable("the registry does not answer")

    monkeypatch.setattr(records, "decoded", decoded)
    monkeypatch.setattr(records, "_between", lambda _start, end: end)
    monkeypatch.setattr(epoch_records, "try_decoding", by_executors)
    start, end = ({topic: {"0": at} for topic in ("bad", "large")} for at in (0, 9))
    assert records.undecodable(start, end, str).keys() == {"bad"}


class Panic(BaseException):
    """As code in Rust raises: no `Exception`."""


def test_no_record_is_lost_of_a_lane_that_panics(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lane_decoding.decoded_here

    def panicking(records: pa.Table, router: Decoders) -> pa.Table:
        if "bad" in records["topic"].to_pylist():
            raise Panic("index out of bounds")
        return whole(records, router)

    monkeypatch.setattr(lane_decoding, "decoded_here", panicking)
    found = decoded_by_lane(records_of("a", "bad"), Decoders(), str)
    assert found.rows["reason"].to_pylist() == ["a"]
    assert "index out of bounds" in str(found.refused["bad"])


def test_no_child_begins_behind_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who ends a run would wait for a block that nobody is to have."""
    begun: list[bool] = []

    def start() -> subprocess.Popen[bytes]:
        begun.append(True)
        raise OSError

    monkeypatch.setattr(child_processes, "start_child", start)
    process = LaneProcess("nowhere", Decoders())
    process.interrupt()
    with pytest.raises(Unavailable, match="ended amid its work"):
        process.decoded({}, {}, most_bytes=1)
    assert not begun


def test_a_child_that_is_amid_its_start_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told, killed = io.BytesIO(), list[bytes]()
    begun = SimpleNamespace(
        stdin=told,
        stdout=io.BytesIO(),
        kill=lambda: killed.append(told.getvalue()),
        wait=lambda _: -9,
    )

    def start() -> subprocess.Popen[bytes]:
        process.interrupt()
        return cast(Any, begun)

    monkeypatch.setattr(child_processes, "start_child", start)
    process = LaneProcess("nowhere", Decoders())
    with pytest.raises(Unavailable, match="ended amid its work"):
        process.decoded({}, {}, most_bytes=1)
    assert killed == [b""], "it ends, and is asked nothing"


def test_lanes_that_find_no_room_for_a_child_decode_by_themselves() -> None:
    begun = [LaneProcess("nowhere", cast(Any, None)) for _ in range(lane_process.MOST_CHILDREN + 1)]
    assert [each.has_room() for each in begun] == [True] * lane_process.MOST_CHILDREN + [False]
    assert begun[0].has_room(), "room that was found is kept"
    begun[0].close()
    begun[0].close()
    assert begun[-1].has_room()
    for each in begun:
        each.close()
