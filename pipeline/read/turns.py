"""Streams take turns at making epochs, and none goes on behind one that failed."""

from __future__ import annotations

import threading
from collections import deque
from statistics import median
from types import TracebackType

_HARDLY_ANY = 100
"""Records that add nothing to what their epoch takes."""
_LATELY = 9


class Stopped(Exception):
    """Ends a run between two epochs."""


class Turn:
    """Held by the one run that makes an epoch, as a context; what fails meanwhile is its `error`.

    Who came first has it first: a run that ends one epoch and has the next one ready would else
    take it again, before another that waits for it has woken up.

    An epoch that failed may be bound: before the next start has finished it, another stream would
    bind the same epoch to other offsets. Who gets the turn after an error therefore has to end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()
        self.error: BaseException | None = None
        self.epochs = 0
        """How many its holders have made: some have it for a look or a decision alone."""
        self._small: deque[float] = deque(maxlen=_LATELY)

    @property
    def least_s(self) -> float:
        """What an epoch takes whatever is in it: as long as the last ones of hardly any records."""
        return median(self._small) if self._small else 0.0

    def made(self, records: int, seconds: float) -> None:
        """Take note of an epoch of so many records; by who has the turn."""
        self.epochs += 1
        if records <= _HARDLY_ANY:
            self._small.append(seconds)

    def __enter__(self) -> Turn:
        with self._lock:
            if not self._held:
                self._held = True
                return self
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Stopped) and self.error is None:
            self.error = error
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()  # It is theirs from now on.
            else:
                self._held = False
