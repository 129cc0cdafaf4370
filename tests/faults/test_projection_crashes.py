"""A crash around the commit of a projection or a history repeats nothing and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from lake.layout import Lake
from tests.support.lake.small_lake import Departure, Reading, SmallLake


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def departures(first: int) -> list[Departure]:
    return [
        Departure(position=p, minute=p * 7, flight=p % 3, delay=float(p))
        for p in range(first, first + 10)
    ]


@pytest.mark.parametrize(
    "failpoint", [failpoints.PROJECTION_BEFORE_COMMIT, failpoints.PROJECTION_AFTER_COMMIT]
)
@pytest.mark.parametrize(
    "name", [pytest.param("latest", marks=pytest.mark.matrix), "delays", "visits"]
)
def test_p1_a_crash_around_a_projections_commit_ends_in_the_same_rows(
    failpoint: str, name: str, spark: SparkSession, lake: Lake
) -> None:
    crashed, calm = SmallLake(spark, lake), SmallLake(spark, Lake(f"{lake.root}-calm"))
    for small in (crashed, calm):
        small.deploy(name)
        small.epoch(departures(1))
        small.run(name)
        small.epoch(departures(11))
    failpoints.arm(failpoint)
    with pytest.raises(failpoints.Crash):
        crashed.run(name)

    again = SmallLake(spark, lake)
    again.run(name)
    calm.run(name)
    assert again.rows(f"projection/{name}") == calm.rows(f"projection/{name}")
    assert {run.epoch for run in again.manifest.history_of(f"projection/{name}/g1")} == {1, 2}


@pytest.mark.parametrize(
    "failpoint",
    [
        failpoints.TYPED_AFTER_APPEND,
        failpoints.HISTORY_BEFORE_COMMIT,
        failpoints.HISTORY_AFTER_FOLD,
    ],
)
def test_p1_a_crash_around_a_historys_fold_ends_in_the_same_versions(
    failpoint: str, spark: SparkSession, lake: Lake
) -> None:
    crashed, calm = SmallLake(spark, lake), SmallLake(spark, Lake(f"{lake.root}-calm"))
    first = [Reading(sequence=1, hour=1, wind=5.0), Reading(sequence=2, hour=4, wind=7.5)]
    # One between the two, one in the place of the second.
    then = [Reading(sequence=3, hour=2, wind=6.0), Reading(sequence=4, hour=4, wind=8.0)]
    for small in (crashed, calm):
        small.deploy("windy")
        small.epoch(departures(1), first)
    failpoints.arm(failpoint)
    with pytest.raises(failpoints.Crash):
        crashed.epoch(departures(11), then)
    calm.epoch(departures(11), then)

    again = SmallLake(spark, lake)
    again.bring()
    assert again.rows("history/weather") == calm.rows("history/weather")
    assert len(again.rows("history/weather")) == 3
    assert again.manifest.projected()["typed"].epoch == 2
