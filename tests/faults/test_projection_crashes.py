"""A crash around a projection's commit repeats nothing and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from projections.log.layout import Lake
from tests.small_lake import Departure, SmallLake


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
@pytest.mark.parametrize("name", ["latest", "delays"])
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
