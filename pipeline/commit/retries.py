"""When what failed is tried again, and when an error is there to stay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from kernel.errors import LeaseLost, Retry, retry_directive

PAUSES_S = (1.0, 5.0, 15.0, 60.0, 300.0)
PATIENCE = 5
"""So many times in a row one table may fail of something that may pass by itself."""


@dataclass(slots=True)
class Patience:
    """Tells errors that stay from those that may pass: storage that does not answer, say.

    It counts in a row, by table, over restarts of ingest.
    """

    failures: Counter[str] = field(default_factory=Counter)

    def lasts(self, name: str, error: Exception) -> None:
        """Return when an error is there to stay. Raises it while it may pass by itself."""
        self.failures[name] += 1
        passing = retry_directive(error) is not Retry.NEVER
        if isinstance(error, LeaseLost) or (passing and self.failures[name] < PATIENCE):
            raise error
        del self.failures[name]

    def works(self, name: str) -> None:
        """Take note that a table does not fail any more."""
        self.failures.pop(name, None)


class Retries:
    """The pauses of several things, by name, that grow. What never failed is due."""

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
