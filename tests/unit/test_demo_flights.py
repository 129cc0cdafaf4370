from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.flights import raw
from examples.flights.flights import Flight, events_of, flights_of
from examples.flights.posting_order import (
    FEWEST_FLIGHTS,
    HELD_BACK,
    LATENESS,
    FlightRiver,
    PostedEvent,
)
from kernel.errors import InvalidRequest
from schemas.records import NewEvent

SCHEMAS = Path(__file__).parents[2] / "examples/flights/schemas"


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return raw.read_flights()


@pytest.fixture(scope="module")
def river() -> FlightRiver:
    return FlightRiver(FEWEST_FLIGHTS)


@pytest.fixture(scope="module")
def posted(river: FlightRiver) -> list[PostedEvent]:
    return list(river.events())


def the_flight(year: pa.Table, carrier: str, number: int, month: int, day: int) -> Flight:
    named = pc.and_(pc.equal(year["carrier"], carrier), pc.equal(year["flight"], number))
    dated = pc.and_(pc.equal(year["month"], month), pc.equal(year["day"], day))
    (flight,) = flights_of(year.filter(pc.and_(named, dated)), raw.airport_zones())
    return flight


def types_of(events: Sequence[NewEvent]) -> list[str]:
    return [event.type for event in events]


def test_clock_times_become_instants_in_the_zone_of_each_airport(year: pa.Table) -> None:
    flight = the_flight(year, "UA", 1545, 1, 1)
    assert flight.flight_id == 1
    assert flight.scheduled_departure == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert flight.departed_at == datetime(2013, 1, 1, 10, 17, tzinfo=UTC)
    # 8:30 in Houston.
    assert flight.arrived_at == datetime(2013, 1, 1, 14, 30, tzinfo=UTC)


def test_a_departure_after_midnight_is_on_the_next_day(year: pa.Table) -> None:
    """Due at 9:00, left at 6:41 in the morning after."""
    flight = the_flight(year, "HA", 51, 1, 9)
    assert flight.departure_delay == 1301
    assert flight.departed_at == datetime(2013, 1, 10, 11, 41, tzinfo=UTC)


def test_an_hour_that_happens_twice_is_its_first_pass(year: pa.Table) -> None:
    """Landed in Los Angeles at 1:14 in the night when clocks went back, after 5:57 hours."""
    flight = the_flight(year, "VX", 413, 11, 2)
    assert flight.arrived_at == datetime(2013, 11, 3, 8, 14, tzinfo=UTC)


def test_an_airport_that_is_not_in_the_airports_file_has_its_zone(year: pa.Table) -> None:
    to_san_juan = year.filter(pc.equal(year["dest"], "SJU")).slice(0, 200)
    for flight in flights_of(to_san_juan, raw.airport_zones()):
        if flight.air_time and flight.arrived_at and flight.departed_at:
            on_ground = flight.arrived_at - flight.departed_at - timedelta(minutes=flight.air_time)
            assert timedelta(0) < on_ground < timedelta(hours=4)


def test_a_cancelled_flight_never_departs(year: pa.Table) -> None:
    table = year.filter(pc.is_null(year["dep_time"])).slice(0, 20)
    for flight in flights_of(table, raw.airport_zones()):
        assert types_of(events_of(flight)) == ["scheduled", "cancelled"]


def test_holes_in_the_data_stay_holes(year: pa.Table) -> None:
    departed, arrived = pc.is_valid(year["dep_time"]), pc.is_valid(year["arr_time"])
    vanished = year.filter(pc.and_(departed, pc.invert(arrived)))
    diverted = year.filter(pc.and_(arrived, pc.is_null(year["air_time"])))
    assert (vanished.num_rows, diverted.num_rows) == (458, 717)
    for flight in flights_of(vanished.slice(0, 20), raw.airport_zones()):
        assert types_of(events_of(flight)) == ["scheduled", "departed"]
    for flight in flights_of(diverted.slice(0, 20), raw.airport_zones()):
        arrival = events_of(flight)[-1]
        assert arrival.type == "arrived"
        assert arrival.data["arrival_delay_minutes"] is None
        assert arrival.data["air_time_minutes"] is None


