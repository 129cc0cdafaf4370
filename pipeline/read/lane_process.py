"""A child process of low priority that reads and decodes what a lane that is apart has much of.

Decoding takes the interpreter, of which this process has one: the epochs of other lanes would wait
for it at each of their steps. A child has its own, and gets what they leave of the processors. It
is told where to read and by what to decode, then one range after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pyarrow as pa

from kernel.positions import Offsets
from lake.child_processes import Child
from lake.row_bytes import packed, unpacked
from pipeline.decode.records import Router
from pipeline.read.driver_reads import DriverReads
from pipeline.read.kafka_records import decoded_here

MOST_CHILDREN = 4
"""Each takes some 150 MB; who finds no room decodes in this process."""
_ROOM = threading.BoundedSemaphore(MOST_CHILDREN)


class LaneProcess:
    """Decodes for one lane. The child begins with the first range, and lives until `close`."""

    def __init__(self, bootstrap: str, router: Router) -> None:
        self._child = Child(partial(_decoding, bootstrap, router))
        self._lock = threading.Lock()
        self._has_room = False

    def has_room(self) -> bool:
        """Say whether a child is there or may begin: `MOST_CHILDREN` may, in all of this process.

        Room that was found is kept until the child ends.
        """
        with self._lock:
            self._has_room = self._has_room or _ROOM.acquire(blocking=False)
            return self._has_room

    def decoded(self, start: Offsets, end: Offsets, *, most_bytes: int) -> pa.Table | None:
        """Return the records in `[start, end)`, decoded; None where Spark has to read them.

        Raises `TooLarge` for more than `most_bytes`, what decoding raises, and `Unavailable` when
        the child ends or was told to.
        """
        rows = self._child.ask(start, end, most_bytes)
        return None if rows is None else unpacked(rows)

    def interrupt(self) -> None:
        """Have the child end at once, and none begin; of another thread, which waits for rows."""
        self._child.stop()

    def close(self) -> None:
        """End the child."""
        self._child.close()
        with self._lock:
            had, self._has_room = self._has_room, False
        if had:
            _ROOM.release()


def _decoding(
    bootstrap: str, router: Router
) -> Callable[[Offsets, Offsets, int], pa.Buffer | None]:
    """Return what decodes the records of a range; it goes on where the one before ended."""
    reads = DriverReads(bootstrap)

    def decoded(start: Offsets, end: Offsets, most_bytes: int) -> pa.Buffer | None:
        records = reads.read(start, end, most_bytes=most_bytes)
        return None if records is None else packed(decoded_here(records, router))

    return decoded
