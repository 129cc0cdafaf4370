"""When what failed is tried again: after pauses that grow, or at once when somebody asks."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSES_S = (1.0, 5.0, 15.0, 60.0, 300.0)


class Retries:
    """The pauses of several things, by name. What never failed is due."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: dict[str, int] = {}
        self._due_at: dict[str, float] = {}

    def failed(self, name: str) -> None:
        """Begin a pause, longer than the one before."""
        failures = self._failures.get(name, 0)
        self._due_at[name] = self._now() + PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        self._failures[name] = failures + 1

    def due(self, name: str) -> bool:
        """Say whether the pause of a thing is over."""
        return self._now() >= self._due_at.get(name, 0.0)

    def forget(self, name: str) -> None:
        """Take note that a thing works."""
        self._failures.pop(name, None)
        self._due_at.pop(name, None)

    def clear(self) -> None:
        """Make everything due. The pauses after the next failures are as long as they would be."""
        self._due_at.clear()
