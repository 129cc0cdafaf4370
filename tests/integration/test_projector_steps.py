"""Projections of several steps on the product's own catalog, runner and tables, with late rows."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from lake.layout import Lake
from replay.build import Builder
from replay.generations import generation_name
from tests.support.lake.small_lake import (
    STEPS,
    Departure,
    Reading,
    SmallLake,
    some_departures,
    some_readings,
)

NAMES = ("visits", "windiest", "calmer")
OTHERS = tuple(name for name in STEPS if name not in NAMES)
"""Of kinds whose every arrival `test_sql_regions` tries in memory."""


def arrivals(seed: int) -> list[tuple[list[Departure], list[Reading]]]:
    """Facts in no order of time, in three epochs."""
    chance = random.Random(seed)
    departures = [replace(d, flight=d.flight % 6) for d in some_departures(seed, 1, 45)]
    chance.shuffle(departures)
    readings = some_readings(seed, 1, 12)
    return [(departures[i::3], readings[i * 4 : i * 4 + 4]) for i in range(3)]


@pytest.mark.parametrize(
    "names",
    [NAMES, pytest.param(OTHERS, marks=pytest.mark.matrix)],
    ids=["some kinds", "other kinds"],
)
def test_p6_steps_kept_in_epochs_equal_the_rebuild(
    names: tuple[str, ...], spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    small.deploy(*names)
    for number, (departures, readings) in enumerate(arrivals(3)):
        small.epoch(departures, readings)
        if number == 2:
            # Another process: what the first one held in memory is gone.
            small = SmallLake(spark, lake, tables=small.tables)
        for name in names:
            run = small.run(name)
            assert run.whole == (number == 0), name
    builder = Builder(spark, small.site, lambda _: None)
    for name in names:
        rows = small.rows(f"projection/{name}")
        assert rows, name
        built = builder.build(name)
        assert small.rows(generation_name(name, built.generation)) == rows, name


def test_a_late_row_corrects_its_region_and_nothing_else_is_written(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    small.deploy("visits")
    departures = [
        Departure(position=n, minute=minute, flight=flight)
        for n, (flight, minute) in enumerate(
            [(1, 0), (1, 8), (1, 40), (1, 48), (2, 0), (2, 30)], start=1
        )
    ]
    small.epoch(departures)
    small.run("visits")
    small.epoch([Departure(position=7, minute=200, flight=2)])
    assert small.run("visits").rows == 1, "state that is made anew writes what is new alone"
    # Between the two sessions of flight 1, less than the gap from the first alone.
    small.epoch([Departure(position=8, minute=15, flight=1)])
    assert small.run("visits").rows == 1
    # And those that make one of the two.
    small.epoch([Departure(position=9, minute=24, flight=1)])
    small.epoch([Departure(position=10, minute=33, flight=1)])
    run = small.run("visits")
    assert (run.rows, run.deleted) == (1, 1)
    visits = [(row["flight"], row["n"]) for row in small.rows("projection/visits")]
    assert sorted(visits) == [(1, 7), (2, 1), (2, 1), (2, 1)]


def test_rows_beyond_the_lateness_wait_for_a_replay(spark: SparkSession, lake: Lake) -> None:
    small = SmallLake(spark, lake)
    small.deploy("visits")
    small.epoch([Departure(position=1, minute=0, flight=1)])
    small.run("visits")
    for position in (2, 3):
        small.epoch([Departure(position=position, minute=position, flight=1, late=position == 3)])
        small.run("visits")
    assert [row["n"] for row in small.rows("projection/visits")] == [2]
    built = Builder(spark, small.site, lambda _: None).build("visits", include_late=True)
    assert [row["n"] for row in small.rows(generation_name("visits", built.generation))] == [3]
