from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.flights import raw
from examples.flights.comparison import compare
from examples.flights.flights import Flight, events_of, first_at_clock, flights_of
from examples.flights.oracle import Oracle

INSTANTS = st.integers(0, 365 * 24 * 60).map(
    lambda minutes: datetime(2013, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
)
ZONES = sorted(set(raw.airport_zones().values()))


@given(
    after=INSTANTS,
    zone=st.sampled_from(["America/Phoenix", "America/Puerto_Rico", "Pacific/Honolulu"]),
    minute=st.integers(0, 1439),
)
def test_clock_without_summer_time_comes_within_a_day(
    after: datetime, zone: str, minute: int
) -> None:
    clock = minute // 60 * 100 + minute % 60
    found = first_at_clock(clock, ZoneInfo(zone), after=after)
    assert after < found <= after + timedelta(days=1)
    shown = found.astimezone(ZoneInfo(zone))
    assert shown.hour * 100 + shown.minute == clock


@given(
    landed=INSTANTS,
    zone=st.sampled_from(ZONES),
    hours=st.integers(1, 22),
)
def test_what_a_clock_showed_is_found_again_unless_it_showed_it_twice(
    landed: datetime, zone: str, hours: int
) -> None:
    shown = landed.astimezone(ZoneInfo(zone))
    found = first_at_clock(
        shown.hour * 100 + shown.minute, ZoneInfo(zone), after=landed - timedelta(hours=hours)
    )
    assert found == landed or (shown.fold == 1 and found == landed - timedelta(hours=1))


@pytest.fixture(scope="module")
def nights() -> pa.Table:
    """The flights of the first days and of both nights on which clocks change."""
    year = raw.read_flights()
    days = {date(2013, 1, 1), date(2013, 3, 9), date(2013, 3, 10), date(2013, 11, 2)}
    chosen = [
        pc.and_(pc.equal(year["month"], day.month), pc.equal(year["day"], day.day)) for day in days
    ]
    wanted = chosen[0]
    for each in chosen[1:]:
        wanted = pc.or_(wanted, each)
    return year.filter(wanted)


def test_events_agree_with_the_oracle_that_never_saw_them(nights: pa.Table) -> None:
    flights = list(flights_of(nights, raw.airport_zones()))
    highest = max(flight.flight_id for flight in flights)
    expected = Oracle(flights=highest).table("flight_status")
    taken = pc.is_in(expected["flight_id"], value_set=nights["flight_id"].combine_chunks())
    found = compare("flight_status", expected.filter(taken), _latest(flights), key=["flight_id"])
    assert found.equal, found
    assert found.actual_rows > 3_000


def test_delays_agree_with_the_instants(nights: pa.Table) -> None:
    for flight in flights_of(nights, raw.airport_zones()):
        if flight.arrived_at is not None and flight.arrival_delay is not None:
            delay = flight.arrived_at - flight.scheduled_arrival
            assert delay == timedelta(minutes=flight.arrival_delay), flight


def _latest(flights: list[Flight]) -> pa.Table:
    last = [(flight, events_of(flight)[-1]) for flight in flights]
    return pa.table(
        {
            "flight_id": [flight.flight_id for flight, _ in last],
            "carrier": [flight.carrier for flight, _ in last],
            "flight_number": [flight.number for flight, _ in last],
            "origin": [flight.origin for flight, _ in last],
            "dest": [flight.dest for flight, _ in last],
            "status": [event.type for _, event in last],
            "status_at": [event.occurred_at for _, event in last],
        }
    )
