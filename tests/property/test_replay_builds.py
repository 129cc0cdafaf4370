"""Builds over histories at random, from the beginning or from a base, that die and are swapped."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from kernel import failpoints
from kernel.positions import Epoch
from lake.layout import Lake
from projections.serve.savepoints import create
from replay.book import Replay, State
from replay.build import Builder
from replay.generations import generation_name
from replay.starts import BEGINNING, Start
from replay.subject import typed_head
from replay.verify import verify
from tests.support.lake.small_lake import SmallLake, some_departures, some_readings
from tests.support.lake.swaps import rollback, swap


@dataclass(frozen=True, kw_only=True)
class Round:
    """An epoch with facts in no order, some late, some again; the projection runs or waits."""

    seed: int
    departures: int
    readings: int
    run: bool


@dataclass(frozen=True, kw_only=True)
class Case:
    """A history, from where a build begins, where it dies, and what becomes of it."""

    name: str
    rounds: tuple[Round, ...]
    start: str
    kept: int
    dies: tuple[str, int] | None
    swap_dies: str | None
    back: bool


ROUNDS = st.builds(
    Round,
    seed=st.integers(0, 10**6),
    departures=st.integers(1, 40),
    readings=st.integers(0, 8),
    run=st.booleans(),
)
BUILD_PLACES = (
    failpoints.REPLAY_BEFORE_SLICE,
    failpoints.REPLAY_AFTER_SLICE,
    failpoints.REPLAY_AFTER_BUILD,
    failpoints.PROJECTION_BEFORE_COMMIT,
    failpoints.PROJECTION_AFTER_COMMIT,
)
CHOSEN = {
    "latest": "flight % 3 = 0",
    "delays": "carrier = 'AA'",
    "windy": "event_id LIKE 'e1%'",
    "visits": "flight < 5",
    "followed": "event_id LIKE 'e1%'",
}
SWAP_PLACES = (failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP)
CASES = st.builds(
    Case,
    name=st.sampled_from(["latest", "delays", "windy", "visits", "recent", "followed"]),
    rounds=st.lists(ROUNDS, min_size=2, max_size=4).map(tuple),
    start=st.sampled_from(["beginning", "savepoint", "time", "epoch", "keys"]),
    kept=st.integers(0, 2),
    dies=st.none() | st.tuples(st.sampled_from(BUILD_PLACES), st.integers(1, 3)),
    swap_dies=st.none() | st.sampled_from(SWAP_PLACES),
    back=st.booleans(),
)


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def builder(small: SmallLake) -> Builder:
    return Builder(
        small.spark, small.site, lambda _: None, record_every_s=0.0, abandoned_after=timedelta(0)
    )


def lived(small: SmallLake, case: Case) -> Start:
    """Live through a history; return from where to build."""
    small.deploy(case.name)
    start, kept = BEGINNING, min(case.kept, len(case.rounds) - 2)
    for n, each in enumerate(case.rounds):
        small.epoch(
            some_departures(each.seed, n * 100, each.departures),
            some_readings(each.seed, n * 100, each.readings),
        )
        if each.run or n in (kept, len(case.rounds) - 1):
            small.run(case.name)
        if n == kept and case.start == "savepoint":
            create(small.lake, "before")
            start = Start(savepoint="before")
        elif n == kept and case.start == "time":
            start = Start(at=small.manifest.at(Epoch(n + 1)).at)
        elif n == kept and case.start == "epoch":
            start = Start(epoch=Epoch(n + 1))
    if case.start == "keys" and case.name in CHOSEN:
        start = Start(where=CHOSEN[case.name])
    return start


def built(small: SmallLake, name: str, start: Start, dies: tuple[str, int] | None) -> Replay:
    """Build; after a death by the same command."""
    slices = None if not start.is_beginning else 3
    if dies is not None:
        failpoints.arm(dies[0], hit=dies[1])
        try:
            return builder(small).build(name, start=start, slices=slices)
        except failpoints.Crash:
            pass
        finally:
            failpoints.disarm()
    return builder(small).build(name, start=start, slices=slices)


def swapped(small: SmallLake, name: str, dies: str | None) -> None:
    made = builder(small)
    if dies is not None:
        failpoints.arm(dies)
        with pytest.raises(failpoints.Crash):
            swap(small.site, name, lambda replay: made.catch_up(replay, typed_head(small.site)))
        failpoints.disarm()
    swap(small.site, name, lambda replay: made.catch_up(replay, typed_head(small.site)))


@pytest.mark.matrix
@given(CASES)
@settings(max_examples=10)
def test_p6_a_build_is_what_was_kept_whatever_came_and_died(
    spark: SparkSession, case: Case
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        small = SmallLake(spark, Lake.at(Path(folder) / "lake"))
        start, table = lived(small, case), f"projection/{case.name}"
        live = small.rows(table)
        done = built(small, case.name, start, case.dies)
        assert done.state is State.BUILT
        assert small.rows(generation_name(case.name, done.generation)) == live
        assert small.rows(table) == live, "readers see nothing of it"
        assert verify(small.site, case.name).equal
        swapped(small, case.name, case.swap_dies)
        assert small.rows(table) == live
        if case.back:
            rollback(small.site, case.name)
            assert small.rows(table) == live
        small.epoch(some_departures(7, 900, 20), some_readings(7, 900, 4))
        small.run(case.name)
        builder(small).build(case.name)
        assert verify(small.site, case.name).equal
