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
