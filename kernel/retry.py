"""Bounded retries with exponential back-off and full jitter.

The formula is the "full jitter" one: sleep a uniform random time in [0, min(cap, base * 2^n)].
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from kernel.errors import Retry, retry_directive

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How often and how patiently to retry. Times in seconds."""

    attempts: int = 5
    base_s: float = 0.1
    cap_s: float = 5.0

    def delay_s(self, attempt: int, *, uniform: Callable[[float, float], float]) -> float:
        """Return the pause after failed attempt number `attempt`, counted from 0."""
        return uniform(0.0, min(self.cap_s, self.base_s * 2.0**attempt))


def retrying(
    call: Callable[[], T],
    *,
    backoff: Backoff,
    sleep: Callable[[float], None] = time.sleep,
    uniform: Callable[[float, float], float] = random.uniform,
    final: tuple[type[Exception], ...] = (),
) -> T:
    """Call until it succeeds, fails for good, or `backoff.attempts` are used up.

    Only errors whose directive is not `never`, and that are none of `final`, are retried; the last
    one is raised unchanged.
    """
    for attempt in range(backoff.attempts):
        try:
            return call()
        except Exception as error:
            directive = retry_directive(error)
            last = attempt == backoff.attempts - 1
            if last or directive is Retry.NEVER or isinstance(error, final):
                raise
            if directive is Retry.BACKOFF:
                sleep(backoff.delay_s(attempt, uniform=uniform))
    raise AssertionError("unreachable: the loop returns or raises")
