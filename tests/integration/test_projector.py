"""Projections kept in epochs equal projections computed at once, whatever the order of arrival."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
from pyspark.sql import SparkSession

from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import ArrowWriter, Guard
from pipeline.executor import Executor, ExecutorChoice
from projections.run import engines, whole_tables
from projections.run.engines import SmallEngine
from projections.run.projector import Projector
from projections.sql.operators.shape import ORDER
from replay.build import Builder
from replay.generations import generation_name
from replay.subject import generation_target, subject_of
from tests.support.lake.small_lake import (
    LINES,
    ODD_PROJECTIONS,
    PROJECTIONS,
    Departure,
    Reading,
    SmallLake,
    some_departures,
    some_readings,
)

NAMES = tuple(PROJECTIONS)


def facts(seed: int) -> tuple[list[Departure], list[Reading]]:
    """Departures and readings in no order of event time."""
    chance = random.Random(seed)
    minutes = [chance.randrange(600) for _ in range(40)]
    departures = [
        Departure(
            position=position,
            minute=minute,
            flight=chance.randrange(8),
            carrier=chance.choice(["UA", "AA"]),
            delay=float(chance.randrange(90)),
        )
        for position, minute in enumerate(minutes, start=1)
    ]
    readings = [
        Reading(sequence=n, hour=chance.randrange(10), wind=float(chance.randrange(30)))
        for n in range(1, 15)
    ]
    return departures, readings


@pytest.mark.parametrize(
    ("seed", "many"),
    [
        (0, engines.MANY_ROWS),
        pytest.param(1, engines.MANY_ROWS, marks=pytest.mark.matrix),
        pytest.param(0, 0, marks=pytest.mark.matrix),
    ],
    ids=["few facts", "others", "facts found by their keys"],
)
def test_p6_projections_kept_in_epochs_equal_those_computed_at_once(
    seed: int, many: int, spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "MANY_ROWS", many)
    departures, readings = facts(seed)
    kept, whole = SmallLake(spark, lake), SmallLake(spark, Lake(f"{lake.root}-whole"))
    for small in (kept, whole):
        small.deploy(*NAMES)
    chance = random.Random(seed + 100)
    shuffled = chance.sample(departures, len(departures))
    while shuffled or readings:
        size, more = chance.randrange(10, 20), chance.randrange(4, 8)
        arrived, shuffled = shuffled[:size], shuffled[size:]
        read, readings = readings[:more], readings[more:]
        if arrived or read:
            kept.epoch(arrived, read)
            for name in NAMES:
                kept.run(name)
    whole.epoch(departures, facts(seed)[1])
    for name in NAMES:
        whole.run(name)
        assert kept.rows(f"projection/{name}") == whole.rows(f"projection/{name}"), name
        assert kept.rows(f"projection/{name}")


@pytest.mark.parametrize(
    ("names", "most_bytes"),
    [
        (("counts_loud",), None),
        (("parts_loud", "documents_loud"), None),
        pytest.param(("delays_loud", "windy_loud"), None, marks=pytest.mark.matrix),
        pytest.param(("delays", "windy"), 1, marks=pytest.mark.matrix),
    ],
    ids=[
        "an expression of Spark's",
        "results with parts",
        "more of them",
        "more than this process may hold",
    ],
)
def test_p6_what_spark_computes_of_touched_keys_equals_the_rebuild(
    names: tuple[str, ...],
    most_bytes: int | None,
    spark: SparkSession,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    departures, readings = facts(5)
    small = SmallLake(spark, lake)
    small.deploy(*names)
    if most_bytes is not None:
        monkeypatch.setattr(engines, "SmallEngine", partial(SmallEngine, most_bytes=most_bytes))
    # A run of few rows, late ones among them, after one of many.
    for arrived, read in ((departures[:33], readings[:8]), (departures[33:], readings[8:])):
        small.epoch(arrived, read)
        runs = [small.run(name) for name in names]
    assert not any(run.whole for run in runs)
    builder = Builder(spark, small.site, lambda _: None)
    for name in names:
        rows = small.rows(f"projection/{name}")
        assert rows, name
        built = builder.build(name)
        assert small.rows(generation_name(name, built.generation)) == rows, name


def test_p6_elements_of_facts_and_of_a_table_are_kept_as_they_are_built(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake, lines=True)
    small.deploy(*LINES)
    for n in (1, 30, 60):
        small.epoch(some_departures(n, n, 20), some_readings(n, n, 7))
        runs = [small.run(name) for name in LINES]
    assert not any(run.whole for run in runs)
    builder = Builder(spark, small.site, lambda _: None)
    for name in LINES:
        rows = small.rows(f"projection/{name}")
        assert rows, name
        built = builder.build(name)
        assert small.rows(generation_name(name, built.generation)) == rows, name


def test_what_few_files_unfold_to_beyond_the_bound_is_written_by_the_executors(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    departures, readings = facts(5)
    small = SmallLake(spark, lake)
    small.deploy("windy")
    small.epoch(departures, readings)
    run = small.run("windy")
    wanted = small.rows("projection/windy")
    assert run.whole
    monkeypatch.setattr(whole_tables, "RESULT", replace(whole_tables.RESULT, most_bytes=1))
    small.projector = Projector(
        spark.newSession(),
        lake,
        small.tables,
        small.manifest,
        choice=ExecutorChoice(asked=Executor.SPARK),
    )
    subject = subject_of(small.site, "windy")
    target = generation_target(small.site, subject, 9, Epoch(1), include_late=False)
    again = small.projector.run(subject.plan, target, subject.catalog, Epoch(1))
    assert (again.whole, again.rows) == (True, len(wanted))
    assert small.rows(target.name) == wanted


def test_a_table_that_an_earlier_version_kept_goes_on(spark: SparkSession, lake: Lake) -> None:
    small = SmallLake(spark, lake)
    small.deploy("windy")
    small.epoch(
        [Departure(position=1, minute=90, flight=1)], [Reading(sequence=1, hour=1, wind=10.0)]
    )
    small.run("windy")
    path = lake.path("projection/windy")
    rows = small.tables.read(path)
    assert rows is not None
    assert {*ORDER} <= {*rows.schema.names}
    # It kept the order of a single stream alone.
    bare = rows.drop_columns([*ORDER])
    guard = Guard("projection/windy/g1", Epoch(1), again=True)
    ArrowWriter(small.tables).overwrite(path, bare, guard)
    small.epoch(
        [Departure(position=2, minute=150, flight=1)], [Reading(sequence=2, hour=2, wind=20.0)]
    )
    assert small.run("windy").whole
    assert [row["wind"] for row in small.rows("projection/windy")] == [10.0, 20.0]
    small.epoch([Departure(position=3, minute=30, flight=1)])
    run = small.run("windy")
    assert (run.whole, run.rows) == (False, 1)


@pytest.mark.matrix
def test_p6_columns_of_any_name_give_the_same_rows_kept_and_rebuilt(
    spark: SparkSession, lake: Lake
) -> None:
    departures, readings = facts(7)
    small = SmallLake(spark, lake, odd=True)
    small.deploy(*ODD_PROJECTIONS, "delays", "windy")
    for arrived, read in ((departures[:25], readings[:7]), (departures[25:], readings[7:])):
        small.epoch(arrived, read)
        for name in ODD_PROJECTIONS:
            small.run(name)
    builder = Builder(spark, small.site, lambda _: None)
    for name in ODD_PROJECTIONS:
        plain = name.removesuffix("_odd")
        small.run(plain)
        rows = small.rows(f"projection/{plain}")
        assert rows
        assert small.rows(f"projection/{name}") == rows
        built = builder.build(name)
        assert small.rows(generation_name(name, built.generation)) == rows


def test_p7_a_late_reading_repairs_what_it_touches_and_nothing_sees_the_future(
    spark: SparkSession, lake: Lake
) -> None:
    small = SmallLake(spark, lake)
    small.deploy("windy")
    before, within, after = (
        Departure(position=1, minute=30, flight=1),
        Departure(position=2, minute=150, flight=2),
        Departure(position=3, minute=270, flight=3),
    )
    small.epoch(
        [before, within, after],
        [Reading(sequence=1, hour=1, wind=10.0), Reading(sequence=2, hour=4, wind=40.0)],
    )
    small.run("windy")

    def winds() -> dict[object, object]:
        return {row["flight"]: row["wind"] for row in small.rows("projection/windy")}

    assert winds() == {1: None, 2: 10.0, 3: 40.0}
    small.epoch([], [Reading(sequence=3, hour=2, wind=20.0)])
    run = small.run("windy")
    assert winds() == {1: None, 2: 20.0, 3: 40.0}
    assert run.rows < 3, "only what the reading touches is computed again"
