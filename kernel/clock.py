"""Time as a port, so that tests decide what the time is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


def read_moment(text: str) -> datetime:
    """Read a time of ISO 8601, its `z` small or not, as RFC 3339 has it. Raises `ValueError`."""
    return datetime.fromisoformat(f"{text[:-1]}Z" if text.endswith("z") else text)


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
