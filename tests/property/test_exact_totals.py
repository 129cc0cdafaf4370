"""Totals of doubles are exact: of any order, any split, and numbers of any size."""

from __future__ import annotations

import math
import random
import sys
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projections.run.exact_totals import exact_parts, exact_total, parts_of, totals_of

MOST = sys.float_info.max
NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 0.1, 1e16, -1e16, 1.0, MOST, -MOST, 5e-324, -5e-324, 2.0**-1022]),
)
ANY = st.one_of(NUMBERS, st.sampled_from([math.inf, -math.inf, math.nan]))


def bits(values: list[float]) -> list[str]:
    return [value.hex() for value in values]


def rounded(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


@given(st.lists(NUMBERS, max_size=20))
def test_a_total_is_the_double_nearest_to_the_exact_one(values: list[float]) -> None:
    exact = sum(map(Fraction, values), Fraction())
    assert exact_total(values).hex() == rounded(exact).hex()
    parts = exact_parts(values)
    assert sum(map(Fraction, parts), Fraction()) == exact
    assert exact_total(parts).hex() == rounded(exact).hex()


@given(st.lists(ANY, min_size=1, max_size=12), st.randoms(use_true_random=False), st.integers(1, 4))
def test_parts_of_parts_are_those_of_all_values(
    values: list[float], dice: random.Random, count: int
) -> None:
    whole = bits(exact_parts(values))
    dice.shuffle(values)
    some = [values[place::count] for place in range(count)]
    parts = [part for each in some if each for part in exact_parts(each)]
    assert bits(exact_parts(parts)) == whole
    assert exact_total(parts).hex() == exact_total(values).hex()


@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([1e16, 1.0, 1.0], 1e16 + 2.0),
        ([MOST, MOST, -MOST], MOST),
        ([MOST, MOST], math.inf),
        ([-MOST, -MOST, math.inf], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, math.inf], math.nan),
        ([-0.0, -0.0], 0.0),
    ],
)
def test_what_has_no_room_on_the_way_or_in_the_end(values: list[float], total: float) -> None:
    assert exact_total(values).hex() == total.hex()
    assert exact_total(exact_parts(values)).hex() == total.hex()


def test_lists_without_a_value_have_no_total() -> None:
    kind = pa.list_(pa.float64())
    lists = [[1.0, None, 2.0], None, [], [None], [0.1] * 10]
    column = pa.chunked_array([pa.array([[9.0], *lists], kind)[1:], pa.array([[0.5]], kind)])
    assert totals_of(column).to_pylist() == [3.0, None, None, None, 1.0, 0.5]
    assert parts_of(column).to_pylist()[:4] == [[3.0], None, None, None]
    without = pa.array([[9.0], [1.0, 2.0], [], [4.0]], kind)[1:]
    assert totals_of(without).to_pylist() == [3.0, None, 4.0]
