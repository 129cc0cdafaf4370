"""How far a run has read, what was planned for it, and which lanes are read elsewhere just now."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kernel.positions import Offsets
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Bound
from pipeline.lanes.lane_book import LaneBook
from pipeline.read.batch_plan import bulky_lane
from pipeline.read.kafka_records import records_between
from pipeline.read.kafka_topics import KafkaTopics

log = logging.getLogger("penstock.pipeline")


class Reach:
    """Of one run. `book` has the lanes that are read apart; without it all are read here."""

    def __init__(
        self, ingest: Ingest, lane_of: Callable[[str], str], book: LaneBook | None
    ) -> None:
        self._ingest = ingest
        self._lane_of = lane_of
        self._book = book
        self._taken: Offsets = {}
        self._planned: Offsets = {}
        self._lock = threading.Lock()

    def begin(self, start: Offsets) -> None:
        """Begin to read at `start`."""
        self._taken = start

    def take(self, end: Offsets) -> None:
        """Take note that some topics were read up to `end`."""
        self._taken = {**self._taken, **end}

    def plan(self, end: Offsets) -> Offsets:
        """Take note of what was planned; return what of it is to be read here.

        Whoever takes a lane over meanwhile does so behind all of it, or has it read here.
        """
        with self._lock:
            self._planned = end
            return self.here(end)

    def take_over(self, lane: str, join: Callable[[], None]) -> bool:
        """Call `join`, so that a lane which was apart is read here; False where that is too early.

        Some of what was planned here, and left to whoever reads it apart, is unread. Whoever calls
        has the turn.
        """
        with self._lock:
            last = self._ingest.last
            read = {} if last is None else last.end
            own = {t: at for t, at in self._planned.items() if self._lane_of(t) == lane}
            if _beyond(own, read):
                return False
            join()
        return True

    def here(self, offsets: Offsets) -> Offsets:
        """Return those of the lanes that are read here just now."""
        away = self._book.names if self._book is not None else frozenset()
        if not away:
            return offsets
        return {topic: at for topic, at in offsets.items() if self._lane_of(topic) not in away}

    def without_bulky(
        self, bound: Callable[[], Bound], much: int | None, told: Callable[[str], bool]
    ) -> Bound:
        """Return what is `bound`, but for lanes with so much that others would wait for it.

        These are read apart from here on. Topics that are `told` have logical messages alone.
        """
        found = bound()
        if self._book is None or much is None:
            return found
        while lane := bulky_lane(found, much, self._lane_of, told):
            log.info("lane %s has much to read: it is read apart", lane)
            self._book.part(lane, f"it has more than {much} records to read at once")
            found = bound()
        return found

    def further(self, end: Offsets) -> bool:
        """Say whether anything is unread up to `end`."""
        return _beyond(end, self._reached())

    def unread(self, topics: KafkaTopics) -> int:
        """Return how many records of known partitions nobody has taken yet; asks the broker.

        Those of lanes that are apart are others' to take.
        """
        taken = self._taken
        here = self.here(self._reached())
        ends = topics.readable_ends({t: [int(p) for p in at] for t, at in here.items()})
        return max(0, records_between(here, ends)) if taken is self._taken else 0

    def _reached(self) -> Offsets:
        """Return how far reading has come, what was passed by included."""
        last = self._ingest.last
        read = {} if last is None else last.end
        return {
            topic: {p: max(at, read.get(topic, {}).get(p, 0)) for p, at in places.items()}
            for topic, places in self._taken.items()
        }


def _beyond(end: Offsets, read: Offsets) -> bool:
    return any(
        last > read.get(topic, {}).get(place, 0)
        for topic, places in end.items()
        for place, last in places.items()
    )
