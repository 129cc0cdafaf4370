"""When each event is sent: in order of happening, but for a seeded share that comes late.

Three ways to arrive, decided by the event's id and the seed alone, never by the run:

1. on time: sent when it happened;
2. late: sent 5 to 120 minutes of event time after it happened, so out of order;
3. held back: a counted few that are sent after everything else, later than any lateness allows.

The source of truth for "late" is event time: a year goes by in a minute, so the clock on the wall
says nothing.
"""

from __future__ import annotations

import heapq
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from apps.cli.demo_options import DEFAULT_FLIGHTS, FEWEST_FLIGHTS
from examples.flights import flights, raw
from kernel.errors import InvalidRequest
from schemas.records import NewEvent

LATENESS = timedelta(hours=6)
"""What the projections' source declares; `late` stays well within it."""
LATE_SHARE = 0.03
HELD_BACK = 25
_LATE_MINUTES = range(5, 121)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostedEvent:
    """An event, the stream it belongs to, and the event time at which it is sent."""

    stream: str
    event: NewEvent
    posted_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class HeldBack:
    """Names an event that comes extremely late."""

    flight_id: int
    kind: str


class FlightRiver:
    """The first `limit` flights of the year (all with None) as events in order of sending."""

    def __init__(self, limit: int | None = DEFAULT_FLIGHTS, *, seed: int = 2013) -> None:
        if limit is not None and limit < FEWEST_FLIGHTS:
            raise InvalidRequest(f"the demo needs at least {FEWEST_FLIGHTS} flights, not {limit}")
        self.table = raw.read_flights(limit)
        self.seed = seed
        self._zones = raw.airport_zones()

    @property
    def flights(self) -> int:
        """How many flights there are."""
        return int(self.table.num_rows)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many events of each type there are, the held back ones included."""
        departed = pc.is_valid(self.table["dep_time"])
        arrived = pc.is_valid(self.table["arr_time"])
        total = {flights.SCHEDULED: self.flights}
        total[flights.DEPARTED] = pc.sum(departed).as_py()
        total[flights.ARRIVED] = pc.sum(arrived).as_py()
        total[flights.CANCELLED] = self.flights - total[flights.DEPARTED]
        return total

    @cached_property
    def held_back(self) -> tuple[HeldBack, ...]:
        """Name the extremely late few: departures and arrivals in turn, each of another flight.

        All happened before the flight in the middle was due, hours before the last one left.
        """
        middle = self.table["scheduled_departure"][self.flights // 2].as_py()
        early = self.table.filter(pc.field("scheduled_departure") < middle - LATENESS)
        landed = [
            flight
            for flight in flights.flights_of(early.filter(_landed(early)), self._zones)
            if flight.arrived_at is not None and flight.arrived_at < middle
        ]
        chosen = random.Random(self.seed).sample(landed, HELD_BACK)
        kinds = (flights.DEPARTED, flights.ARRIVED)
        return tuple(
            HeldBack(flight_id=flight.flight_id, kind=kinds[n % 2])
            for n, flight in enumerate(chosen)
        )

    def events(self) -> Iterator[PostedEvent]:
        """Yield all events but those held back, by `posted_at`; a few days' events in memory."""
        held = {(each.flight_id, each.kind) for each in self.held_back}
        waiting: list[tuple[datetime, int, int, PostedEvent]] = []
        for flight in flights.flights_of(self.table, self._zones):
            # Nothing of this flight or a later one happens before its announcement.
            settled = flight.scheduled_departure - flights.ANNOUNCED_BEFORE
            while waiting and waiting[0][0] < settled:
                yield heapq.heappop(waiting)[3]
            for ordinal, event in enumerate(flights.events_of(flight)):
                if (flight.flight_id, event.type) in held:
                    continue
                posted = self._posted(flight.flight_id, event)
                heapq.heappush(waiting, (posted.posted_at, flight.flight_id, ordinal, posted))
        while waiting:
            yield heapq.heappop(waiting)[3]

    def late_events(self) -> list[PostedEvent]:
        """Return the events held back, in the order of `held_back`, sent at the very end."""
        by_flight = {each.flight_id: each.kind for each in self.held_back}
        ids = pa.array(by_flight, pa.int64())
        rows = self.table.filter(pc.is_in(self.table["flight_id"], value_set=ids))
        end = self.table["scheduled_departure"][-1].as_py()
        found = {
            flight.flight_id: PostedEvent(
                stream=flights.stream_of(flight.flight_id), event=event, posted_at=end
            )
            for flight in flights.flights_of(rows, self._zones)
            for event in flights.events_of(flight)
            if event.type == by_flight[flight.flight_id]
        }
        return [found[flight_id] for flight_id in by_flight]

    def _posted(self, flight_id: int, event: NewEvent) -> PostedEvent:
        at = event.occurred_at
        assert at is not None, "every event of a flight says when it happened"
        return PostedEvent(
            stream=flights.stream_of(flight_id),
            event=event,
            posted_at=at + delay_of(event, seed=self.seed),
        )


def delay_of(event: NewEvent, *, seed: int) -> timedelta:
    """Return how much later than it happened an event is sent: zero for most."""
    draw = zlib.crc32(event.id.bytes, seed)
    if draw % 10_000 >= LATE_SHARE * 10_000:
        return timedelta(0)
    return timedelta(minutes=_LATE_MINUTES[draw // 10_000 % len(_LATE_MINUTES)])


def _landed(table: pa.Table) -> pa.ChunkedArray:
    return pc.and_(pc.is_valid(table["dep_time"]), pc.is_valid(table["arr_time"]))
