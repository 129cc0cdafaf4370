"""Rows that the last epochs appended to logs of events, in memory, for who derives from them.

Disposable: whoever finds fewer rows than there have to be reads the log.
"""

from __future__ import annotations

import threading
from collections import deque

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch

MOST_BYTES = 16 * 2**20
MOST_EPOCHS = 64


class RecentRows:
    """Holds the rows of the last epochs, up to a bound. Safe for use from several threads."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held: deque[tuple[str, Epoch, pa.Table]] = deque()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, name: str, epoch: Epoch, rows: pa.Table) -> None:
        """Take the rows that an epoch has appended to a log: all that it ever appends to it."""
        with self._lock:
            self._held.append((name, epoch, rows))
            self._bytes += rows.nbytes
            while self._held and (self._bytes > self._most_bytes or len(self._held) > MOST_EPOCHS):
                self._bytes -= self._held.popleft()[2].nbytes

    def of_positions(self, name: str, after: int, up_to: int, epoch: Epoch) -> pa.Table | None:
        """Return the rows of the positions (after, up_to] that were logged up to an epoch.

        None unless there is one of each position: others may have come in epochs before these.
        """
        with self._lock:
            held = [rows for log, at, rows in self._held if log == name and at <= epoch]
        parts = []
        for rows in held:
            position = rows["position"]
            met = pc.and_(pc.greater(position, after), pc.less_equal(position, up_to))
            parts.append(rows.filter(met))
        if not parts:
            return None
        found = pa.concat_tables(parts)
        apart = len(pc.unique(found["position"])) == found.num_rows
        return found if apart and found.num_rows == up_to - after else None
