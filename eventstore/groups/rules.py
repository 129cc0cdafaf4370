"""Which event is given to whom, and what becomes of it: the rules of a group, without I/O.

One `Round` is one transaction of a group: made of what is stored, asked for one thing, and then
stored again (`changed`, `finished`, `newly_parked`). The rules:

- A stream's events are given one after the other: an event only when all earlier ones of its
  stream, in this group, are acknowledged or parked, or go to the same consumer before it in the
  same answer, as many as that consumer asked for.
- When one of them is not handled, all behind it are taken back too. That counts as no delivery of
  theirs: nobody says that they are at fault.
- An event that was acknowledged is never given again. Whose time ran out while it was handled
  may still be acknowledged, by whoever handled it, until it is parked and even then.
- Parking an event lets its stream go on. A parked event that is replayed comes before the
  stream's waiting events again.
- Nothing is given more than `max_deliveries` times: then it is parked, or waits for room there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from eventstore.groups.model import GroupEntry, Parked, Settled, Terms, short_reason
from kernel.errors import Overloaded
from kernel.positions import Position
from schemas.records import RecordedEvent


class Round:
    """One look at a group. `entries`: all unfinished ones to give, else those that are named."""

    def __init__(
        self,
        terms: Terms,
        *,
        entries: Iterable[GroupEntry],
        parked: int,
        now: datetime,
    ) -> None:
        self.now = now
        self.parked = parked
        self.unparked = 0
        self.redelivered = 0
        self.changed: dict[Position, GroupEntry] = {}
        self.finished: set[Position] = set()
        self.newly_parked: list[Parked] = []
        self._terms = terms
        self._entries = {entry.position: entry for entry in entries}

    @property
    def unfinished(self) -> int:
        """Events that the group keeps track of."""
        return len(self._entries)

    @property
    def in_flight(self) -> int:
        """Events that are with consumers."""
        return sum(entry.consumer is not None for entry in self._entries.values())

    @property
    def room(self) -> int:
        """How many more events may be looked at."""
        return max(0, self._terms.look_ahead - self.unfinished)

    def settle(self) -> None:
        """Take back what was not acknowledged in time; park what was given often enough."""
        seconds = f"{self._terms.ack_timeout.total_seconds():g}"
        late = [
            entry
            for entry in self._entries.values()
            if entry.consumer is not None and entry.due_at <= self.now
        ]
        firsts = self._firsts()
        for entry in late:
            reason = f"not acknowledged by {entry.consumer} within {seconds} s"
            self._take_back(entry, firsts, due_at=self.now, reason=reason, behind=reason)
        for entry in list(self._entries.values()):
            if entry.consumer is None and entry.deliveries >= self._terms.max_deliveries:
                self._park(entry, entry.reason or "given often enough")

    def take_in(self, events: Sequence[RecordedEvent]) -> None:
        """Keep track of events behind all that were looked at before."""
        for event in events:
            self._keep(
                GroupEntry(
                    position=event.position,
                    event_id=event.id,
                    stream=event.stream,
                    due_at=self.now,
                )
            )

    def givable(self, limit: int, per_stream: int = 1) -> list[GroupEntry]:
        """Return what may be given now, in order of position, so many of one stream at most.

        What was given before and came back goes alone: of a batch that fails whole, nobody knows
        which event is at fault, and the others must not be parked with it.
        """
        free = min(limit, self._terms.max_in_flight - self.in_flight)
        stopped = {e.stream for e in self._entries.values() if e.consumer is not None}
        counts: Counter[str] = Counter()
        ready: list[GroupEntry] = []
        for position in sorted(self._entries):
            if len(ready) >= free:
                break
            entry = self._entries[position]
            if entry.stream in stopped:
                continue
            if entry.due_at > self.now or entry.deliveries >= self._terms.max_deliveries:
                stopped.add(entry.stream)
                continue
            if entry.deliveries > 0 and not ready:
                return [entry]
            if entry.deliveries > 0:
                stopped.add(entry.stream)
                continue
            ready.append(entry)
            counts[entry.stream] += 1
            if counts[entry.stream] >= per_stream:
                stopped.add(entry.stream)
        return ready

    def missing(self, limit: int, per_stream: int = 1) -> int:
        """Return how many more events a consumer that takes `limit` could be given."""
        free = min(limit, self._terms.max_in_flight - self.in_flight)
        ready = self.givable(limit, per_stream)
        if any(entry.deliveries > 0 for entry in ready):
            return 0
        return max(0, free - len(ready))

    def give(self, consumer: str, limit: int, per_stream: int = 1) -> list[GroupEntry]:
        """Hand out what may be given now."""
        due_at = self.now + self._terms.ack_timeout
        given = []
        for entry in self.givable(limit, per_stream):
            self.redelivered += entry.deliveries > 0
            out = replace(entry, consumer=consumer, due_at=due_at, deliveries=entry.deliveries + 1)
            self._keep(out)
            given.append(out)
        return given

    def due_in(self) -> timedelta | None:
        """Return when time alone will make something givable; None when it will not."""
        free = self.in_flight < self._terms.max_in_flight
        times = [
            entry.due_at
            for entry in self._fronts()
            if entry.consumer is not None
            or (free and entry.deliveries < self._terms.max_deliveries)
        ]
        return max(timedelta(0), min(times) - self.now) if times else None

    def ack(self, ids: Sequence[UUID]) -> Settled:
        """Finish events. Whoever holds them now: they were handled.

        What silence took back behind the first of its stream counts as not given, and is told from
        what never was by its reason.
        """
        done = []
        for entry in self._named(ids):
            if entry.deliveries > 0 or entry.reason is not None:
                self._drop(entry)
                self.finished.add(entry.position)
                done.append(entry.event_id)
        return self._settled(ids, done)

    def nack(
        self, ids: Sequence[UUID], *, consumer: str | None, delay: timedelta | None, reason: str
    ) -> Settled:
        """Take events back, to be given again after `delay` (None: the group's back-off).

        Needs all unfinished ones: those that were given behind them come back too.
        """
        held = self._held(ids, consumer)
        firsts = self._firsts()
        for entry in held:
            pause = self._terms.backoff_after(entry.deliveries) if delay is None else delay
            due_at = self.now + pause
            self._take_back(entry, firsts, due_at=due_at, reason=short_reason(reason))
        behind = {
            entry.stream: entry.position
            for entry in sorted(held, key=lambda entry: entry.position, reverse=True)
        }
        for entry in list(self._entries.values()):
            if entry.consumer is not None and entry.position > behind.get(
                entry.stream, entry.position
            ):
                self._take_back(entry, firsts, due_at=self.now, reason=entry.reason)
        for entry in held:
            back = self._entries[entry.position]
            if back.deliveries >= self._terms.max_deliveries:
                self._park(back, back.reason or "")
        return self._settled(ids, [entry.event_id for entry in held])

    def park(self, ids: Sequence[UUID], *, consumer: str | None, reason: str) -> Settled:
        """Give up on events, all of those named or none. Raises `Overloaded` without room."""
        held = list(self._held(ids, consumer))
        if self.parked + len(held) > self._terms.max_parked:
            raise Overloaded(
                f"{self.parked} events are parked, {self._terms.max_parked} is the most",
                remedy="Look at the parked events, then replay or acknowledge them.",
            )
        for entry in held:
            self._park(entry, reason)
        return self._settled(ids, [entry.event_id for entry in held])

    def unpark(self, count: int) -> None:
        """Know that so many parked events were finished."""
        self.parked -= count
        self.unparked += count

    def drop_missing(self, given: Sequence[GroupEntry]) -> None:
        """Park what was to be given but is in the store no more (archived meanwhile)."""
        for entry in given:
            self._park(entry, "the event is not in the store any more")

    def _firsts(self) -> dict[str, Position]:
        """Return the first unfinished event of each stream: what is behind it does not count."""
        firsts: dict[str, Position] = {}
        for entry in self._entries.values():
            at = firsts.get(entry.stream, entry.position)
            firsts[entry.stream] = min(at, entry.position)
        return firsts

    def _take_back(
        self,
        entry: GroupEntry,
        firsts: dict[str, Position],
        *,
        due_at: datetime,
        reason: str | None,
        behind: str | None = None,
    ) -> None:
        if entry.position != firsts[entry.stream]:
            deliveries, due_at, reason = entry.deliveries - 1, self.now, behind or entry.reason
        else:
            deliveries = entry.deliveries
        self._keep(
            replace(entry, consumer=None, due_at=due_at, deliveries=deliveries, reason=reason)
        )

    def _fronts(self) -> list[GroupEntry]:
        """Return what stands first in each stream. What is with a consumer stands before all:
        an older event may have come back from the parked ones meanwhile.
        """
        fronts: dict[str, GroupEntry] = {}
        for position in sorted(self._entries):
            entry = self._entries[position]
            front = fronts.get(entry.stream)
            if front is None or (entry.consumer is not None and front.consumer is None):
                fronts[entry.stream] = entry
        return sorted(fronts.values(), key=lambda entry: entry.position)

    def _named(self, ids: Sequence[UUID]) -> list[GroupEntry]:
        by_id = {entry.event_id: entry for entry in self._entries.values()}
        return [by_id[id_] for id_ in dict.fromkeys(ids) if id_ in by_id]

    def _held(self, ids: Sequence[UUID], consumer: str | None) -> list[GroupEntry]:
        return [
            entry
            for entry in self._named(ids)
            if entry.consumer is not None and consumer in (None, entry.consumer)
        ]

    def _keep(self, entry: GroupEntry) -> None:
        self._entries[entry.position] = entry
        self.changed[entry.position] = entry

    def _drop(self, entry: GroupEntry) -> None:
        self._entries.pop(entry.position)
        self.changed.pop(entry.position, None)

    def _park(self, entry: GroupEntry, reason: str) -> None:
        if self.parked >= self._terms.max_parked:
            return
        self.parked += 1
        self._drop(entry)
        self.newly_parked.append(
            Parked(
                position=entry.position,
                event_id=entry.event_id,
                stream=entry.stream,
                deliveries=entry.deliveries,
                reason=short_reason(reason),
                parked_at=self.now,
            )
        )

    @staticmethod
    def _settled(ids: Sequence[UUID], done: Sequence[UUID]) -> Settled:
        settled = set(done)
        others = tuple(id_ for id_ in dict.fromkeys(ids) if id_ not in settled)
        return Settled(done=tuple(done), refused=others)
