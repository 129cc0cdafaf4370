"""Streams take turns at making epochs, and none goes on behind one that failed."""

from __future__ import annotations

import threading
from types import TracebackType


class Stopped(Exception):
    """Ends a run between two epochs."""


class Turn:
    """Held by the one run that makes an epoch, as a context; what fails meanwhile is its `error`.

    An epoch that failed may be bound: before the next start has finished it, another stream would
    bind the same epoch to other offsets. Who gets the turn after an error therefore has to end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def __enter__(self) -> Turn:
        self._lock.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, Stopped) and self.error is None:
            self.error = error
        self._lock.release()
