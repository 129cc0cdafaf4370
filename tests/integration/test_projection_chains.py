"""Projections over tables and over each other, on the product's own catalog, runner and tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from apps.deployment import set_status
from apps.pipeline.projecting import Projecting
from kernel.errors import Conflict
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.catalog import DROPPED, LIVE, PAUSED, PROJECTION, Entry
from replay.build import Builder
from replay.generations import generation_name, live_app
from replay.swap import rollback, swap
from schemas.registry import MemoryRegistry
from tests.support.lake.small_lake import (
    CHAIN,
    Departure,
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


def test_the_swap_and_rollback_of_one_are_followed_by_those_that_read_it(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    small.deploy("per_flight", "by_number")
    departures = [Departure(position=n, minute=n, flight=n % 3, delay=n) for n in range(1, 8)]
    epoch = small.epoch(departures)
    small.run("per_flight")
    small.run("by_number")
    before = small.rows("projection/by_number")
    builder = Builder(spark, small.site, lambda _: None)
    fewer = CHAIN["per_flight"].replace("GROUP BY", "WHERE delay > 3 GROUP BY")
    builder.build("per_flight", text=fewer)
    swap(small.site, "per_flight", lambda r: builder.catch_up(r, builder.head()))
    assert not fits(small)
    small.run("by_number")
    assert fits(small)
    assert small.rows("projection/by_number") != before
    runs = small.manifest.history_of(live_app("by_number", 1))
    stable = Tables().open(lake.path("projection/by_number"))
    assert stable is not None
    assert (runs[-1].epoch, runs[-1].tables["projection/by_number"].version) == (
        epoch,
        stable.version(),
    ), "who reads by epoch finds the rows that fit"
    version = stable.version()
    small.run("by_number")
    assert Tables().open(lake.path("projection/by_number")).version() == version
    rollback(small.site, "per_flight")
    small.run("per_flight")
    small.run("by_number")
    assert small.rows("projection/by_number") == before
    lost = CHAIN["per_flight"].replace("COUNT(*) AS n", "COUNT(*) AS m")
    with pytest.raises(Conflict, match="by_number reads per_flight, and not with this query"):
        builder.build("per_flight", text=lost)


def test_p5_the_pipeline_runs_a_chain_together_and_drops_none_that_is_read(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    # The outer one first, and in a hurry; the inner one not.
    slow = CHAIN["per_flight"].replace("key = 'flight'", "key = 'flight', freshness = '1 hour'")
    text = {"by_number": CHAIN["by_number"], "per_flight": slow}
    small.deployed.put(
        [Entry(kind=PROJECTION, name=n, generation=1, status=LIVE, text=t) for n, t in text.items()]
    )
    projecting = Projecting(spark, lake, MemoryRegistry(), on_run=lambda *_: None)
    for epoch in range(1, 4):
        small.epoch([Departure(position=epoch * 10 + n, minute=n, flight=n) for n in range(epoch)])
        projecting.states.get("by_number") and setattr(
            projecting.states["by_number"], "due_at", 0.0
        )
        projecting.step()
        assert fits(small), "the inner one is run for the outer one, whatever its own freshness"
        assert {s.epoch for s in projecting.states.values()} == {epoch}
    set_status(small.site, "per_flight", PAUSED)
    small.epoch([Departure(position=99, minute=1, flight=7)])
    projecting.step()
    assert "penstock projection resume per_flight" in str(projecting.states["by_number"].error)
    assert fits(small)
    set_status(small.site, "per_flight", LIVE)
    projecting.step()
    assert projecting.states["by_number"].error is None
    assert len(small.rows("projection/per_flight")) == 4
    assert fits(small)
    with pytest.raises(Conflict, match="by_number read the projection per_flight"):
        set_status(small.site, "per_flight", DROPPED)
    set_status(small.site, "by_number", DROPPED)
    set_status(small.site, "per_flight", DROPPED)
