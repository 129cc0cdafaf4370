"""Loops of a process that must not stand still: what each does, and since when nothing moved on.

A loop says when it works (`working`); all that is done for it says by `passed` that it has come to
another step, in whatever thread, as long as that has the context of the one that began the work.
Whoever passes a failpoint says so, too. Nothing here acts on it: see `pipeline.process.watchdog`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What a probe sees of a loop: work that `waits` for it, and `progress`: it moves on whenever
    that is another value than before.
    """

    waits: str | None = None
    progress: object = None


class Loop:
    """One loop: `name` is what people call it. Several threads may work for it."""

    def __init__(self, name: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._now = now
        self._lock = threading.Lock()
        self._works = 0
        self._moved = ("its start", now())
        self._waiting: tuple[str, float] | None = None

    @contextmanager
    def working(self, step: str) -> Iterator[None]:
        """Be at work for a block, which begins with `step`."""
        with self._lock:
            self._works += 1
        self.moved(step)
        before = _working_for.set(self)
        try:
            yield
        finally:
            _working_for.reset(before)
            with self._lock:
                self._works -= 1
            self.moved(f"the end of {step}")

    def moved(self, step: str | None = None) -> None:
        """Take note that something was done; `step` names what comes now."""
        self._moved = step or self._moved[0], self._now()

    def pass_over(self, seconds: float) -> None:
        """Leave out time in which the whole process was stopped: nothing could move on in it."""
        now = self._now()
        step, moved = self._moved
        self._moved = step, min(now, moved + seconds)
        waiting = self._waiting
        if waiting is not None:
            self._waiting = waiting[0], min(now, waiting[1] + seconds)

    @property
    def step(self) -> str:
        """The step to which the loop has come."""
        return self._moved[0]

    def waits(self, what: str | None) -> None:
        """Take note of work that waits for this loop, None for none, as somebody else sees it."""
        if what is None:
            self._waiting = None
        elif self._waiting is None:
            self._waiting = what, self._now()
        else:
            self._waiting = what, self._waiting[1]

    def still(self) -> tuple[float, str]:
        """Return for how many seconds nothing moved on although it should, and where it stands.

        A loop that rests while nothing waits for it has no such seconds.
        """
        step, moved = self._moved
        if self._works:
            return self._now() - moved, f"since {step}"
        waiting = self._waiting
        if waiting is None:
            return 0.0, "it rests"
        return self._now() - max(moved, waiting[1]), f"since {step}, while {waiting[0]}"


_working_for: ContextVar[Loop | None] = ContextVar("working_for", default=None)


def passed(step: str) -> None:
    """Say that the work of this context has come to a step."""
    loop = _working_for.get()
    if loop is not None:
        loop.moved(step)
