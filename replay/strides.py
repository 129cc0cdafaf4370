"""How many slices of a build are computed by one look at its inputs, and what the rest takes.

A look costs the same whatever it computes: it scans the inputs, and computes sides of joins that no
slice parts. Each slice costs something beside that:

    seconds of a look = once + each * slices

Where what is done once is most of it, the next look is at twice as many slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

QUICK_S = 2.0
"""Looks that take less are doubled in any case: nobody needs the time left of so short a build."""
LONG_S = 10.0
"""Looks that take longer are not: one is what a build that is killed begins again."""
_RECENT = 4
"""So many looks tell what one costs: the machine may have been busier before."""


@dataclass(slots=True)
class Strides:
    """The looks of one process at the inputs of a build: slices, and seconds."""

    looks: list[tuple[int, float]] = field(default_factory=list)

    def took(self, slices: int, seconds: float) -> None:
        """Take note of a look."""
        self.looks.append((slices, seconds))

    def next(self) -> int:
        """Return how many slices the next look is to be at."""
        slices, seconds = self.looks[-1]
        if seconds < QUICK_S:
            return 2 * slices
        once, each = self._costs()
        if seconds < LONG_S and once > each * slices:
            return 2 * slices
        if seconds > 2 * QUICK_S and 4 * once < each * slices:
            return max(1, slices // 2)
        return slices

    def at(self, slices: int) -> list[float]:
        """Return what each look would have taken at so many slices."""
        once, each = self._costs() if self.looks else (0.0, 0.0)
        asked = once + each * slices
        return [seconds * asked / max(once + each * many, 1e-9) for many, seconds in self.looks]

    def ahead(self, sizes: Sequence[float], slices: int) -> list[float]:
        """Return what each look takes that is left, against one at so many slices of the mean size.

        `sizes` are those of the slices that are left.
        """
        once, each = self._costs() if self.looks else (0.0, 1.0)
        parts = (sizes[first : first + slices] for first in range(0, len(sizes), slices))
        asked = max(once + each * slices, 1e-9)
        return [(once + each * sum(part)) / asked for part in parts]

    def _costs(self) -> tuple[float, float]:
        """Return the seconds that a look costs once, and for each slice: of the line through them.

        Where all were at as many slices nothing tells: all of it is taken to be done once as long
        as there is but one, so that the second one tells more.
        """
        recent = self.looks[-_RECENT:]
        many = recent[-1][0]
        # One at another stride tells the two apart, however long ago it was.
        other = next((each for each in reversed(self.looks) if each[0] != many), recent[-1])
        recent = recent if other in recent else [other, *recent]
        middle = sum(many for many, _ in recent) / len(recent)
        mean = sum(seconds for _, seconds in recent) / len(recent)
        apart = sum((many - middle) ** 2 for many, _ in recent)
        if not apart:
            return (mean, 0.0) if len(self.looks) == 1 else (0.0, mean / middle)
        rise = sum((many - middle) * (seconds - mean) for many, seconds in recent) / apart
        each = min(max(rise, 0.0), mean / middle)
        return mean - each * middle, each
