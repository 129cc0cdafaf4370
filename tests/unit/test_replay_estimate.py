"""The time left of a build, told from recorded times of slices: no Spark, no clock."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from replay.estimate import WARMING, seconds_left

BUSY = (
    *(47.13, 9.21, 8.88, 6.2, 7.63, 8.87, 4.24, 5.42, 6.79, 4.92),
    *(5.67, 3.22, 3.28, 4.36, 2.69, 2.8, 6.35, 4.1, 4.0, 5.58),
)
"""Two million rows in 20 slices on two cores that four others used, too, then two, then five."""
STEADY = (
    *(30.14, 6.59, 9.29, 6.03, 6.29, 6.29, 5.71, 4.7, 6.81, 6.58),
    *(5.84, 4.84, 4.58, 5.59, 5.72, 4.22, 5.07, 3.53, 2.42, 2.05),
)
"""The same, while others did the same."""
PROCESSOR = (
    *(10.56, 2.44, 2.45, 1.73, 1.8, 2.03, 1.51, 1.68, 1.62, 1.51),
    *(1.55, 1.2, 1.26, 1.4, 1.25, 1.18, 1.72, 1.28, 1.22, 1.39),
)
"""The processor's seconds of the first: as they would be on a machine that nobody else uses."""


def told(
    slices: Sequence[float], *, every_s: float = 0.5, behind_slices: int = 2
) -> Iterator[tuple[float, float, float]]:
    """Yield the range and the truth, every half second behind the first tenth of the slices."""
    for number in range(max(behind_slices, len(slices) // 10), len(slices)):
        behind = sum(slices[number:])
        for tick in range(int(slices[number] / every_s)):
            truth = behind - tick * every_s
            if truth < sum(slices) / 10:
                return
            low, high = seconds_left(
                slices[:number], len(slices) - number, running_s=tick * every_s
            ) or (0.0, 0.0)
            yield low, high, truth


def within_a_fifth(slices: Sequence[float], *, behind_slices: int = 2) -> float:
    """Return the share of tellings that the truth is within, or beside by a fifth of itself."""
    found = [
        max(low - true, true - high, 0.0) <= true / 5
        for low, high, true in told(slices, behind_slices=behind_slices)
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize(("slices", "least"), [(PROCESSOR, 1.0), (STEADY, 0.9), (BUSY, 0.9)])
def test_after_a_tenth_the_time_left_is_told_within_a_fifth(
    slices: tuple[float, ...], least: float
) -> None:
    assert within_a_fifth(slices) >= least


@pytest.mark.parametrize(("before", "since"), [(1, 2), (2, 1), (1, 3), (3, 1)])
def test_four_slices_after_the_machine_became_busier_or_idle_time_is_told_within_a_fifth(
    before: int, since: int
) -> None:
    slices = [4 * (5 if k == 1 else 1 + WARMING * 4 / k) for k in range(1, 21)]
    busy = [each * (before if k < 10 else since) for k, each in enumerate(slices)]
    assert within_a_fifth(busy, behind_slices=14) == 1.0


@pytest.mark.parametrize("many", [20, 32])
@pytest.mark.parametrize("cold", [1, 4])
@pytest.mark.parametrize("step", [2, 0.5, 3, 1 / 3])
def test_a_tenth_of_the_work_after_a_step_of_the_load_time_is_told_within_a_fifth(
    many: int, cold: int, step: float
) -> None:
    """Another build begins halfway, or one that ran beside ends: nobody knows it before."""
    slices = [5 * (cold if k == 1 else 1 + WARMING * (cold - 1) / k) for k in range(1, many + 1)]
    halfway = many // 2
    slices[halfway:] = [each * step for each in slices[halfway:]]
    assert within_a_fifth(slices, behind_slices=halfway + many // 10) == 1.0


@pytest.mark.parametrize("step", [2, 0.5])
def test_a_step_among_slices_that_are_unlike_is_seen_and_none_where_there_is_none(
    step: float,
) -> None:
    chance = random.Random(7)
    slices = [5 * chance.uniform(0.9, 1.1) for _ in range(20)]
    assert within_a_fifth(slices) == 1.0
    slices[10:] = [each * step for each in slices[10:]]
    assert within_a_fifth(slices, behind_slices=12) == 1.0
    rough = [5 * chance.uniform(0.7, 1.3) for _ in range(20)]
    assert within_a_fifth(rough) >= 0.95


def test_a_constant_pace_over_slices_of_unequal_size_is_told_within_a_fifth() -> None:
    """Of each its size is known, as of the files of a base."""
    sizes = [(1, 2, 4, 0.5, 8)[k % 5] for k in range(20)]
    mean = sum(sizes) / len(sizes)
    shares = [each / mean for each in sizes]
    for done in range(2, len(sizes)):
        truth = sum(5 * each for each in shares[done:])
        low, high = seconds_left([5.0] * done, len(sizes) - done, sizes=shares[done:]) or (0, 0)
        assert low <= truth <= high
        assert high - low <= 0.4 * truth


@pytest.mark.parametrize("slices", [PROCESSOR, STEADY, BUSY])
def test_the_range_says_something(slices: tuple[float, ...]) -> None:
    widths = [(high - low) / (high + low) for low, high, _ in told(slices)]
    assert sum(widths) / len(widths) < 0.25


def test_slices_that_warm_up_as_they_do_are_told_exactly() -> None:
    first, usual, many = 20.0, 2.0, 30
    slices = [first, *(usual + WARMING * (first - usual) / k for k in range(2, many + 1))]
    for done in range(3, many):
        low, high = seconds_left(slices[:done], many - done) or (0.0, 0.0)
        assert (low + high) / 2 == pytest.approx(sum(slices[done:]), rel=0.01)


def test_nothing_is_told_of_what_was_not_measured() -> None:
    assert seconds_left((), 4) is None
    assert seconds_left((), 4, earlier=(9.0,)) is None
    assert seconds_left((9.0, 2.0), 0) == (0.0, 0.0)
    low, high = seconds_left((9.0,), 3) or (0.0, 0.0)
    assert (low < 9.0, high) == (True, 27.0), "how much of it was a beginning is not known"


def test_a_process_that_goes_on_begins_cold_again() -> None:
    warm = seconds_left((9.0, 2.0, 2.0), 5) or (0.0, 0.0)
    cold = seconds_left((), 5, earlier=(9.0, 2.0, 2.0)) or (0.0, 0.0)
    assert sum(cold) / 2 > sum(warm) / 2 + 5


def test_a_limited_rate_bounds_the_time_left_from_below() -> None:
    low, high = seconds_left((9.0, 2.0), 3, pace_s=10.0) or (0.0, 0.0)
    assert low <= 30.0 <= high
    assert low > 25.0


def test_a_slice_under_way_counts_for_what_is_left_of_it() -> None:
    begun = seconds_left((9.0, 2.0, 2.0), 2) or (0.0, 0.0)
    running = seconds_left((9.0, 2.0, 2.0), 2, running_s=1.0) or (0.0, 0.0)
    stuck = seconds_left((9.0, 2.0, 2.0), 2, running_s=60.0) or (0.0, 0.0)
    assert stuck < running < begun
    assert stuck[0] > 0
