"""How quick builds were, from the book: what a plan says of time is measured, where it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from replay.book import Built

FAST_ROWS_PER_S, SLOW_ROWS_PER_S = 200_000.0, 15_000.0
"""Between a plain newest-row projection and an as-of join, on two cores."""
START_S = 8.0
"""What a Spark session needs before the first row."""
LAST = 5
"""So many builds count, the newest ones."""
_UNLIKE = 0.2
"""A build of the same projection may take so much more or less than former ones did."""
ENOUGH_ROWS = 10_000
"""A smaller build says how long Spark takes to begin, and nothing of rows."""


class RatesOf(StrEnum):
    """What a range of rates was taken from."""

    THIS = "former builds of this projection"
    OTHERS = "former builds of other projections"
    ASSUMED = "assumed: nothing of this size was built here yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Input rows a second, at least and at most."""

    slowest: float
    fastest: float
    of: RatesOf

    def seconds(self, rows: int) -> tuple[int, int]:
        """Return how long so many rows take, at least and at most."""
        least = START_S + rows / self.fastest
        return round(least), max(round(2 * START_S + rows / self.slowest), round(least) + 1)

    def left(self, rows: int, running_s: float) -> tuple[float, float] | None:
        """Return how long a build of so many rows still takes that has run for so long.

        None where only builds of other projections tell, or it takes longer than they say.
        """
        least, most = rows / self.fastest * (1 - _UNLIKE), rows / self.slowest * (1 + _UNLIKE)
        if self.of is not RatesOf.THIS or running_s >= most:
            return None
        return max(0.0, least - running_s), most - running_s


def rates_for(name: str, built: Sequence[Built]) -> Rates:
    """Return the rates of the last builds of a projection, else of others, else constants."""
    large = [each for each in built if each.rows >= ENOUGH_ROWS and each.seconds > 0]
    own = [each for each in large if each.name == name]
    found = own or large
    if not found:
        return Rates(slowest=SLOW_ROWS_PER_S, fastest=FAST_ROWS_PER_S, of=RatesOf.ASSUMED)
    measured = [each.rows / each.seconds for each in found[-LAST:]]
    return Rates(
        slowest=min(measured), fastest=max(measured), of=RatesOf.THIS if own else RatesOf.OTHERS
    )