def test_numbers_do_not_depend_on_how_many_flights_are_taken(year: pa.Table) -> None:
    assert raw.read_flights(50).equals(year.slice(0, 50))
    assert year.num_rows == pc.count_distinct(year["flight_id"]).as_py() == 336_776


def test_every_event_fits_its_declared_schema(river: FlightRiver) -> None:
    schemas = {
        path.name.split(".")[1]: fastavro.parse_schema(json.loads(path.read_text()))
        for path in SCHEMAS.glob("*.avsc")
    }
    cancelled = river.table.filter(pc.is_null(river.table["dep_time"]))
    rows = pa.concat_tables([river.table.slice(0, 100), cancelled])
    seen = set()
    for flight in flights_of(rows, raw.airport_zones()):
        for event in events_of(flight):
            seen.add(event.type)
            fields = {field["name"]: field["type"] for field in schemas[event.type]["fields"]}
            assert set(event.data) == set(fields)
            data = {name: _avro(value, fields[name]) for name, value in event.data.items()}
            fastavro.schemaless_writer(io.BytesIO(), schemas[event.type], data)
    assert seen == set(schemas)


def _avro(value: object, kind: Any) -> object:
    timed = isinstance(kind, dict) and kind.get("logicalType") == "timestamp-micros"
    return datetime.fromisoformat(str(value)) if timed else value


def test_ids_are_the_same_in_every_run(river: FlightRiver, posted: list[PostedEvent]) -> None:
    assert [each.event.id for each in FlightRiver(FEWEST_FLIGHTS).events()] == [
        each.event.id for each in posted
    ]
    assert len({each.event.id for each in [*posted, *river.late_events()]}) == sum(
        river.counts.values()
    )


def test_counts_are_what_is_sent(river: FlightRiver, posted: list[PostedEvent]) -> None:
    sent = [each.event.type for each in [*posted, *river.late_events()]]
    assert {kind: sent.count(kind) for kind in river.counts} == river.counts


def test_events_come_in_order_of_happening_but_for_a_late_share(posted: list[PostedEvent]) -> None:
    assert [each.posted_at for each in posted] == sorted(each.posted_at for each in posted)
    late = [each for each in posted if each.posted_at != each.event.occurred_at]
    assert 0.02 < len(late) / len(posted) < 0.04
    newest = datetime.min.replace(tzinfo=UTC)
    out_of_order, worst = 0, timedelta(0)
    for each in posted:
        at = each.event.occurred_at
        assert at is not None
        out_of_order += at < newest
        newest = max(newest, at)
        worst = max(worst, newest - at)
    assert out_of_order > 20
    assert worst <= timedelta(hours=2) < LATENESS


def test_the_held_back_few_are_later_than_any_lateness(
    river: FlightRiver, posted: list[PostedEvent]
) -> None:
    few = river.late_events()
    assert len(few) == HELD_BACK == len({each.stream for each in few})
    assert not {each.event.id for each in few} & {each.event.id for each in posted}
    newest = max(each.event.occurred_at for each in posted if each.event.occurred_at)
    for each, named in zip(few, river.held_back, strict=True):
        assert each.stream == f"flight-{named.flight_id}"
        assert each.event.type == named.kind
        assert each.event.occurred_at is not None
        assert newest - each.event.occurred_at > LATENESS


def test_another_seed_is_another_order(posted: list[PostedEvent]) -> None:
    other = list(FlightRiver(FEWEST_FLIGHTS, seed=7).events())
    assert [each.event.id for each in other] != [each.event.id for each in posted]


def test_too_few_flights_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="at least 1000 flights"):
        FlightRiver(10)
