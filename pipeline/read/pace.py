"""How many records of a lane that is apart make one epoch: others wait for it, but shortly.

An epoch takes what its commits take, whatever is in it: 13 ms of a processor, and a millisecond
more for each thousand records. Fewer records make it hardly shorter, only more epochs, each of
which others wait for. What a lane takes of the others' time is therefore bounded beyond that, and
where processors are busy by as much as that takes there (`Turn.least_s`). And it rests between two
epochs, longer where little waits: what comes meanwhile is in the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from pipeline.read.turns import Turn

TURN_S = 0.06
"""So long the records of a lane that has much to read are to keep the turn, beyond what an epoch
takes by itself, while others make epochs, too."""
LEAST = 4_000
"""An epoch of so many records takes a third longer than one of hardly any."""
_LATELY_S = 10.0
_RESTS, _RESTS_FULL, _MOST_REST_S = 4.0, 1.0, 1.0
"""A rest takes so many times as long as the epoch before it, and before a full one; at most so
many seconds."""


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
        self._some = min(most, LEAST) if beside else most
        self._own = 0
        self._others = turn.epochs
        self._seen = now() if beside else None
        self._ended_at, self._took_s = now(), 0.0
        self._over = threading.Event()

    def records(self) -> int:
        """Return how many records its next epoch may have."""
        return self._most if self._is_alone() else self._some

    def _is_alone(self) -> bool:
        others = self._turn.epochs - self._own
        if others != self._others:
            self._others, self._seen = others, self._now()
        return self._seen is None or self._now() - self._seen > _LATELY_S

    def rest(self, records: int) -> bool:
        """Leave the turn to others for a while, before an epoch of so many records.

        Returns whether it did: more may have come then. Whoever calls has not the turn.
        """
        rest_s = self.rest_s(records)
        return rest_s > 0 and not self._over.wait(rest_s)

    def rest_s(self, records: int) -> float:
        """Return for how long it is to rest, before an epoch of so many records."""
        if self._is_alone():
            return 0.0
        times = _RESTS if records < self._some else _RESTS_FULL
        until = self._ended_at + min(_MOST_REST_S, times * self._took_s)
        return max(0.0, until - self._now())

    def end(self) -> None:
        """Rest no more; of another thread."""
        self._over.set()

    def took(self, records: int, seconds: float) -> None:
        """Take note of how long an epoch of so many records has the turn, which it still has."""
        self._own += 1
        self._turn.made(records, seconds)
        self._ended_at, self._took_s = self._now(), seconds
        if records:
            least_s = self._turn.least_s
            # By half at most: one epoch may have met a busy disk.
            factor = min(2.0, max(0.5, max(TURN_S, least_s) / max(seconds - least_s, 1e-6)))
            self._some = int(min(self._most, max(LEAST, records * factor)))
