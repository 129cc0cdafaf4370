from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from examples.flights.amendments import final_weather, script
from examples.flights.comparison import compare
from examples.flights.oracle import KEYS, Oracle
from examples.flights.posting_order import HeldBack

FLIGHTS = 1_000
TABLE = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"], "share": [0.1, 0.2, None]})


def test_equal_whatever_the_order_and_the_width_of_integers() -> None:
    actual = TABLE.take([2, 0, 1]).set_column(0, "id", pa.array([3, 1, 2], pa.int32()))
    found = compare("t", TABLE, actual, key=["id"])
    assert found.equal
    assert found.describe() == "3 rows, all equal"


def test_columns_that_only_the_actual_table_has_do_not_count() -> None:
    assert compare("t", TABLE, TABLE.append_column("more", [["x"] * 3]), key=["id"]).equal


def test_each_kind_of_disagreement_is_counted() -> None:
    actual = pa.table({"id": [1, 2, 4, 4], "name": ["a", "b", "d", "d"], "share": [0.1] * 4})
    found = compare("t", TABLE, actual, key=["id"])
    assert not found.equal
    assert (found.missing, found.extra, found.differing, found.repeated_keys) == (1, 2, 1, 1)
    assert found.samples
    assert "1 missing, 2 too many, 1 differ, 1 keys repeated" in found.describe()


def test_a_repeated_row_alone_is_a_difference() -> None:
    assert not compare("t", TABLE, pa.concat_tables([TABLE, TABLE.slice(0, 1)]), key=["id"]).equal


def test_a_missing_column_is_a_difference_that_names_it() -> None:
    found = compare("t", TABLE, TABLE.drop_columns(["share"]), key=["id"])
    assert not found.equal
    assert found.samples == ("columns missing: share",)


@pytest.mark.parametrize(("tolerance", "equal"), [({}, False), ({"share": 1e-9}, True)])
def test_numbers_are_exact_unless_a_tolerance_is_given(
    tolerance: dict[str, float], equal: bool
) -> None:
    near = TABLE.set_column(2, "share", [[0.1 + 1e-15, 0.2, None]])
    assert compare("t", TABLE, near, key=["id"], tolerance=tolerance).equal is equal


def test_a_null_is_never_within_a_tolerance() -> None:
    holed = TABLE.set_column(2, "share", [[0.1, None, None]])
    assert compare("t", TABLE, holed, key=["id"], tolerance={"share": 1.0}).differing == 1


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle(flights=FLIGHTS, readings=final_weather(script()))


def test_oracle_has_one_row_per_key(oracle: Oracle) -> None:
    tables = oracle.tables()
    assert tables["flight_status"].num_rows == FLIGHTS
    for name, key in KEYS.items():
        keys = tables[name].select(list(key))
        assert keys.group_by(list(key)).aggregate([]).num_rows == keys.num_rows > 0


def test_a_departure_counts_in_every_window_that_it_falls_into(oracle: Oracle) -> None:
    tables = oracle.tables()
    counted = sum(tables["carrier_delays"]["departures"].to_pylist())
    assert counted == 3 * tables["departure_weather"].num_rows


def test_no_departure_sees_weather_of_its_future(oracle: Oracle) -> None:
    rows = oracle.table("departure_weather").to_pylist()
    assert all(row["observed_at"] <= row["departed_at"] for row in rows)
    assert all(row["departed_at"] - row["observed_at"] < timedelta(hours=2) for row in rows)


def test_amended_weather_is_what_departures_see(oracle: Oracle) -> None:
    amended = {(r.origin, r.time_hour): r.temp for r in final_weather(script())}
    plain = {
        row["flight_id"]: row
        for row in Oracle(flights=FLIGHTS).table("departure_weather").to_pylist()
    }
    touched = 0
    for row in oracle.table("departure_weather").to_pylist():
        hour = (row["origin"], row["observed_at"].astimezone(UTC))
        if hour in amended:
            touched += 1
            assert row["temp"] == amended[hour]
        else:
            assert row == plain[row["flight_id"]]
    # The readings of 17 o'clock were missing before.
    found_late = datetime(2013, 1, 1, 17, tzinfo=UTC)
    assert touched > 50
    assert any(hour == ("JFK", found_late) for hour in amended)
    assert not any(
        row["observed_at"] == found_late and row["origin"] == "JFK" for row in plain.values()
    )


def test_what_is_held_back_is_missing_until_it_counts(oracle: Oracle) -> None:
    few = (HeldBack(flight_id=5, kind="departed"), HeldBack(flight_id=7, kind="arrived"))
    full, part = oracle.tables(), oracle.tables(unsent=few)
    found = {name: compare(name, full[name], part[name], key=KEYS[name]) for name in KEYS}
    assert (found["departure_weather"].missing, found["departure_weather"].differing) == (1, 0)
    assert found["flight_status"].differing == 1
    assert 1 <= found["carrier_delays"].differing + found["carrier_delays"].missing <= 3
    again = oracle.tables()
    assert all(compare(name, full[name], again[name], key=KEYS[name]).equal for name in KEYS)


def test_only_what_depends_on_several_facts_waits_for_a_replay(oracle: Oracle) -> None:
    few = (HeldBack(flight_id=5, kind="departed"), HeldBack(flight_id=7, kind="arrived"))
    full, waiting = oracle.tables(), oracle.tables_awaiting_replay(few)
    unequal = {n for n in KEYS if not compare(n, full[n], waiting[n], key=KEYS[n]).equal}
    assert unequal == {"carrier_delays"}
