"""A set of whole numbers, kept as ranges: which positions of a store have been seen."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt


class IntervalSet:
    """A set of positive integers with a small footprint where they are nearly contiguous.

    Memory grows with the number of holes, not of members.
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        """Take closed ranges `[first, last]` in ascending order, not touching one another."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, last in ranges:
            self._starts.append(first)
            self._ends.append(last)

    def __contains__(self, value: int) -> bool:
        i = bisect.bisect_right(self._starts, value) - 1
        return i >= 0 and value <= self._ends[i]

    def add(self, value: int) -> bool:
        """Add a number; return whether it was new."""
        i = bisect.bisect_right(self._starts, value) - 1
        if i >= 0 and value <= self._ends[i]:
            return False
        touches_left = i >= 0 and self._ends[i] == value - 1
        touches_right = i + 1 < len(self._starts) and self._starts[i + 1] == value + 1
        if touches_left and touches_right:
            self._ends[i] = self._ends[i + 1]
            del self._starts[i + 1], self._ends[i + 1]
        elif touches_left:
            self._ends[i] = value
        elif touches_right:
            self._starts[i + 1] = value
        else:
            self._starts.insert(i + 1, value)
            self._ends.insert(i + 1, value)
        return True

    def remove(self, value: int) -> bool:
        """Remove a number; return whether it was there."""
        i = bisect.bisect_right(self._starts, value) - 1
        if i < 0 or value > self._ends[i]:
            return False
        first, last = self._starts[i], self._ends[i]
        left = [(first, value - 1)] if first < value else []
        left += [(value + 1, last)] if value < last else []
        self._starts[i : i + 1] = [start for start, _ in left]
        self._ends[i : i + 1] = [end for _, end in left]
        return True

    def has_any(self, values: npt.NDArray[np.int64]) -> bool:
        """Say whether any of the numbers is a member."""
        if not self._starts:
            return False
        starts, ends = (np.array(each, np.int64) for each in (self._starts, self._ends))
        before = np.searchsorted(starts, values, side="right") - 1
        return bool(((before >= 0) & (values <= ends[before])).any())

    def add_all(self, values: npt.NDArray[np.int64]) -> bool:
        """Add strictly rising numbers if all of them are new; else add none and return False."""
        if self.has_any(values):
            return False
        starts, ends = (np.array(each, np.int64) for each in (self._starts, self._ends))
        jumps = np.flatnonzero(np.diff(values) != 1)
        starts = np.concatenate([starts, values[np.append(0, jumps + 1)]])
        ends = np.concatenate([ends, values[np.append(jumps, len(values) - 1)]])
        order = np.argsort(starts)
        starts, ends = starts[order], ends[order]
        apart = starts[1:] != ends[:-1] + 1
        self._starts = starts[np.append(True, apart)].tolist()
        self._ends = ends[np.append(apart, True)].tolist()
        return True

    @property
    def head(self) -> int:
        """The last number of the run that begins at 1; 0 when 1 is missing."""
        return self._ends[0] if self._starts and self._starts[0] == 1 else 0

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in zip(self._starts, self._ends, strict=True))

    def ranges(self) -> list[list[int]]:
        """Return the closed ranges, ascending: the form in which the manifest keeps them."""
        return [[first, last] for first, last in zip(self._starts, self._ends, strict=True)]

    def copy(self) -> IntervalSet:
        """Return an independent copy."""
        return IntervalSet(self.ranges())
