"""An epoch waits for the round of the one before, and for none that takes long."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernel.errors import Unavailable
from pipeline.commit.epoch_memory import EpochMemory
from pipeline.commit.round_gate import FEW_RECORDS, RoundGate
from pipeline.lanes.lane_book import LaneBook
from pipeline.read.reach import LONGEST_PLAN_S, PLANNED_S, Reach
from tests.support.lake.noted_epochs import committed
from tests.unit.test_lane_shares import run_over

LONG_S = 60.0
NOT_AT_ALL_S = 0.0


@dataclass
class Clock:
    """Says what time it is, and moves as it is told."""

    at: float = 0.0

    def __call__(self) -> float:
        return self.at


def gate_of(most_s: float, *rounds_s: float) -> RoundGate:
    """Return a gate behind rounds that took so long, of an epoch each: by default of epoch 1."""
    clock = Clock()
    gate = RoundGate(most_s=most_s, now=clock)
    for epoch, seconds in enumerate(rounds_s or (LONG_S,), start=1):
        gate.committed(epoch)
        with gate.round():
            clock.at += seconds
    return gate


def waiting(gate: RoundGate) -> tuple[threading.Thread, list[bool]]:
    """Return a thread that waits, by now, for the newest epoch's round, and what it is told."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(gate.wait(1)), daemon=True)
    thread.start()
    deadline = time.monotonic() + LONG_S
    while not cast(Any, gate._changed)._waiters:
        assert time.monotonic() < deadline, "nobody waits"
        time.sleep(0.001)
    return thread, found


def assert_let_go_by_a_round(gate: RoundGate) -> None:
    """An epoch that comes now waits for the next round, and for no longer."""
    thread, found = waiting(gate)
    with gate.round():
        assert not found
    thread.join(LONG_S)
    assert found == [True]


def test_an_epoch_waits_until_the_newest_one_was_taken_in() -> None:
    gate = gate_of(LONG_S)
    assert not gate.wait(1), "its round has ended"
    gate.committed(2)
    assert_let_go_by_a_round(gate)


def test_a_round_that_began_before_the_epoch_is_not_its_own() -> None:
    gate = gate_of(LONG_S)
    with gate.round():
        gate.committed(2)
    assert_let_go_by_a_round(gate)


def test_a_round_that_fails_lets_the_epoch_go_on() -> None:
    gate = gate_of(LONG_S)
    gate.committed(2)
    thread, found = waiting(gate)
    with pytest.raises(ValueError, match="broken"), gate.round():
        raise ValueError("broken")
    thread.join(LONG_S)
    assert found == [True]


def test_a_round_that_takes_long_has_one_epoch_wait_and_no_more() -> None:
    gate = gate_of(NOT_AT_ALL_S)
    gate.committed(2)
    with gate.round():
        assert gate.wait(1), "for as long as it may"
        gate.committed(3)
        assert not gate.wait(1)
    with gate.round():
        pass
    gate.committed(4)
    assert gate.wait(1), "another round, another wait"


def test_an_epoch_does_not_wait_for_what_others_commit_meanwhile() -> None:
    gate = gate_of(LONG_S)
    gate.committed(2)
    thread, found = waiting(gate)
    with gate.round():
        gate.committed(3)
    thread.join(LONG_S)
    assert found == [True]


def test_a_long_round_among_short_ones_is_waited_for_as_long_as_these_take() -> None:
    gate = gate_of(LONG_S, *[NOT_AT_ALL_S] * 12, *[LONG_S] * 3)
    gate.committed(16)
    began = time.monotonic()
    assert gate.wait(1)
    assert time.monotonic() - began < LONG_S
    assert not gate.wait(1), "its round takes long: nobody else waits for it"


def test_nothing_waits_where_nobody_makes_rounds_or_much_has_come() -> None:
    gate = RoundGate(most_s=LONG_S)
    gate.committed(1)
    assert not gate.wait(1)
    gate = gate_of(LONG_S)
    gate.committed(2)
    assert not gate.wait(FEW_RECORDS + 1)


def test_a_commit_is_told_to_the_gate() -> None:
    memory = EpochMemory()
    with memory.rounds.round():
        pass
    assert not memory.rounds.wait(1)
    memory.rounds._most_s = NOT_AT_ALL_S
    memory.add([committed(1, 0)])
    assert memory.rounds.wait(1)


