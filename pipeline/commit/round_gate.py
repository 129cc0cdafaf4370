"""Epochs and rounds of projections in turns, where little comes: a new epoch waits for its round.

    epoch E | round of E | epoch E+1 | round of E+1      rows are seen one round behind a commit

Both at once share processors and the interpreter, so that each takes twice as long; and an epoch
that is committed amid a round waits for the rest of it before its own one begins. What comes
meanwhile is in the next epoch, which is larger, and costs little more.

Ingest waits for no projection: a round that takes long has one epoch wait for `MOST_S`, and no
further one. Of many records none waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

MOST_S = 0.25
"""So long an epoch waits for a round, once for each."""
FEW_RECORDS = 5_000
"""An epoch of more records does not wait: it would be behind soon."""


class RoundGate:
    """What ingest and the rounds of one process tell each other. Safe for use from both threads."""

    def __init__(self, *, most_s: float = MOST_S, few: int = FEW_RECORDS) -> None:
        self._most_s = most_s
        self._few = few
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
            begins_at = self._newest
        try:
            yield
        finally:
            with self._changed:
                self._taken_in, self._waits = begins_at, True
                self._changed.notify_all()

    def wait(self, records: int) -> bool:
        """Wait for the round of the newest epoch, before one of so many records; say whether."""
        with self._changed:
            if records > self._few or not self._waits or self._is_taken_in():
                return False
            self._waits = self._changed.wait_for(self._is_taken_in, self._most_s)
            return True

    def _is_taken_in(self) -> bool:
        return self._taken_in >= self._newest
