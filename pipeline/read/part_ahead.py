"""The next part of a backlog, read and decoded in a thread while the epoch before it is made.

Of an epoch of many records reading and decoding take as long as the rest of it, and much of both is
work in C that lets others have the interpreter. One part is ahead at most: memory holds two.
It is disposable: where the next epoch turns out to be another one, records are read once more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from kernel.positions import Offsets
from pipeline.commit.manifest_rows import Bound
from pipeline.read.kafka_records import records_between
from pipeline.read.lane_decoding import Sifted

log = logging.getLogger("penstock.pipeline")

WORTH_A_THREAD = 10_000
"""Fewer records are read when it is their turn."""

Read = Callable[[Offsets, Offsets], Sifted]
"""Reads and decodes the records in `[start, end)`."""


@dataclass(frozen=True, slots=True)
class _Begun:
    start: Offsets
    end: Offsets
    rows: Future[Sifted]


class PartAhead:
    """Of one run. Whoever reads by the same consumer calls `take` or `drop` before."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="part-ahead")
        self._begun: _Begun | None = None

    def begin(self, part: Bound, read: Read) -> None:
        """Begin to read a part, unless it is small; what was begun before is over."""
        if records_between(part.start, part.end) >= WORTH_A_THREAD:
            start, end = _moving(part.start, part.end)
            self._begun = _Begun(start, end, self._pool.submit(read, start, end))

    def part_of(self, whole: Bound) -> Bound | None:
        """Return the part of an epoch that is read already; None where it begins elsewhere."""
        begun = self._begun
        if (
            begun is None
            or (begun.rows.done() and begun.rows.exception())
            or any(
                whole.start.get(topic, {}).get(place) != begun.start[topic][place]
                or last > whole.end[topic][place]
                for topic, places in begun.end.items()
                for place, last in places.items()
            )
        ):
            return None
        end = {
            topic: {p: begun.end.get(topic, {}).get(p, at) for p, at in places.items()}
            for topic, places in whole.start.items()
        }
        return replace(whole, end=end)

    def take(self, start: Offsets, end: Offsets) -> Sifted | None:
        """Return what was read in `[start, end)`, once; None where it was not, or that failed.

        Returns when nothing is being read any more.
        """
        begun, self._begun = self._begun, None
        if begun is None:
            return None
        error = begun.rows.exception()
        if error is not None or _moving(start, end) != (begun.start, begun.end):
            log.info("what was read ahead is read again: %s", error or "an epoch ends elsewhere")
            return None
        found = begun.rows.result()
        return None if found.refused else found  # What its lane waited for may be there by now.

    def drop(self) -> None:
        """Let go of what was read; returns when nothing is being read any more."""
        self.take({}, {})

    def close(self) -> None:
        """Read no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._begun = None


def _moving(start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
    """Return where the partitions begin and end that have records."""
    moved = {
        topic: {p: last for p, last in places.items() if last != start[topic].get(p)}
        for topic, places in end.items()
    }
    kept = {topic: places for topic, places in moved.items() if places}
    return {t: {p: start[t][p] for p in places} for t, places in kept.items()}, kept
