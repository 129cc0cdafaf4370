"""Which lanes are read apart from the others, why, and when one that failed is tried again.

A lane is named as its source is; the event store's is `outbox`. Lanes that keep up are read
together, in one stream. One whose records cannot be read is *held*: it is tried again, alone, after
a pause that grows. One that goes on alone, because it is tried again or has far more to read than
the others, is *apart* until it has kept up for a while; then it is read with the others again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from kernel.errors import Unavailable, cause_and_fix

log = logging.getLogger("penstock.pipeline")

PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
STEADY_S = 10.0
"""So long a lane has to keep up by itself, before it is read with the others."""
_MOST_SAID = 800


@dataclass(slots=True, kw_only=True)
class Apart:
    """A lane that is not read with the others. `due` None: nothing but a restart tries it again."""

    reason: str
    held: bool
    due: float | None
    failures: int = 0
    steady_since: float | None = None

    def document(self) -> dict[str, object]:
        """Return it for the health."""
        state = "held" if self.held else "apart"
        return {"state": state, "reason": self.reason, "failures": self.failures}


class LaneBook:
    """Knows the lanes that are read apart; every other lane is read together with the rest.

    It outlives the runs. Any thread may write and read it: of two that write, both are heard.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._apart: dict[str, Apart] = {}
        self._lock = threading.Lock()

    @property
    def names(self) -> frozenset[str]:
        """The lanes that are not read with the others."""
        return frozenset(self._apart)

    @property
    def reading(self) -> frozenset[str]:
        """The lanes that are apart and are read."""
        return frozenset(lane for lane, each in self._apart.items() if not each.held)

    def keep(self, lanes: Collection[str]) -> None:
        """Forget all lanes but these: the source of another one was removed."""
        with self._lock:
            self._apart = {lane: each for lane, each in self._apart.items() if lane in lanes}

    def refuse(self, lane: str, error: BaseException) -> None:
        """Hold a lane for what could not be done with its records."""
        log.warning("lane %s is held: %s", lane, error)
        told = error if isinstance(error, Exception) else Unavailable(str(error))
        self.hold(lane, cause_and_fix(told, most=_MOST_SAID))

    def hold(self, lane: str, reason: str, *, lasting: bool = False) -> None:
        """Take note that a lane could not be read; `lasting`: trying again does not mend it."""
        with self._lock:
            known = self._apart.get(lane)
            failures = 0 if known is None else known.failures
            pause = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
            due = None if lasting else self._now() + pause
            held = Apart(reason=reason, held=True, due=due, failures=failures + 1)
            self._apart = {**self._apart, lane: held}

    def part(self, lane: str, reason: str) -> None:
        """Have a lane read apart, at once, though nothing is wrong with it."""
        with self._lock:
            parted = Apart(reason=reason, held=False, due=self._now())
            self._apart = {**self._apart, lane: parted}

    def due(self) -> list[str]:
        """Return the lanes that may be read apart now."""
        now = self._now()
        return [
            lane for lane, each in self._apart.items() if each.due is not None and each.due <= now
        ]

    def awaited(self) -> frozenset[str]:
        """Return the lanes that are apart and are tried again by themselves."""
        return frozenset(lane for lane, each in self._apart.items() if each.due is not None)

    def reads(self, lane: str) -> None:
        """Take note that an epoch of a lane was made: it is not held any more."""
        each = self._apart[lane]
        if each.held:
            each.held, each.reason = False, f"is read again, after: {each.reason}"

    def keeps_up(self, lane: str, *, now: bool) -> bool:
        """Take note whether a lane keeps up; say whether it has done so for long enough to join."""
        each = self._apart[lane]
        if not now:
            each.steady_since = None
            return False
        if each.steady_since is None:
            each.steady_since = self._now()
        return self._now() - each.steady_since >= STEADY_S

    def join(self, lane: str) -> None:
        """Have a lane read together with the others again."""
        with self._lock:
            self._apart = {name: each for name, each in self._apart.items() if name != lane}

    def held(self) -> dict[str, str]:
        """Return the lanes that are held, each with the reason."""
        return {lane: each.reason for lane, each in self._apart.items() if each.held}

    def document(self) -> dict[str, dict[str, object]]:
        """Return the lanes that are not read with the others, for the health."""
        return {lane: each.document() for lane, each in self._apart.items()}
