"""Totals of doubles that are exact and rounded once, as DuckDB and Spark call them.

The total of some doubles is a number that seldom is a double itself. As `parts` it is kept whole:
the double that is nearest to it, the one nearest to what is left, and so on until nothing is. The
same total has the same parts, whatever the values were and however they came; and the parts of a
group's facts so far, with new values beside them, give those of all facts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import pyarrow as pa

_MOST_AT_ONCE = 1_000_000
"""So many values are objects of Python at the same time, unless one list has more."""


def exact_total(values: Sequence[float]) -> float:
    """Return the double that is nearest to the exact total; an infinity for one beyond them all.

    Of nothing but zeros it is the zero without a sign.
    """
    return _nearest(values)


def _nearest(values: Sequence[float]) -> float:
    try:
        return math.fsum(values) + 0.0
    except (OverflowError, ValueError):
        # On the way to a total within their range, or two infinities: it is told by hand.
        beyond = {value for value in values if not math.isfinite(value)}
        if beyond:
            return beyond.pop() if len(beyond) == 1 else math.nan
        return _rounded(sum(map(Fraction, values), Fraction()))


def exact_parts(values: Sequence[float]) -> list[float]:
    """Return doubles whose exact total is that of `values`, the same for all that have this total.

    One that is no finite number is its only part.
    """
    try:
        top = math.fsum(values)
        left = math.fsum([*values, -top])
        if not left:
            return [top + 0.0]
        if not math.fsum([*values, -top, -left]):
            return [top, left]
    except (OverflowError, ValueError):
        pass
    return _all_parts(values)


def _all_parts(values: Sequence[float]) -> list[float]:
    rest, parts = [*values], list[float]()
    while True:
        top = _nearest(rest)
        if math.isinf(top) and all(map(math.isfinite, rest)):
            top = math.copysign(sys.float_info.max, top)
        if top or not parts:
            parts.append(top)
        if not top or not math.isfinite(top):
            return parts
        rest.append(-top)


def totals_of(lists: pa.Array) -> pa.Array:
    """Return the total of each list; NULL for one without a value."""
    totals = [exact_total(values) if values else None for values in _values(lists)]
    return pa.array(totals, pa.float64())


def parts_of(lists: pa.Array) -> pa.Array:
    """Return the parts of each list's total; NULL for one without a value."""
    parts = [exact_parts(values) if values else None for values in _values(lists)]
    return pa.array(parts, pa.list_(pa.float64()))


def _rounded(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _values(lists: pa.Array | pa.ChunkedArray) -> Iterator[list[float]]:
    """Yield the values of each list that are known; none where there is no list."""
    for chunk in lists.chunks if isinstance(lists, pa.ChunkedArray) else [lists]:
        if chunk.null_count or chunk.values.null_count:
            for values in chunk.to_pylist():
                yield [value for value in values or () if value is not None]
            continue
        numbers = chunk.values.to_numpy(zero_copy_only=False)
        places = pairwise(chunk.offsets.to_pylist())
        if len(numbers) <= _MOST_AT_ONCE:
            objects = numbers.tolist()
            yield from (objects[begin:end] for begin, end in places)
        else:
            yield from (numbers[begin:end].tolist() for begin, end in places)
