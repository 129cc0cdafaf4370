"""Waiting for a state, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PAUSE_S = 0.02
LONGEST_PAUSE_S = 0.1
"""A look takes work of a machine that has two cores, and what is waited for needs them as well: who
has waited for long looks less often.
"""
# Deadlines are stated for a quiet machine. Others were seen four times slower, and then a deadline
# must not decide: it only ends what hangs.
SLOWEST = 4


def until(holds: Callable[[], bool], what: str, *, deadline_s: float = 30) -> None:
    """Return as soon as `holds()`; fail when it still does not after `SLOWEST * deadline_s`."""
    deadline_s *= SLOWEST
    begun = time.monotonic()
    while not holds():
        waited_s = time.monotonic() - begun
        if waited_s > deadline_s:
            raise AssertionError(f"waited {deadline_s} s in vain: {what}")
        time.sleep(pause_after(waited_s))


async def eventually(
    holds: Callable[[], Awaitable[bool]], what: str, *, deadline_s: float = 30
) -> None:
    """Return as soon as `await holds()`; fail as `until` does."""
    deadline_s *= SLOWEST
    begun = time.monotonic()
    while not await holds():
        waited_s = time.monotonic() - begun
        if waited_s > deadline_s:
            raise AssertionError(f"waited {deadline_s} s in vain: {what}")
        await asyncio.sleep(pause_after(waited_s))


def pause_after(waited_s: float) -> float:
    """Return how long to pause before the next look."""
    return min(LONGEST_PAUSE_S, max(PAUSE_S, waited_s / 20))
