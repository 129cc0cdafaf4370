"""What is decoded ahead of its turn: each record in one epoch, and in that of its offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
import pytest

from kernel.errors import Unavailable
from kernel.positions import Epoch, Offsets
from lake.table_columns import DECODED
from pipeline.commit.manifest_rows import Bound
from pipeline.read import lane_ahead
from pipeline.read.batch_plan import next_part
from pipeline.read.epoch_records import EpochRecords
from pipeline.read.lane_ahead import LaneAhead


@dataclass
class Records:
    """Decodes ranges, and notes which."""

    asked: list[tuple[Offsets, Offsets]] = field(default_factory=list)
    error: Exception | None = None
    executors: bool = False
    closed: bool = False

    def early(self, start: Offsets, end: Offsets) -> pa.Table | None:
        self.asked.append((start, end))
        if self.error is not None:
            raise self.error
        places = [
            {"topic": topic, "partition": int(place), "offset": offset}
            for topic, partitions in end.items()
            for place, last in partitions.items()
            for offset in range(start[topic][place], last)
        ]
        return None if self.executors else pa.Table.from_pylist(places, DECODED)

    def interrupt(self) -> None:
        self.closed = True

    def close(self) -> None:
        assert self.closed


def bound(start: Offsets, end: Offsets) -> Bound:
    return Bound(epoch=Epoch(1), run_id="", batch_id=0, start=start, end=end)


def part_of(most: int) -> Callable[[Bound], Bound]:
    return lambda whole: next_part(whole, lambda n: min(n, most), lambda _: False)


def ahead_of(records: Records, most: int) -> LaneAhead:
    return LaneAhead(cast(EpochRecords, records), part_of(most), begins=lambda: None)


def test_epochs_of_any_size_have_each_record_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_ahead, "WORTH_A_PROCESS", 10)
    records, seen = Records(), set[tuple[str, int, int]]()
    ahead = ahead_of(records, 40)
    at: Offsets = {"a": {"0": 5, "1": 0}, "b": {"0": 7}}
    ends: Offsets = {"a": {"0": 105, "1": 60}, "b": {"0": 7}}
    try:
        for size in (7, 1, 30, 3, 50, 9, 40, 11, 40, 40, 40, 40, 40, 40):
            if at == ends:
                ends = {**ends, "b": {"0": 9}}
            taken, rows = ahead.take(bound(at, ends), part_of(size))
            assert rows is not None
            expected = {
                (topic, int(place), offset)
                for topic, places in taken.end.items()
                for place, last in places.items()
                for offset in range(at[topic][place], last)
            }
            columns = (rows[name].to_pylist() for name in ("topic", "partition", "offset"))
            found = set(zip(*columns, strict=True))
            assert found == expected
            assert len(found) == rows.num_rows
            assert not found & seen
            seen |= found
            at = taken.end
            if at["b"] == {"0": 9}:
                break
    finally:
        ahead.close()
    assert at == ends
    assert len(seen) == 100 + 60 + 2
    assert len(records.asked) < 10, "in blocks, not in epochs"


def test_what_others_read_meanwhile_is_not_given_out_again() -> None:
    """A lane that was lost and read from another place on, say, or a block that was for nothing."""
    records = Records()
    ahead = ahead_of(records, 40)
    try:
        taken, _ = ahead.take(bound({"a": {"0": 0}}, {"a": {"0": 100}}), part_of(10))
        assert taken.end == {"a": {"0": 10}}
        taken, rows = ahead.take(bound({"a": {"0": 60}}, {"a": {"0": 100}}), part_of(10))
        assert rows is not None
        assert rows["offset"].to_pylist() == list(range(60, 70))
    finally:
        ahead.close()


def test_what_cannot_be_decoded_is_tried_again_and_what_is_large_is_left_to_executors() -> None:
    records, whole = Records(), bound({"a": {"0": 0}}, {"a": {"0": 100}})
    ahead = ahead_of(records, 40)
    try:
        records.error = Unavailable("the registry does not answer")
        with pytest.raises(Unavailable):
            ahead.take(whole, part_of(10))
        records.error, records.executors = None, True
        taken, rows = ahead.take(whole, part_of(10))
        assert (taken.end, rows) == ({"a": {"0": 40}}, None)
        records.executors = False
        _, rows = ahead.take(whole, part_of(10))
        assert rows is not None
        assert rows.num_rows == 10
    finally:
        ahead.close()


def test_the_next_block_is_decoded_while_epochs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_ahead, "WORTH_A_PROCESS", 10)
    records, begun = Records(), threading.Event()
    early = records.early

    def noting(start: Offsets, end: Offsets) -> pa.Table | None:
        if start["a"]["0"] == 40:
            begun.set()
        return early(start, end)

    monkeypatch.setattr(records, "early", noting)
    ahead = ahead_of(records, 40)
    try:
        ahead.take(bound({"a": {"0": 0}}, {"a": {"0": 100}}), part_of(10))
        assert begun.wait(30), "though nobody asks for it yet"
    finally:
        ahead.close()
