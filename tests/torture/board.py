"""What everybody who takes part in a run knows of it: clocks, counts, the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Kill:
    """One thing that was done to the store. `healed_s`: until an append that began after it was
    acknowledged; None when none was.
    """

    kind: str
    victim: str
    at_s: float
    events: int
    healed_s: float | None = None


@dataclass(slots=True)
class Board:
    """Counts of one run. `acknowledged` events, and when the last acknowledged append began."""

    wanted: int
    least_kills: int = 0
    began: float = field(default_factory=time.monotonic)
    acknowledged: int = 0
    last_begun: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    kills: list[Kill] = field(default_factory=list)
    writing_s: float = 0.0
    enough: asyncio.Event = field(default_factory=asyncio.Event)
    failed: str | None = None

    def acknowledge(self, events: int, begun: float) -> None:
        """Note an acknowledged append that began at `begun` (monotonic seconds)."""
        self.acknowledged += events
        self.last_begun = max(self.last_begun, begun)
        if self.acknowledged >= self.wanted and self.healed() >= self.least_kills:
            self.enough.set()

    def healed(self) -> int:
        """Return after how many kills appends were acknowledged again."""
        return sum(kill.healed_s is not None for kill in self.kills)

    def fail(self, why: str) -> None:
        """End the run: what it was to show cannot be shown any more."""
        self.failed = self.failed or why
        self.enough.set()

    def elapsed_s(self) -> float:
        """Return how long the run has taken."""
        return time.monotonic() - self.began
