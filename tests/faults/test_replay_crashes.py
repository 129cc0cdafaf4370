"""A crash of a replay leaves the live table whole, and the same command again finishes it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from lake.layout import Lake
from replay.build import Builder
from replay.cancel import cancel
from replay.subject import typed_head
from replay.verify import verify
from tests.support.lake.small_lake import SmallLake, some_departures
from tests.support.lake.swaps import rollback, swap

NAME = "delays"
TABLE = f"projection/{NAME}"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def small(spark: SparkSession, any_lake: Lake) -> SmallLake:
    made = SmallLake(spark, any_lake)
    made.deploy(NAME)
    for first in (1, 21):
        made.epoch(some_departures(first, first, 20))
        made.run(NAME)
    return made


def builder_of(small: SmallLake) -> Builder:
    return Builder(small.spark, small.site, lambda _: None)


@pytest.mark.matrix
def test_p6_a_rebuilt_generation_equals_the_live_one_is_swapped_and_rolled_back(
    small: SmallLake,
) -> None:
    before = small.rows(TABLE)
    builder = builder_of(small)
    built = builder.build(NAME)
    assert verify(small.site, NAME).equal
    small.epoch(some_departures(41, 41, 10))
    swapped = swap(small.site, NAME, lambda r: builder.catch_up(r, typed_head(small.site)))
    assert swapped.generation == built.generation
    after = SmallLake(small.spark, small.lake)
    after.run(NAME)
    assert after.rows(TABLE) != before
    rollback(small.site, NAME)
    again = SmallLake(small.spark, small.lake)
    again.run(NAME)
    assert again.rows(TABLE) == after.rows(TABLE)


def test_p10_a_crash_after_a_build_leaves_the_live_table_untouched(small: SmallLake) -> None:
    before = small.rows(TABLE)
    failpoints.arm(failpoints.REPLAY_AFTER_BUILD)
    with pytest.raises(failpoints.Crash):
        builder_of(small).build(NAME)
    assert small.rows(TABLE) == before
    small.epoch(some_departures(41, 41, 10))
    assert small.run(NAME).rows
    cancel(small.site, NAME)
    builder_of(small).build(NAME)
    assert verify(small.site, NAME).equal


@pytest.mark.parametrize("step", ["swap", pytest.param("rollback", marks=pytest.mark.matrix)])
def test_p10_a_crash_in_a_swap_or_rollback_is_finished_by_the_same_command(
    step: str, small: SmallLake
) -> None:
    builder = builder_of(small)
    built = builder.build(NAME)
    expected = small.rows(TABLE)

    def run(what: str) -> int:
        if what == "swap":
            return swap(
                small.site, NAME, lambda r: builder.catch_up(r, typed_head(small.site))
            ).generation
        return rollback(small.site, NAME).generation

    if step == "rollback":
        run("swap")
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        run(step)
    assert small.rows(TABLE) == expected, "readers see one generation or the other, whole"
    assert run(step) == (built.generation if step == "swap" else built.base)
    after = SmallLake(small.spark, small.lake)
    after.epoch(some_departures(41, 41, 10))
    after.run(NAME)
    assert after.rows(TABLE) != expected


@pytest.mark.matrix
def test_p6_a_generation_that_took_late_rows_keeps_them_when_it_goes_on(
    small: SmallLake,
) -> None:
    builder = builder_of(small)
    builder.build(NAME, include_late=True)
    swap(small.site, NAME, lambda r: builder.catch_up(r, typed_head(small.site)))
    with_late = sum(int(str(row["flights"])) for row in small.rows(TABLE))
    after = SmallLake(small.spark, small.lake)
    # New rows make every window be computed again.
    after.epoch([d for d in some_departures(1, 101, 40) if not d.late])
    after.run(NAME)
    late = sum(d.late for first in (1, 21) for d in some_departures(first, first, 20))
    added = sum(not d.late for d in some_departures(1, 101, 40))
    assert late
    assert with_late == 40
    assert sum(int(str(row["flights"])) for row in after.rows(TABLE)) == 40 + added
