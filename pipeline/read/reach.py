"""How far a run has read, what was planned for it, and which lanes are read elsewhere just now."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from kernel.errors import Unavailable
from kernel.positions import Offsets, covers
from pipeline.commit.manifest_rows import Bound
from pipeline.lanes.lane_book import LaneBook
from pipeline.read.batch_plan import lane_records
from pipeline.read.kafka_records import records_between
from pipeline.read.kafka_topics import KafkaTopics

log = logging.getLogger("penstock.pipeline")

Each = TypeVar("Each")

PLANNED_S = 1.0
"""So often it is asked whether there are new topics, while epochs go on behind what was planned."""
LONGEST_PLAN_S = 5.0
"""So long they may: what is read behind a plan, the next ones have to come to first."""
LOOK_S = 0.03
"""So often it is looked whether more has come, while no plan is waited for."""
LATELY_S = 60.0
"""A lane that had records in this time may have the next one at any moment."""


class Reach:
    """Of one run. `book` has the lanes that are read apart; without it all are read here."""

    def __init__(
        self,
        lane_of: Callable[[str], str],
        book: LaneBook | None,
        *,
        told: Callable[[str], bool],
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`told` says of a topic that it has logical messages alone: these make nobody wait."""
        self._lane_of = lane_of
        self._book = book
        self._told = told
        self._now, self._pause = now, pause
        self.taken: Offsets = {}
        """Up to where this run has read, what was passed by included."""
        self._planned: Offsets = {}
        self._pattern = ""
        self._planned_at = self._asked_at = self._looked_at = now()
        self._lock = threading.Lock()
        self._moved: dict[str, float] = {}

    def begin(self, start: Offsets, pattern: str = "") -> None:
        """Begin to read at `start`, topics that match a pattern."""
        self.taken, self._pattern = start, pattern

    def take(self, end: Offsets) -> None:
        """Take note that some topics were read up to `end`."""
        now, before = self._now(), self.taken
        for topic, places in end.items():
            if not self._told(topic) and not covers(before, {topic: places}):
                self._moved[self._lane_of(topic)] = now
        self.taken = {**before, **end}

    def plan(self, end: Offsets) -> Offsets:
        """Take note of what was planned; return what of it is to be read here.

        Whoever takes a lane over meanwhile does so behind all of it, or has it read here.
        """
        with self._lock:
            self._planned = end
            self._planned_at = self._asked_at = self._looked_at = self._now()
            return self.here(end)

    def behind_plan(
        self,
        topics: KafkaTopics,
        end: Offsets,
        rests: Callable[[int], bool] | None,
        go_on: Callable[[], None],
    ) -> Offsets:
        """Return where topics of a batch end by now, if epochs go on behind what was planned.

        They do where an epoch `rests` before it begins, and as long as another lane is read apart:
        the many threads of Spark that make a plan each wait for a processor then. `go_on` raises
        where the run is to end.
        """
        if rests is not None and self.goes_on(topics):
            rests(0)
            end = self.newest(topics, end)
        while not self.further(end) and self._others_read() and self.goes_on(topics):
            go_on()
            self._pause(LOOK_S)
            end = self.newest(topics, end)
        return end

    def _others_read(self) -> bool:
        return self._book is not None and bool(self._book.reading)

    def goes_on(self, topics: KafkaTopics) -> bool:
        """Say whether epochs may go on behind what was planned: for a while, and only as long as
        the broker has no topic and no partition that the plan lacks. These are in the next one.
        """
        now = self._now()
        if now - self._asked_at < PLANNED_S:
            return True
        self._asked_at = now
        return now - self._planned_at < LONGEST_PLAN_S and not self._lacks_any(topics)

    def _lacks_any(self, topics: KafkaTopics) -> bool:
        """Say whether there is more than what was planned; yes, where nobody tells."""
        try:
            there = topics.matching(self._pattern)
        except Unavailable:
            return True
        planned = ((topic, self._planned.get(topic, {})) for topic in there)
        return any(str(p) not in known for topic, known in planned for p in there[topic])

    def take_over(self, lane: str, taken: Offsets, join: Callable[[], None]) -> bool:
        """Call `join`, so that a lane which was apart is read here, from behind what was `taken`.

        False where that is too early: some of what was planned here, and left to whoever reads it
        apart, is unread. Whoever calls has the turn.
        """
        with self._lock:
            own = {t: at for t, at in self._planned.items() if self._lane_of(t) == lane}
            if not covers(taken, own):
                return False
            self.take(taken)
            join()
        return True

    def here(self, offsets: Mapping[str, Each]) -> Mapping[str, Each]:
        """Return those of the lanes that are read here just now."""
        away = self._book.names if self._book is not None else frozenset()
        if not away:
            return offsets
        return {topic: at for topic, at in offsets.items() if self._lane_of(topic) not in away}

    def without_bulky(self, bound: Callable[[], Bound], much: int | None) -> Bound:
        """Return what is `bound`, but for lanes with so much that others would wait for it.

        These are read apart from here on.
        """
        found = bound()
        if self._book is None or much is None:
            return found
        while lane := self._bulky(found, much):
            log.info("lane %s has much to read: it is read apart", lane)
            self._book.part(lane, f"it has more than {much} records to read at once")
            found = bound()
        return found

    def _bulky(self, bound: Bound, much: int) -> str | None:
        counts = lane_records(bound, self._lane_of, self._told)
        lane, most = max(counts.items(), key=lambda each: each[1], default=("", 0))
        if most <= much:
            return None
        lately = self._now() - LATELY_S
        others = {each for each, at in self._moved.items() if at > lately} | counts.keys()
        away = self._book.names if self._book is not None else frozenset()
        return lane if others - away - {lane} else None

    def further(self, end: Offsets) -> bool:
        """Say whether anything is unread up to `end`."""
        return not covers(self.taken, end)

    def newest(self, topics: KafkaTopics, end: Offsets) -> Offsets:
        """Return where the topics of a batch end by now, with those that are new: in a backlog they
        would wait for all that was planned. Where nobody says so, where the batch ends.
        """
        known = {t: [int(p) for p in at] for t, at in end.items()}
        with suppress(Unavailable):
            if self._now() - self._looked_at >= PLANNED_S:
                self._looked_at = self._now()
                known = {**self.here(topics.matching(self._pattern)), **known}
            return topics.readable_ends(known)
        return end

    def unread(self, topics: KafkaTopics) -> int:
        """Return how many records of known partitions nobody has taken yet; asks the broker.

        Those of lanes that are apart are others' to take.
        """
        taken = self.taken
        here = self.here(taken)
        ends = topics.readable_ends({t: [int(p) for p in at] for t, at in here.items()})
        return max(0, records_between(here, ends)) if taken is self.taken else 0
