"""Sources whose cut does not move although something waits behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pipeline.commit.folds_beside import BESIDE

STUCK_AFTER_S = 60.0
"""So long the rows of a transaction may be on their way before its source is said to stand still.
"""
_COPIED = "its tables are being copied"
_LONG = {BESIDE: 3_600.0}
"""So long work of ours may take that a cut waits for; nobody else watches it."""


def poisoned(topic: str) -> str:
    """Say what holds a cut whose transactions cannot be told whole, and what to do."""
    return (
        f"records of {topic} are in quarantine, and transactions cannot be told whole without them"
        f" | fix: penstock quarantine retry {topic}"
    )


class StuckSources:
    """Looks at the cuts again and again; says which stand still, and why."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._since: dict[str, tuple[int, float]] = {}
        self._waiting: dict[str, str] = {}
        self._failing: dict[str, str] = {}

    def look(
        self, waiting: Mapping[str, str], cuts: Mapping[str, int], failing: Mapping[str, str]
    ) -> None:
        """Take note of what each source waits for, where its cut is, and what fails at once."""
        self._waiting = {s: why for s, why in waiting.items() if why != _COPIED}
        self._failing = dict(failing)
        for source in self._waiting:
            cut = cuts.get(source, 0)
            if self._since.get(source, (None, 0.0))[0] != cut:
                self._since[source] = cut, self._now()
        self._since = {s: at for s, at in self._since.items() if s in self._waiting}

    def reasons(self) -> dict[str, str]:
        """Return the sources that stand still, each with its reason."""
        late = {
            source: why
            for source, why in self._waiting.items()
            if self._now() - self._since[source][1] >= _LONG.get(why, STUCK_AFTER_S)
        }
        return late | self._failing
