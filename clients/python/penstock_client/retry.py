"""When a call is tried again: bounded in number, with growing waits."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How long one call goes on trying. Waits double from `first_s` up to `cap_s`, with jitter.

    `attempts` counts the first try too: 1 never repeats. `reconnects` is how often in a row a
    subscription or a long read may fail to get one more item before it gives up.
    """

    attempts: int = 6
    reconnects: int = 60
    first_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, failures: int, asked_s: float | None = None) -> float:
        """Return the wait after so many failures in a row, at least what the service asked for."""
        longest = min(self.cap_s, self.first_s * 2.0 ** min(failures - 1, 30))
        # Half of it is random, so that clients that failed together do not return together.
        wait = longest * (0.5 + random.random() / 2)
        return wait if asked_s is None else max(wait, asked_s)
