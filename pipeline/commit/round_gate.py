"""Epochs and rounds of projections in turns, where little comes: a new epoch waits for its round.

    epoch E | round of E | epoch E+1 | round of E+1      rows are seen one round behind a commit

Both at once share processors and the interpreter, so that each takes twice as long; and an epoch
that is committed amid a round waits for the rest of it before its own one begins. What comes
meanwhile is in the next epoch, which is larger, and costs little more.

Ingest waits for no projection: an epoch waits for the round of what was committed when it came, not
of what others commit meanwhile; for three times as long as most rounds take, and for `MOST_S` at
most. A round that takes longer has one epoch wait so long, and no further one. Of many records none
waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_S = 0.5
"""So long an epoch waits for a round, once for each: what is committed amid a round is seen behind
the next one, which is as late, and takes processors from this one."""
FEW_RECORDS = 5_000
"""An epoch of more records does not wait: it would be behind soon."""
_LATELY = 16
"""So many rounds say how long most of them take: three quarters of these."""
_TIMES = 3


class RoundGate:
    """What ingest and the rounds of one process tell each other. Safe for use from both threads."""

    def __init__(
        self, *, most_s: float = MOST_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_s = most_s
        self._now = now
        self._took: deque[float] = deque(maxlen=_LATELY)
        """How long the last rounds took that had an epoch to take in."""
        self._changed = threading.Condition()
        self._newest = self._taken_in = -1
        self._waits = False
        """Not before a round was seen to end, and not again for one that was waited for."""

    def committed(self, epoch: int) -> None:
        """Take note of a committed epoch."""
        with self._changed:
            self._newest = max(self._newest, epoch)

    @contextmanager
    def round(self) -> Iterator[None]:
        """Do a round in the block: it takes in what is committed when it begins, or fails to."""
        with self._changed:
            begins_at, began = self._newest, self._now()
        try:
            yield
        finally:
            with self._changed:
                if begins_at > self._taken_in:
                    self._took.append(self._now() - began)
                self._taken_in, self._waits = begins_at, True
                self._changed.notify_all()

    def wait(self, records: int) -> bool:
        """Wait for the round of the newest epoch, before one of so many records; say whether."""
        with self._changed:
            newest = self._newest
            if records > FEW_RECORDS or not self._waits or self._taken_in >= newest:
                return False
            limit_s = min(self._most_s, self._usual_s())
            self._waits = self._changed.wait_for(lambda: self._taken_in >= newest, limit_s)
            return True

    def _usual_s(self) -> float:
        """Return how long a round may take and be one as most are: processors are busy at times."""
        lately = sorted(self._took)
        return _TIMES * lately[len(lately) * 3 // 4] if lately else self._most_s
