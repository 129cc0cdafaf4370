"""How many records of a lane that is apart make one epoch: others wait for it, but shortly.

An epoch takes what its commits take, whatever is in it: 30 ms, and 100 or more where the processors
are busy. Fewer records make it no shorter, only more epochs, each of which others wait for. What a
lane takes of the others' time is therefore bounded beyond that (`Turn.least_s`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pipeline.read.turns import Turn

TURN_S = 0.06
"""So long the records of a lane that has much to read are to keep the turn, beyond what an epoch
takes by itself, while others make epochs, too."""
_LATELY_S = 10.0
_LEAST, _FIRST = 1_000, 2_000


class Pace:
    """Of one run. While no other one makes epochs, it may take `most` records at once.

    One that begins `beside` others takes them to be at work until they rest, and takes few at
    first.
    """

    def __init__(
        self,
        most: int,
        turn: Turn,
        *,
        beside: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._turn = turn
        self._now = now
        self._some = min(most, _FIRST) if beside else most
        self._own = 0
        self._others = turn.epochs
        self._seen = now() if beside else None

    def records(self) -> int:
        """Return how many records its next epoch may have."""
        others = self._turn.epochs - self._own
        if others != self._others:
            self._others, self._seen = others, self._now()
        alone = self._seen is None or self._now() - self._seen > _LATELY_S
        return self._most if alone else self._some

    def took(self, records: int, seconds: float) -> None:
        """Take note of how long an epoch of so many records has the turn, which it still has."""
        self._own += 1
        self._turn.made(records, seconds)
        if records:
            own = seconds - self._turn.least_s
            # By half at most: one epoch may have met a busy disk.
            factor = min(2.0, max(0.5, TURN_S / max(own, 1e-6)))
            self._some = int(min(self._most, max(_LEAST, records * factor)))
