"""A row of the raw flights file becomes the events of one flight, with true UTC times.

    raw row -> Flight -> scheduled, then departed and arrived, or cancelled

The file gives clock times: departures in New York's, arrivals in the destination's zone, without
a date and with 2400 for midnight. Holes in it stay holes: 8,255 flights never departed
(cancelled), 458 departed without any arrival (no `arrived`), 717 arrived without delay or time in
the air (diverted: nulls), 2,512 have no tail number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid5
from zoneinfo import ZoneInfo

import pyarrow as pa

from kernel.errors import ContractViolation
from schemas.records import NewEvent

CATEGORY = "flight"
SCHEDULED, DEPARTED, ARRIVED, CANCELLED = "scheduled", "departed", "arrived", "cancelled"
ANNOUNCED_BEFORE = timedelta(hours=24)
"""`scheduled` happens this long before the scheduled departure; the file does not say."""
_NAMESPACE = UUID("5f0c4d6e-55a8-5d1c-9a52-7a1f3b1e2013")
_UTC = ZoneInfo("UTC")
_ROWS_AT_ONCE = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One flight. Times are UTC; delays and time in the air in minutes, distance in miles."""

    flight_id: int
    carrier: str
    number: int
    tailnum: str | None
    origin: str
    dest: str
    distance: int
    scheduled_departure: datetime
    scheduled_arrival: datetime
    departure_delay: int | None
    arrived_at: datetime | None
    arrival_delay: int | None
    air_time: int | None

    @property
    def departed_at(self) -> datetime | None:
        """When it left the gate; None when it was cancelled."""
        if self.departure_delay is None:
            return None
        return self.scheduled_departure + timedelta(minutes=self.departure_delay)


def flights_of(table: pa.Table, zones: Mapping[str, str]) -> Iterator[Flight]:
    """Yield the flights of `raw.read_flights` in its order, a bounded number in memory."""
    loaded = {code: ZoneInfo(zone) for code, zone in zones.items()}
    for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            yield _flight(row, loaded)


def events_of(flight: Flight) -> list[NewEvent]:
    """Return the flight's events in the order in which they happen."""
    schedule = {
        "scheduled_departure": _text(flight.scheduled_departure),
        "scheduled_arrival": _text(flight.scheduled_arrival),
        "distance_miles": flight.distance,
    }
    announced = flight.scheduled_departure - ANNOUNCED_BEFORE
    events = [_event(flight, SCHEDULED, announced, schedule)]
    departed_at = flight.departed_at
    if departed_at is None:
        # When it was called off is not in the file: the moment it should have left.
        planned = {"scheduled_departure": _text(flight.scheduled_departure)}
        return [*events, _event(flight, CANCELLED, flight.scheduled_departure, planned)]
    departure = {
        "scheduled_departure": _text(flight.scheduled_departure),
        "departed_at": _text(departed_at),
        "departure_delay_minutes": flight.departure_delay,
    }
    events.append(_event(flight, DEPARTED, departed_at, departure))
    if flight.arrived_at is not None:
        arrival = {
            "scheduled_arrival": _text(flight.scheduled_arrival),
            "arrived_at": _text(flight.arrived_at),
            "arrival_delay_minutes": flight.arrival_delay,
            "air_time_minutes": flight.air_time,
            "distance_miles": flight.distance,
        }
        events.append(_event(flight, ARRIVED, flight.arrived_at, arrival))
    return events


def stream_of(flight_id: int) -> str:
    """Return the stream of a flight's events."""
    return f"{CATEGORY}-{flight_id}"


def event_id(flight_id: int, kind: str) -> UUID:
    """Return the id of a flight's event: the same in every run, so that a retry is known."""
    return uuid5(_NAMESPACE, f"{flight_id}/{kind}")


def first_at_clock(clock: int, zone: ZoneInfo, *, after: datetime) -> datetime:
    """Return the first instant after `after` at which clocks in `zone` show `clock` (HHMM, 2400).

    Every flight of the file takes less than a day, so this is when it landed. On the night when
    clocks go back an hour happens twice; the earlier one that is still after `after` is meant.
    """
    hour, minute = divmod(clock % 2400, 100)
    day = after.astimezone(zone).replace(hour=hour, minute=minute, second=0, microsecond=0)
    for days in (0, 1):
        for fold in (0, 1):
            instant = (day + timedelta(days=days)).replace(fold=fold).astimezone(_UTC)
            if instant > after:
                return instant
    raise ContractViolation(f"no {clock:04d} within a day after {after} in {zone}")


def _flight(row: Mapping[str, Any], zones: Mapping[str, ZoneInfo]) -> Flight:
    scheduled: datetime = row["scheduled_departure"]
    zone = zones[row["dest"]]
    delay = row["dep_delay"]
    arrived_at = None
    if row["arr_time"] is not None:
        left = scheduled + timedelta(minutes=delay)
        arrived_at = first_at_clock(row["arr_time"], zone, after=left)
    return Flight(
        flight_id=row["flight_id"],
        carrier=row["carrier"],
        number=row["flight"],
        tailnum=row["tailnum"],
        origin=row["origin"],
        dest=row["dest"],
        distance=row["distance"],
        scheduled_departure=scheduled,
        scheduled_arrival=first_at_clock(row["sched_arr_time"], zone, after=scheduled),
        departure_delay=delay,
        arrived_at=arrived_at,
        arrival_delay=row["arr_delay"],
        air_time=row["air_time"],
    )


def _event(flight: Flight, kind: str, at: datetime, data: Mapping[str, object]) -> NewEvent:
    common: dict[str, object] = {
        "flight_id": flight.flight_id,
        "carrier": flight.carrier,
        "flight_number": flight.number,
        "tailnum": flight.tailnum,
        "origin": flight.origin,
        "dest": flight.dest,
    }
    return NewEvent(
        id=event_id(flight.flight_id, kind),
        type=kind,
        data=common | dict(data),
        metadata={},
        tags=(),
        occurred_at=at,
    )


def _text(at: datetime) -> str:
    return at.isoformat()
