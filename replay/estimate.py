"""How long the rest of a build takes, from how long its slices took.

A process becomes quicker as it goes on: the first slice bears what Spark needs to begin, and the
machine's code is compiled bit by bit behind it. Measured, the k-th slice of a process takes about

    usual + WARMING * (first - usual) / k

with `usual` what a slice takes in the end. So each slice tells what `usual` is; the last ones count
most, since they know how busy the machine is now. Where two in a row tell something else than all
before, the machine became busier or idler: those before then only tell how unlike slices are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

WARMING = 0.2
_FADING = 0.75
"""A slice counts so much less than the one behind it."""
_STEP, _UNLIKE, _ENOUGH = 1.3, 3.0, 3
"""Two slices are behind a step that both take longer, or both shorter, than so many before them or
more did: by this factor at least, and by so many times what those were apart from each other."""
_BEFORE_STEP = 0.05
"""A slice before a step counts so much less than it would."""
_SURE = 0.16
"""What is told is a range of at least so much to both sides: no machine is as busy at all times."""
_DOUBT = 1.3
_COLD_SHARE = 0.15
"""Of a first slice, the least that the following ones take."""


def seconds_left(
    own: Sequence[float],
    left: int,
    *,
    earlier: Sequence[float] = (),
    running_s: float = 0.0,
    pace_s: float = 0.0,
    sizes: Sequence[float] = (),
) -> tuple[float, float] | None:
    """Return the seconds left, at least and at most; None where nothing was measured yet.

    `own`: how long the slices of this process took, `earlier` those of others before it. `left`
    are to be done, the first of them under way for `running_s`. None takes less than `pace_s`.
    `sizes` are theirs, against the mean of all slices, and times are of one of that mean; without
    any, slices are about equally large.
    """
    if left <= 0:
        return 0.0, 0.0
    sizes = sizes or [1.0] * left
    known = own if len(own) > 1 else earlier
    if len(known) < 2:
        return _after_one(own[0], sum(sizes), running_s, pace_s) if own else None
    usual, spread = _usual(known)
    first = own[0] if own else known[0]
    rest = _rest(len(own), sizes, usual, first, running_s, pace_s)
    doubt = max(_SURE, _DOUBT * spread / usual if usual else 0.0)
    return rest * max(0.0, 1 - doubt), rest * (1 + doubt)


def _after_one(first: float, left: float, running_s: float, pace_s: float) -> tuple[float, float]:
    """Return the bounds that one slice tells: how much of it was a beginning is not known yet."""
    least, most = max(first * _COLD_SHARE, pace_s), max(first, pace_s)
    return max(0.0, left * least - running_s), max(0.0, left * most - running_s)


def _rest(
    begun: int,
    sizes: Sequence[float],
    usual: float,
    first: float,
    running_s: float,
    pace_s: float,
) -> float:
    """Add up what the slices that are left take; the one under way takes a tenth of it more."""
    excess = max(0.0, first - usual)
    each = [
        size * max(pace_s, usual + (excess if k == 1 else WARMING * excess / k))
        for k, size in enumerate(sizes, start=begun + 1)
    ]
    return max(each[0] - running_s, each[0] / 10) + sum(each[1:])


def _usual(known: Sequence[float]) -> tuple[float, float]:
    """Return what a slice takes in the end, and how sure that is: its standard error.

    Slices before a step tell how unlike slices are, as they would have been since; hardly more.
    """
    first = known[0]
    told: list[float] = []
    weights: list[float] = []
    for k, seconds in enumerate(known[1:], start=2):
        told.append(max((seconds - WARMING * first / k) / (1 - WARMING / k), seconds / 3))
        weights = [*(_FADING * each for each in weights), 1.0]
        if ratio := _step(told, weights):
            told[:-2] = [each * ratio for each in told[:-2]]
            weights[:-2] = [_BEFORE_STEP * each for each in weights[:-2]]
    fading = [_FADING ** (len(told) - 1 - n) for n in range(len(told))]
    deviation = _mean(told, fading)[1]
    effective = sum(weights) ** 2 / sum(w * w for w in weights)
    return _mean(told, weights)[0], deviation / sqrt(effective)


def _step(told: Sequence[float], weights: Sequence[float]) -> float | None:
    """Return how much longer the last two take than those before them; None where they do not."""
    if len(told) < 2 + _ENOUGH:
        return None
    mean, deviation = _mean(told[:-2], weights[:-2])
    apart = _UNLIKE * deviation
    low, high = sorted(told[-2:])
    if low > max(mean * _STEP, mean + apart) or high < min(mean / _STEP, mean - apart):
        return (low + high) / 2 / mean
    return None


def _mean(told: Sequence[float], weights: Sequence[float]) -> tuple[float, float]:
    """Return the weighted mean, and how far from it they are."""
    whole = sum(weights)
    mean = sum(w * each for w, each in zip(weights, told, strict=True)) / whole
    variance = sum(w * (each - mean) ** 2 for w, each in zip(weights, told, strict=True)) / whole
    return mean, sqrt(variance)
