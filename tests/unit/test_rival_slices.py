"""Two processes that write slices of one build: each slice is there once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kernel.errors import LeaseLost
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from replay.slice_writer import SliceWriter
from replay.slices import Slicing, Whole, slice_guard
from tests.support.lake.handmade import NoSpark

SLICES = 20


class Frame:
    """Rows of slices, by the numbers that these have."""

    def __init__(self, first: int, many: int) -> None:
        self.rows = pa.table({"slice": [*range(first, first + many)]})

    def withColumn(self, *_: object) -> Frame:
        return self


class Cut(Slicing):
    """Gives the numbers of slices in place of conditions."""

    def conditions(self, number: int, many: int) -> Any:
        return number, many


@pytest.fixture
def whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Whole:
    literal = SimpleNamespace(cast=lambda _: None)
    monkeypatch.setattr("replay.slice_writer.functions", SimpleNamespace(lit=lambda _: literal))
    monkeypatch.setattr(SliceWriter, "_frame", lambda _, __, chosen: Frame(*chosen))
    monkeypatch.setattr(SliceWriter, "_collected", lambda _, __, frame, ___: frame.rows)
    target: Any = SimpleNamespace(path=lake.path("projection/report/_gen/2"), app_id="build")
    unused: Any = None
    return Whole(
        plan=unused,
        target=target,
        catalog=unused,
        up_to=Epoch(7),
        slicing=Cut(columns=("id",), slices=SLICES),
        input_bytes=1,
    )


class Process:
    """One that builds."""

    def __init__(self, whole: Whole) -> None:
        spark: Any = NoSpark()
        self.writer = SliceWriter(spark, spark, Lake("nowhere"), Tables())
        self.whole = whole

    def write(self, number: int, many: int = 1) -> int:
        guard = slice_guard("report", 2, number, many)
        self.writer.write(self.whole, number, guard, many)
        return self.writer.done(self.whole, guard)


def slices_of(whole: Whole) -> list[int]:
    found = Tables().read(whole.target.path)
    assert found is not None
    return sorted(found["slice"].to_pylist())


def test_who_wakes_behind_another_one_adds_no_slice_that_is_there(whole: Whole) -> None:
    slow, next_ = Process(whole), Process(whole)
    assert slow.write(0, 5) == 5
    assert next_.write(5) == 6
    with pytest.raises(LeaseLost):
        slow.write(5, 4)
    assert slices_of(whole) == [*range(6)]


def test_who_went_on_goes_on_behind_what_the_slow_one_added(whole: Whole) -> None:
    slow, next_ = Process(whole), Process(whole)
    slow.write(0, 5)
    slow.write(5, 4)
    done = next_.write(5)
    assert done == 9, "the table says how many there are"
    with pytest.raises(LeaseLost):
        next_.write(6, 6)
    assert next_.write(done, 4) == 13
    assert slices_of(whole) == [*range(13)]
