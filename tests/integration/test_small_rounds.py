"""A round of few rows starts no job of Spark's: typed tables, histories, projections."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from lake.layout import Lake
from tests.support.lake.small_lake import (
    CHAIN,
    FINAL,
    ON_SPARK,
    PROJECTIONS,
    STEPS,
    SmallLake,
    more,
)
from tests.support.services.tier import examples

KEPT_SMALL = [*PROJECTIONS, *STEPS, *FINAL, *CHAIN]


@contextmanager
def jobs_of(spark: SparkSession) -> Iterator[list[int]]:
    """Collect the jobs that this thread starts."""
    context, group = spark.sparkContext, uuid.uuid4().hex
    found: list[int] = []
    context.setJobGroup(group, group)
    try:
        yield found
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        found += context.statusTracker().getJobIdsForGroup(group)


def test_a_small_round_starts_no_job(spark: SparkSession, lake: Lake) -> None:
    small = SmallLake(spark, lake)
    small.deploy(*KEPT_SMALL)
    for number in range(1, 1 + examples(2, matrix=3)):
        with jobs_of(spark) as derived:
            more(small, number)
        assert derived == [], f"typed tables and histories, round {number}"
        for name in KEPT_SMALL:
            with jobs_of(spark) as ran:
                small.run(name)
            assert ran == [], f"{name}, round {number}"


@pytest.mark.parametrize(
    "name",
    [next(iter(ON_SPARK)), *(pytest.param(n, marks=pytest.mark.matrix) for n in [*ON_SPARK][1:])],
)
def test_what_spark_alone_computes_is_seen(name: str, spark: SparkSession, lake: Lake) -> None:
    """Jobs are counted at all: of a fold beyond this process, and of a query beyond DuckDB."""
    small = SmallLake(spark, lake, driver_bytes=1)
    small.deploy(name, "windy")
    with jobs_of(spark) as folded:
        more(small, 1)
    assert folded
    with jobs_of(spark) as ran:
        small.run(name)
    assert ran