def test_an_epoch_that_waited_has_what_came_meanwhile(tmp_path: Path) -> None:
    asked: list[int] = []
    run, made = run_over({"quiet": {"0": 40}}, LaneBook(), tmp_path)
    for waits, end in ((False, 1), (True, 40)):
        cast(Any, run)._after_round = lambda records, waits=waits: asked.append(records) or waits
        run._at_work(0, {"quiet": {"0": 1 if not waits else 9}})
        assert made[-1].end == {"quiet": {"0": end}}
    assert asked == [1, 8, 0], "the records that are planned and not read"


@pytest.mark.parametrize(("longest_s", "made_up_to"), [(LONG_S, [60, 100]), (-1.0, [60])])
def test_epochs_that_wait_for_rounds_go_on_without_another_plan(
    longest_s: float, made_up_to: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.read.reach.PLANNED_S", NOT_AT_ALL_S)
    monkeypatch.setattr("pipeline.read.reach.LONGEST_PLAN_S", longest_s)
    ends = {"quiet": {"0": 40}}
    run, made = run_over(ends, LaneBook(), tmp_path)

    def wait(_: int) -> bool:
        """Wait for a round, meanwhile twenty records come: until there are a hundred."""
        ends["quiet"] = {"0": min(100, ends["quiet"]["0"] + 20)}
        return True

    cast(Any, run)._after_round = wait
    run._at_work(0, {"quiet": {"0": 9}})
    assert [each.end["quiet"]["0"] for each in made] == made_up_to


def test_a_topic_that_is_new_amid_a_backlog_does_not_wait_for_all_that_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.read.reach.PLANNED_S", NOT_AT_ALL_S)
    ends = {"shop": {"0": 3_000}}
    run, made = run_over(ends, LaneBook(), tmp_path)
    run._much = None
    run.reach.begin({"shop": {"0": 0}, "new": {"0": 0}})

    def comes(_: int) -> bool:
        ends["new"] = {"0": 5}
        return False

    cast(Any, run)._after_round = comes
    run._at_work(0, {"shop": {"0": 3_000}})
    assert len(made) > 2
    assert made[0].end.keys() == {"shop"}
    assert made[1].end["new"]["0"] > 0, "beside the next part"
    assert run.reach.taken == {"shop": {"0": 3_000}, "new": {"0": 5}}


@pytest.mark.parametrize(
    ("there", "goes_on"),
    [
        ({"shop": [0]}, True),
        ({}, True),
        ({"shop": [0, 1]}, False),
        ({"shop": [0], "new": [0]}, False),
        (None, False),
    ],
    ids=["the same", "fewer", "another partition", "another topic", "nobody tells"],
)
def test_behind_a_plan_epochs_go_on_until_there_is_what_it_lacks(
    there: dict[str, list[int]] | None, goes_on: bool
) -> None:
    asked: list[str] = []

    def matching(pattern: str) -> dict[str, list[int]]:
        asked.append(pattern)
        if there is None:
            raise Unavailable("the broker is away")
        return there

    clock, topics = Clock(), cast(Any, SimpleNamespace(matching=matching))
    reach = Reach(lambda topic: topic, None, told=lambda _: False, now=clock)
    reach.begin({"shop": {"0": 0}}, "shop|new")
    reach.plan({"shop": {"0": 7}})
    assert reach.goes_on(topics)
    assert not asked, "it was planned just now"
    clock.at += PLANNED_S
    assert reach.goes_on(topics) is goes_on
    assert reach.goes_on(topics), "it is not asked at each epoch"
    assert asked == ["shop|new"]
    clock.at = LONGEST_PLAN_S
    assert not reach.goes_on(topics), "now and then there is a plan all the same"
    reach.plan({"shop": {"0": 9}})
    assert reach.goes_on(topics)


def test_without_rounds_each_plan_is_one_of_its_own(tmp_path: Path) -> None:
    run, made = run_over({"quiet": {"0": 40}}, LaneBook(), tmp_path)
    run._at_work(0, {"quiet": {"0": 9}})
    assert [each.end for each in made] == [{"quiet": {"0": 9}}]
