"""Waiting for a state, never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

PAUSE_S = 0.02
# Deadlines are stated for a quiet machine. Others were seen four times slower, and then a deadline
# must not decide: it only ends what hangs.
SLOWEST = 4


def until(holds: Callable[[], bool], what: str, *, deadline_s: float = 30) -> None:
    """Return as soon as `holds()`; fail when it still does not after `SLOWEST * deadline_s`."""
    deadline_s *= SLOWEST
    end = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s in vain: {what}")
        time.sleep(PAUSE_S)


async def eventually(
    holds: Callable[[], Awaitable[bool]], what: str, *, deadline_s: float = 30
) -> None:
    """Return as soon as `await holds()`; fail as `until` does."""
    deadline_s *= SLOWEST
    end = time.monotonic() + deadline_s
    while not await holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s} s in vain: {what}")
        await asyncio.sleep(PAUSE_S)
