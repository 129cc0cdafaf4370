"""One row with a time far ahead has no other row of its input late."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from kernel import failpoints
from kernel.clock import micros
from lake.layout import Lake
from pipeline.position.progress import Progress
from tests.support.lake.timed_flights import Flights

START = datetime(2013, 1, 1, tzinfo=UTC)
FAR = datetime(9999, 12, 31, tzinfo=UTC)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.mark.parametrize("rows", [3, 40])  # Judged one by one, and many at once.
def test_p6_a_time_far_ahead_moves_no_watermark_and_is_counted(lake: Lake, rows: int) -> None:
    flights = Flights(lake)
    minutes = [START + timedelta(minutes=number) for number in range(rows)]
    first = flights.take([*minutes[:2], FAR, *minutes[2:]])
    assert first.counts["ahead"] == 1
    assert Progress.from_json(first.progress).watermarks.of("events.flight") == micros(minutes[-1])
    failpoints.arm(failpoints.EPOCH_AFTER_LOG)
    later = minutes[-1] + timedelta(minutes=1)
    with pytest.raises(failpoints.Crash):
        flights.take([later, minutes[0]])
    done = flights.recover()
    assert done is not None
    assert "ahead" not in done.counts
    # What came before is late, what came behind the row far ahead is not: as the log keeps it.
    verdicts = flights.logged()[-2:]
    assert [late for _, late, _ in verdicts] == [False, True]
    assert {mark for *_, mark in verdicts} == {minutes[-1]}


def test_an_input_with_times_far_ahead_alone_has_no_watermark(lake: Lake) -> None:
    flights = Flights(lake)
    done = flights.take([FAR] * 20)
    assert done.counts["ahead"] == 20
    assert Progress.from_json(done.progress).watermarks.of("events.flight") is None
    near = datetime.now(UTC) + timedelta(hours=23)
    done = flights.take([near])
    assert Progress.from_json(done.progress).watermarks.of("events.flight") == micros(near)


def test_p6_a_watermark_that_was_moved_too_far_before_is_forgotten_and_verdicts_stand(
    lake: Lake,
) -> None:
    flights = Flights(lake, ahead=None)
    done = flights.take([START, FAR])
    assert Progress.from_json(done.progress).watermarks.of("events.flight") == micros(FAR)
    flights.ahead = timedelta(days=1)
    flights.restart()
    first = [START + timedelta(minutes=number) for number in range(1, 31)]
    done = flights.take(first)
    assert Progress.from_json(done.progress).watermarks.of("events.flight") == micros(first[-1])
    before = flights.logged()
    # An epoch is judged by what the one before it kept, so that a repeated one judges alike.
    assert {late for _, late, _ in before[2:]} == {True}
    flights.take([first[-1] + timedelta(minutes=1), START])
    after = flights.logged()
    assert after[:-2] == before
    assert after[-2:] == [(33, False, first[-1]), (34, True, first[-1])]
