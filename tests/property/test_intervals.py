"""An interval set is a set of numbers with few ranges."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeline.position.intervals import IntervalSet


@given(st.lists(st.integers(1, 40)))
def test_p2_it_knows_exactly_what_was_added(numbers: list[int]) -> None:
    seen: set[int] = set()
    intervals = IntervalSet()
    for number in numbers:
        assert intervals.add(number) == (number not in seen)
        seen.add(number)
    assert [n for n in range(50) if n in intervals] == sorted(seen)
    assert len(intervals) == len(seen)
    head = 0
    while head + 1 in seen:
        head += 1
    assert intervals.head == head


@given(st.lists(st.integers(1, 40)))
def test_ranges_are_canonical_and_restore_it(numbers: list[int]) -> None:
    intervals = IntervalSet()
    for number in numbers:
        intervals.add(number)
    ranges = intervals.ranges()
    assert all(a[1] + 1 < b[0] for a, b in itertools.pairwise(ranges))
    assert IntervalSet(ranges).ranges() == ranges


@given(st.lists(st.integers(1, 40)), st.sets(st.integers(1, 40), min_size=1))
def test_p2_many_numbers_are_added_as_one_by_one_if_all_are_new(
    before: list[int], added: set[int]
) -> None:
    together, single = IntervalSet(), IntervalSet()
    for number in before:
        together.add(number)
        single.add(number)
    new = not added & set(before)
    assert together.add_all(np.array(sorted(added), np.int64)) == new
    for number in sorted(added) if new else ():
        single.add(number)
    assert together.ranges() == single.ranges()
