"""Builds in slices: paused, stopped, gone on with, and equal to what the live runner kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from kernel import failpoints
from kernel.errors import Conflict, ContractViolation, NotFound
from kernel.positions import Epoch
from lake.collecting import Limit
from lake.tables import Tables
from pipeline.commit.retention import forget_epochs
from pipeline.executor import Executor, ExecutorChoice
from replay.book import Replay, ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel
from replay.generations import generation_name
from replay.join_sides import JoinSides
from replay.progress import BuildProgress
from replay.slices import build_of
from replay.subject import typed_head
from replay.verify import verify
from tests.support.lake.small_lake import (
    LATEST,
    PROJECTIONS,
    STEPS,
    SmallLake,
    fill,
    more,
)
from tests.support.lake.swaps import swap

DEFAULT = ("delays", "visits")
"""One of one step, one of several: the others are repetitions."""


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def builder(
    small: SmallLake,
    report: Callable[[BuildProgress], None] = lambda _: None,
    *,
    abandoned_after: float = 0,
    executor: Executor = Executor.AUTO,
    **options: int,
) -> Builder:
    return Builder(
        small.spark,
        small.site,
        report,
        record_every_s=0.0,
        abandoned_after=timedelta(seconds=abandoned_after),
        choice=ExecutorChoice(asked=executor),
        **options,
    )


def newest(small: SmallLake, name: str) -> Replay:
    return ReplayBook(small.lake, Tables()).of(name)[-1]


def slices_done(small: SmallLake, name: str) -> int:
    kept = build_of(newest(small, name).detail)
    assert kept is not None
    return kept.done


@pytest.mark.parametrize(
    "name",
    [
        name if name in DEFAULT else pytest.param(name, marks=pytest.mark.matrix)
        for name in (*PROJECTIONS, *STEPS)
    ],
)
def test_p6_a_build_in_slices_equals_what_was_kept_and_goes_on(small: SmallLake, name: str) -> None:
    fill(small, name)
    seen: list[BuildProgress] = []
    built = builder(small, seen.append).build(name, slices=3)
    assert (built.state, built.epoch) == (State.BUILT, 2)
    assert seen[-1].slice == seen[-1].slices == built.detail["slices"]
    assert verify(small.site, name).equal
    more(small, 3)
    small.run(name)
    made = builder(small)
    swap(small.site, name, lambda replay: made.catch_up(replay, typed_head(small.site)))
    after = small.rows(f"projection/{name}")
    builder(small).build(name, slices=2)
    assert verify(small.site, name).equal
    assert small.rows(f"projection/{name}") == after


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small builds too, and find all of their slices quick."""
    monkeypatch.setattr("replay.slices.LEAST_ROWS", 10)
    monkeypatch.setattr("replay.slices.ROWS_HERE", 10)
    monkeypatch.setattr("replay.strides.QUICK_S", 600.0)


@pytest.mark.usefixtures("quick")
def test_quick_slices_are_committed_several_at_once_unless_they_were_asked_for(
    small: SmallLake,
) -> None:
    fill(small, "latest")
    seen: list[BuildProgress] = []
    for slices, commits in ((None, [1, 3, 7, 12]), (12, [*range(1, 13)])):
        seen.clear()
        built = builder(small, seen.append).build("latest", slices=slices)
        assert built.detail["slices"] == 12
        assert sorted({each.slice for each in seen} - {0}) == commits
        assert verify(small.site, "latest").equal
        cancel(small.site, "latest")


@pytest.mark.usefixtures("quick")
def test_a_row_that_cannot_be_computed_is_found_among_several_slices(small: SmallLake) -> None:
    fill(small, "latest")
    flight = small.rows("projection/latest")[-1]["flight"]
    failing = LATEST.replace("delay,", f"delay, delay / (flight - {flight}) AS share,")
    with pytest.raises(ContractViolation, match=f"the row of flight = {flight}"):
        builder(small).build("latest", text=failing)
    whole = LATEST.replace("delay,", f"delay, try_divide(delay, flight - {flight}) AS share,")
    assert builder(small).resume("latest", text=whole).state is State.BUILT


