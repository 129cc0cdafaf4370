"""Turns of lanes: who came first has it first, and one with much takes little beside others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pipeline.lanes.lane_book import LaneBook
from pipeline.read.pace import LEAST, TURN_S, Pace
from pipeline.read.turns import Stopped, Turn
from tests.support.services.waiting import until
from tests.unit.test_lane_shares import run_over


def test_who_has_the_next_epoch_ready_waits_behind_who_waited_before() -> None:
    turn, order = Turn(), list[str]()

    def one(name: str) -> None:
        with turn:
            order.append(name)

    threads = []
    with turn:
        for count, name in enumerate(("quiet", "other"), start=1):
            threads.append(threading.Thread(target=one, args=(name,)))
            threads[-1].start()
            until(lambda count=count: len(turn._waiting) == count, f"{name} waits")
    with turn:
        order.append("again")
    for thread in threads:
        thread.join(10)
    assert order == ["quiet", "other", "again"]


def test_what_fails_amid_a_turn_is_its_error_and_an_end_is_none() -> None:
    turn = Turn()
    with pytest.raises(Stopped), turn:
        raise Stopped
    assert turn.error is None
    with pytest.raises(ValueError, match="first"), turn:
        raise ValueError("first")
    with pytest.raises(ValueError, match="second"), turn:
        raise ValueError("second")
    assert str(turn.error) == "first"


def test_a_lane_takes_less_at_once_while_others_make_epochs() -> None:
    turn, at = Turn(), [0.0]
    pace = Pace(20_000, turn, now=lambda: at[0])

    other = Pace(20_000, turn)

    def epoch(records: int, seconds: float, of: Pace = pace) -> None:
        with turn:
            of.took(records, seconds)

    epoch(20_000, 4 * TURN_S)
    assert pace.records() == 20_000, "nobody else is there"
    with turn:
        pass
    assert pace.records() == 20_000, "somebody looked, and made no epoch"
    epoch(500, TURN_S, other)
    assert pace.records() == 10_000, "it took too long for others"
    epoch(10_000, 2 * TURN_S)
    assert pace.records() == 5_000
    epoch(5_000, TURN_S / 2)
    assert pace.records() == 10_000
    epoch(300, 9 * TURN_S)
    assert pace.records() == LEAST, "never so few that it gets nowhere"
    at[0] += 60
    assert pace.records() == 20_000, "the others rest"


def test_a_lane_that_is_parted_begins_with_few() -> None:
    turn, at = Turn(), [0.0]
    pace = Pace(20_000, turn, beside=True, now=lambda: at[0])
    assert pace.records() == LEAST, "nobody knows yet what its records take"
    pace.took(LEAST, TURN_S / 8)
    assert pace.records() == 2 * LEAST
    at[0] += 60
    assert pace.records() == 20_000, "nobody else makes any"


def test_a_lane_does_not_make_ever_more_epochs_where_each_takes_long_by_itself() -> None:
    turn, busy_s = Turn(), 2 * TURN_S
    pace, other = Pace(20_000, turn, beside=True), Pace(20_000, turn)
    for _ in range(20):
        other.took(2, busy_s)
        records = pace.records()
        pace.took(records, busy_s + busy_s * records / 8_000)
    assert 7_000 <= pace.records() <= 9_000, "as many as take as long again"
    for _ in range(9):
        other.took(2, TURN_S / 2)
    for _ in range(20):
        records = pace.records()
        pace.took(records, TURN_S / 2 + TURN_S * records / 6_000)
    assert 5_000 <= pace.records() <= 7_000, "as many as others are to wait for"


def test_a_lane_rests_between_its_epochs_while_others_make_some_and_longer_where_little_waits() -> (
    None
):
    turn, at = Turn(), [0.0]
    pace = Pace(20_000, turn, beside=True, now=lambda: at[0])
    assert pace.rest_s(10) == 0, "it has taken nothing yet"
    pace.took(LEAST, 0.1)
    assert pace.rest_s(10) == pytest.approx(0.4)
    assert pace.rest_s(10 * LEAST) == pytest.approx(0.1)
    at[0] += 0.3
    assert pace.rest_s(10) == pytest.approx(0.1)
    pace.took(LEAST, 60.0)
    assert pace.rest_s(10) <= 1, "however long its epoch took"
    pace.end()
    assert not pace.rest(10), "its run ends: nobody waits for it"
    at[0] += 60
    assert pace.rest_s(10) == 0, "nobody else makes any"


def test_a_run_that_is_apart_rests_before_each_of_its_epochs(tmp_path: Path) -> None:
    """What it does in place of waiting for rounds: behind both more may have come."""
    run, _ = run_over({"busy": {"0": 9}}, LaneBook(), tmp_path, apart=True)
    assert run._after_round == run._pace.rest
