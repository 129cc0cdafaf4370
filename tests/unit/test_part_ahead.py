"""A part of a backlog that is read ahead is that of the next epoch, or is read once more."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pytest

from kernel.errors import TooLarge, Unavailable
from kernel.positions import Epoch, Offsets
from lake.table_columns import DECODED
from pipeline.commit.manifest_rows import Bound
from pipeline.executor import ExecutorChoice
from pipeline.read import part_ahead
from pipeline.read.batch_plan import next_part
from pipeline.read.epoch_records import EpochRecords
from pipeline.read.lane_decoding import Sifted
from pipeline.read.part_ahead import PartAhead

TOPIC = "shop.public.items"


def bound(start: Offsets, end: Offsets) -> Bound:
    return Bound(epoch=Epoch(1), run_id="", batch_id=0, start=start, end=end)


def at(offset: int, *, topic: str = TOPIC) -> Offsets:
    return {topic: {"0": offset}}


def places(start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
    return [
        (topic, int(place), offset)
        for topic, partitions in end.items()
        for place, last in partitions.items()
        for offset in range(start[topic][place], last)
    ]


@dataclass
class Reads:
    """Reads ranges, and notes which, and by which threads."""

    asked: list[list[tuple[str, int, int]]] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    at_once: int = 0
    most_at_once: int = 0
    error: Exception | None = None
    refused: dict[str, Exception] = field(default_factory=dict)

    def __call__(self, start: Offsets, end: Offsets) -> Sifted:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.threads.add(threading.current_thread().name)
        found = places(start, end)
        self.asked.append(found)
        self.at_once -= 1
        if self.error is not None:
            raise self.error
        rows = [{"topic": t, "partition": p, "offset": o} for t, p, o in found]
        return Sifted(rows=pa.Table.from_pylist(rows, DECODED), refused=self.refused)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[PartAhead]:
    monkeypatch.setattr(part_ahead, "WORTH_A_THREAD", 2)
    made = PartAhead()
    yield made
    made.close()


def test_what_was_read_is_the_part_of_the_next_epoch_once(ahead: PartAhead) -> None:
    read = Reads()
    ahead.begin(bound(at(5), at(9)), read)
    part = ahead.part_of(bound(at(5), at(30)))
    assert part is not None
    assert part.end == at(9)
    taken = ahead.take(part.start, part.end)
    assert taken is not None
    assert taken.rows["offset"].to_pylist() == [5, 6, 7, 8]
    assert ahead.take(part.start, part.end) is None
    assert len(read.asked) == 1


def test_a_topic_that_came_meanwhile_waits_for_the_epoch_after(ahead: PartAhead) -> None:
    ahead.begin(bound(at(5), at(9)), Reads())
    part = ahead.part_of(bound(at(5) | at(0, topic="new"), at(30) | at(3, topic="new")))
    assert part is not None
    assert part.end == at(9) | at(0, topic="new")
    assert ahead.take(part.start, part.end) is not None


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (at(4), at(30)),  # An epoch before has left a lane out.
        (at(5), at(8)),  # The topic is not to be read so far.
        (at(5, topic="other"), at(30, topic="other")),  # Its lane is read apart now.
    ],
)
def test_another_epoch_reads_by_itself(ahead: PartAhead, start: Offsets, end: Offsets) -> None:
    ahead.begin(bound(at(5), at(9)), Reads())
    assert ahead.part_of(bound(start, end)) is None
    assert ahead.take(start, end) is None


@pytest.mark.parametrize("error", [TooLarge("x"), Unavailable("x")])
def test_what_failed_is_read_again_in_its_turn(ahead: PartAhead, error: Exception) -> None:
    ahead.begin(bound(at(5), at(9)), Reads(error=error))
    assert ahead.take(at(5), at(9)) is None
    ahead.begin(bound(at(5), at(9)), Reads(refused={"shop": error}))
    assert ahead.take(at(5), at(9)) is None, "what the lane waited for may be there by now"


def test_little_is_not_worth_it(ahead: PartAhead) -> None:
    read = Reads()
    ahead.begin(bound(at(5), at(6)), read)
    assert ahead.take(at(5), at(6)) is None
    assert not read.asked


def test_epochs_of_any_size_have_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a run asks: a part is bound, read, and the next one begun while the epoch is made."""
    monkeypatch.setattr(part_ahead, "WORTH_A_THREAD", 4)
    choice = ExecutorChoice(record_bytes=1, driver_bytes=10**6)
    records, read, chance = EpochRecords(cast(Any, None), "", cast(Any, None), choice), Reads(), 7
    monkeypatch.setattr(records, "_by_lane", lambda start, end, lane_of: read(start, end))
    dice, seen = random.Random(chance), list[tuple[str, int, int]]()
    here, ends = {"a": {"0": 5, "1": 0}, "b": {"0": 7}}, {"a": {"0": 400, "1": 90}, "b": {"0": 60}}

    def part_of(whole: Bound, most: int) -> Bound:
        return next_part(whole, lambda n: min(n, most), lambda _: False)

    while here != ends:
        whole, most = bound(here, ends), dice.randint(1, 60)
        part = records.part_ahead(whole) or part_of(whole, most)
        found = records.by_lane(part.start, part.end, str)
        if dice.random() < 0.7:
            records.ahead(part_of(bound(part.end, ends), most), str)
        assert sorted(found.rows["offset"].to_pylist()) == sorted(
            offset for *_, offset in places(part.start, part.end)
        )
        seen += places(part.start, part.end)
        if dice.random() < 0.2:  # A lane is left out: it begins there once more.
            here = {**part.end, "b": part.start["b"]}
            seen = [place for place in seen if place[0] != "b" or place[2] < here["b"]["0"]]
            continue
        here = {topic: dict(own) for topic, own in part.end.items()}
    records.close()
    assert sorted(seen) == sorted(places({"a": {"0": 5, "1": 0}, "b": {"0": 7}}, ends))
    assert read.most_at_once == 1, "one consumer reads for both threads"
    assert len(read.threads) == 2
