"""How long each step of an epoch took, for its row in the manifest."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stopwatch:
    """Milliseconds per step of one epoch."""

    steps: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=time.perf_counter)

    def lap(self, step: str) -> None:
        """Book the time since the last lap to `step`."""
        now = time.perf_counter()
        self.steps[step] = round(self.steps.get(step, 0.0) + (now - self._since) * 1000, 1)
        self._since = now
