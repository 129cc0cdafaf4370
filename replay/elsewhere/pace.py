"""When each event of a replay is due: at once, so many a second, or as far apart as they were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never


class Gaps(StrEnum):
    """Which of an event's times the gaps are taken from."""

    RECORDED = "recorded"
    OCCURRED = "occurred"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOnce:
    """As quickly as the target takes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtRate:
    """Evenly, so many events a second."""

    per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InProportion:
    """With the gaps that there were, divided by `speed`, each at most `longest` of waiting."""

    speed: float
    gaps: Gaps
    longest: timedelta | None


Pace = AtOnce | AtRate | InProportion


class Schedule:
    """Says of each event, in order of position, when it is due after the first one, in seconds.

    Due times never decrease. Of times that go back the greatest before counts, so that a gap is
    waited for once.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._events = 0
        self._due = 0.0
        self._latest: datetime | None = None

    def due(self, recorded_at: datetime, occurred_at: datetime) -> float:
        """Return when the next event is due."""
        match self._pace:
            case AtOnce():
                return 0.0
            case AtRate(per_second=rate):
                self._due = self._events / rate
                self._events += 1
            case InProportion(gaps=gaps) as pace:
                at = recorded_at if gaps is Gaps.RECORDED else occurred_at
                if self._latest is not None and at > self._latest:
                    self._due += _waited(at - self._latest, pace)
                self._latest = at if self._latest is None else max(at, self._latest)
            case _:
                assert_never(self._pace)
        return self._due


def _waited(gap: timedelta, pace: InProportion) -> float:
    seconds = gap.total_seconds() / pace.speed
    return seconds if pace.longest is None else min(seconds, pace.longest.total_seconds())