def test_p6_sides_of_joins_are_computed_once_for_all_slices(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, "worst")
    kept: list[DataFrame] = []

    def noted(self: JoinSides, frame: DataFrame) -> DataFrame:
        kept.append(real(self, frame))
        return kept[-1]

    real = JoinSides.keep
    monkeypatch.setattr(JoinSides, "keep", noted)
    seen: set[bool] = set()
    made = builder(small, lambda _: seen.update(each.storageLevel.useDisk for each in kept))
    made.build("worst", slices=3)
    assert verify(small.site, "worst").equal
    assert small.rows("projection/worst")
    assert (len(kept), seen) == (1, {True})
    assert not kept[0].storageLevel.useDisk, "it is given back"


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["delays", "windy"])
def test_slices_that_executors_write_are_the_same(small: SmallLake, name: str) -> None:
    fill(small, name)
    builder(small, executor=Executor.SPARK, bounded_bytes=0).build(name, slices=3)
    assert verify(small.site, name).equal


def test_a_slice_whose_rows_are_too_many_for_the_driver_is_written_by_executors(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are small, so that nothing tells before. Another slice came as usual."""
    fill(small, "latest")
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        builder(small, executor=Executor.SPARK).build("latest", slices=2)
    few = Limit(what="rows of a test", most_bytes=1)
    monkeypatch.setattr("replay.slice_writer.RESULT", few)
    assert builder(small, executor=Executor.SPARK).build("latest").state is State.BUILT
    assert verify(small.site, "latest").equal


@pytest.mark.parametrize(
    "failpoint",
    [failpoints.REPLAY_BEFORE_SLICE, failpoints.REPLAY_AFTER_SLICE, failpoints.REPLAY_AFTER_BUILD],
)
def test_p6_a_build_that_died_goes_on_by_the_same_command(small: SmallLake, failpoint: str) -> None:
    fill(small, "latest")
    last = failpoint == failpoints.REPLAY_AFTER_BUILD
    failpoints.arm(failpoint, hit=1 if last else 3)
    with pytest.raises(failpoints.Crash):
        builder(small).build("latest", slices=4)
    assert newest(small, "latest").state is State.BUILDING
    with pytest.raises(Conflict, match="is being built"):
        builder(small, abandoned_after=60).build("latest")
    seen: list[BuildProgress] = []
    built = builder(small, seen.append).build("latest")
    assert (built.generation, built.state) == (2, State.BUILT)
    # Finished slices are not computed again: the count goes on from them.
    went_on = {failpoints.REPLAY_BEFORE_SLICE: {2, 3, 4}, failpoints.REPLAY_AFTER_SLICE: {3, 4}}
    assert {progress.slice for progress in seen} <= went_on.get(failpoint, {4})
    assert verify(small.site, "latest").equal
    live = small.rows("projection/latest")
    assert small.rows(generation_name("latest", 2)) == live


def test_a_build_pauses_after_its_slice_and_is_resumed(small: SmallLake) -> None:
    fill(small, "latest")

    def pause_it(progress: BuildProgress) -> None:
        if progress.slice == 1 and newest(small, "latest").state is State.BUILDING:
            ReplayBook(small.lake, Tables()).pause("latest")

    paused = builder(small, pause_it).build("latest", slices=4)
    assert paused.state is State.PAUSED
    assert slices_done(small, "latest") in (1, 2)
    with pytest.raises(Conflict, match="is unfinished and paused"):
        builder(small).build("latest")
    more(small, 3)
    built = builder(small).resume("latest")
    assert (built.state, built.epoch, built.generation) == (State.BUILT, 2, 2)
    assert verify(small.site, "latest").equal
    with pytest.raises(NotFound):
        builder(small).resume("latest")


def test_p11_a_build_goes_on_after_the_manifest_has_forgotten_its_epoch(small: SmallLake) -> None:
    fill(small, "latest")
    live = small.rows("projection/latest")
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        builder(small).build("latest", slices=2)
    more(small, 3)
    small.run("latest")
    week = timedelta(days=7)
    forget_epochs(small.lake, retention=week, now=datetime.now(UTC) + 2 * week)
    small.manifest.memory.clear()  # A process that starts remembers no epoch.
    with pytest.raises(NotFound, match="epoch 2 is not known any more"):
        small.manifest.at(Epoch(2))
    seen: list[BuildProgress] = []
    made = builder(small, seen.append)
    assert made.build("latest").epoch == 2
    assert {progress.behind_s for progress in seen} == {None}
    assert small.rows(generation_name("latest", 2)) == live
    live = small.rows("projection/latest")
    swap(small.site, "latest", lambda replay: made.catch_up(replay, typed_head(small.site)))
    assert small.rows("projection/latest") == live


@pytest.mark.matrix
def test_a_build_that_was_resumed_elsewhere_leaves_the_files_to_the_other(
    small: SmallLake,
) -> None:
    """It was paused and resumed within one slice: it hears of both at once."""
    fill(small, "latest")
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE, "hold")

    def resumed(_: BuildProgress) -> None:
        if newest(small, "latest").detail["claim"] != "another":
            paused = ReplayBook(small.lake, Tables()).pause("latest")
            now = paused.now(State.BUILDING, detail={**paused.detail, "claim": "another"})
            ReplayBook(small.lake, Tables()).record(now)
            failpoints.disarm()

    with pytest.raises(Conflict, match="another process went on"):
        builder(small, resumed).build("latest", slices=4)
    assert newest(small, "latest").state is State.BUILDING
    folder = small.lake.path(generation_name("latest", 2))
    assert Tables().open(folder) is not None, "the slice that was there is there"
    assert builder(small).resume("latest").state is State.BUILT
    assert verify(small.site, "latest").equal


@pytest.mark.matrix
def test_a_row_that_cannot_be_computed_is_named_and_nothing_is_lost(small: SmallLake) -> None:
    fill(small, "latest")
    (wrong, *_) = small.rows("projection/latest")
    flight = wrong["flight"]
    text = LATEST.replace("delay,", f"delay, delay / (flight - {flight}) AS share,")
    with pytest.raises(ContractViolation, match=rf"the row of flight = {flight}: .*DIVIDE"):
        builder(small).build("latest", text=text, slices=3)
    stopped = newest(small, "latest")
    assert stopped.state is State.STOPPED
    assert f"flight = {flight}" in str(stopped.detail["error"])
    with pytest.raises(Conflict, match="by another query"):
        builder(small).build("latest", text=LATEST)
    before = slices_done(small, "latest")
    with pytest.raises(ContractViolation):
        builder(small).resume("latest")
    assert slices_done(small, "latest") == before
    cancel(small.site, "latest")
    assert not Path(small.lake.path(generation_name("latest", 2))).exists()


def test_what_changed_meanwhile_is_not_mixed_into_a_build(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small, "latest", epochs=1)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        builder(small).build("latest", slices=3)
    with monkeypatch.context() as newer:
        # Another version of the software computes something else from the same SQL.
        newer.setattr("projections.sql.plans.plan.SEMANTICS", "another")
        with pytest.raises(Conflict, match="what they mean changed since"):
            builder(small).resume("latest")
    assert newest(small, "latest").state is State.BUILDING
    assert builder(small).resume("latest").state is State.BUILT


@pytest.mark.matrix
def test_a_build_beside_another_generation_that_went_live_is_refused(small: SmallLake) -> None:
    fill(small, "delays")
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        builder(small).build("delays", slices=3)
    (entry,) = (e for e in small.deployed.entries() if e.name == "delays")
    small.deployed.put([replace(entry, generation=9)])
    with pytest.raises(Conflict, match="generation 9 went live since"):
        builder(small).resume("delays")
