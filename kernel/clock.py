"""Time as a port, so that tests decide what the time is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Says what time it is, in UTC, always timezone-aware."""

    def now(self) -> datetime:
        """Return the present moment."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the present moment."""
        return datetime.now(UTC)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: datetime) -> None:
        self._now = at

    def now(self) -> datetime:
        """Return the moment that was last set."""
        return self._now

    def set(self, at: datetime) -> None:
        """Move the clock, forwards or backwards."""
        self._now = at
