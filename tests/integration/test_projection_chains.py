"""Projections over tables and over each other, on the product's own catalog, runner and tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pyspark.sql import SparkSession

from lake.layout import Lake
from replay.build import Builder
from replay.generations import generation_name
from tests.support.lake.small_lake import (
    Reading,
    SmallLake,
    some_departures,
    some_readings,
)

NAMES = ("per_flight", "by_number", "windy_now", "winds")


def fits(small: SmallLake) -> bool:
    """Say whether the outer tables are what the inner ones give, as they are now."""
    flights = small.rows("projection/per_flight")
    counted = Counter(row["n"] for row in flights)
    found = {row["n"]: row["flights"] for row in small.rows("projection/by_number")}
    return found == dict(counted)


def test_p5_p6_a_chain_kept_in_epochs_fits_and_equals_the_rebuild(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    small.deploy(*NAMES)
    departures = [replace(d, flight=d.flight % 6) for d in some_departures(5, 1, 45)]
    readings = some_readings(5, 1, 12)
    winds: dict[str, Reading] = {}
    for number in range(3):
        came = readings[number * 4 : number * 4 + 4]
        small.epoch(departures[number::3], came)
        for reading in came:
            held = winds.get(reading.origin)
            if held is None or (reading.hour, reading.sequence) > (held.hour, held.sequence):
                winds[reading.origin] = reading
        if number == 2:
            # Another process: what the first one held in memory is gone.
            small = SmallLake(spark, lake, tables=small.tables)
        for name in NAMES:
            small.run(name)
        assert fits(small)
        now = {row["origin"]: row["wind"] for row in small.rows("projection/winds")}
        assert now == {origin: reading.wind for origin, reading in winds.items()}
    numbers = {row["flight"]: row["n"] for row in small.rows("projection/per_flight")}
    assert {
        row["event_id"]: (row["n"], row["wind"]) for row in small.rows("projection/windy_now")
    } == {
        f"e{d.position}": (numbers[d.flight], winds[d.origin].wind)
        for d in departures
        if d.flight in numbers
    }
    builder = Builder(spark, small.site, lambda _: None)
    for name in ("by_number", "windy_now"):
        built = builder.build(name)
        rows = small.rows(f"projection/{name}")
        assert small.rows(generation_name(name, built.generation)) == rows, name


def test_a_table_s_rows_that_change_and_vanish_are_taken_back(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    small.deploy("winds")
    small.epoch(
        readings=[
            Reading(sequence=1, hour=1, wind=3.0),
            Reading(sequence=2, hour=1, wind=5.0, origin="JFK"),
        ]
    )
    small.run("winds")
    small.epoch(readings=[Reading(sequence=3, hour=2, wind=8.0)])
    small.run("winds")
    assert {r["origin"]: r["wind"] for r in small.rows("projection/winds")} == {
        "EWR": 8.0,
        "JFK": 5.0,
    }
    small.epoch(readings=[Reading(sequence=4, hour=1, wind=None, origin="JFK")])
    small.run("winds")
    assert {r["origin"]: r["wind"] for r in small.rows("projection/winds")} == {"EWR": 8.0}
