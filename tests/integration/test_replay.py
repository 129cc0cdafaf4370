"""Generations built by the live runner's own code, beside a live one that goes on."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from kernel.errors import Conflict, LeaseLost
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.executor import Executor, ExecutorChoice
from projections.run.catalog import DeployedCatalog
from projections.run.projector import Projector
from projections.serve.query import ask
from replay.book import Replay, State
from replay.build import Builder
from replay.cancel import cancel
from replay.generations import generation_name
from replay.planning import plan_replay
from replay.progress import BuildProgress
from replay.subject import subject_of, typed_head
from replay.verify import verify
from tests.support.lake.small_lake import (
    CHAIN,
    DELAYS,
    START,
    Departure,
    SmallLake,
    fill,
    more,
    some_departures,
)
from tests.support.lake.swaps import rollback, swap
from tests.support.services.tier import examples


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    return SmallLake(spark, Lake.at(tmp_path / "a lake"))


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> object:
    yield
    failpoints.disarm()


def builder(small: SmallLake, report: Callable[[BuildProgress], None] | None = None) -> Builder:
    return Builder(
        small.spark,
        small.site,
        report or (lambda _: None),
        record_every_s=0.0,
        abandoned_after=timedelta(0),
    )


def not_needed(replay: Replay) -> Replay:
    raise AssertionError(f"no need to bring {replay.generation} forward")


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.matrix) for name in ("latest", "delays")), "windy"],
)
def test_p6_a_rebuild_equals_what_was_kept_and_goes_on_as_the_table(
    small: SmallLake, name: str
) -> None:
    fill(small, name)
    planned = plan_replay(small.site, name)
    built = builder(small).build(name)
    assert (built.state, built.epoch) == (State.BUILT, 2)
    assert (planned.generation, planned.epochs) == (built.generation, (1, 2))
    assert verify(small.site, name).equal
    before = small.rows(f"projection/{name}")
    swap(small.site, name, not_needed)
    assert small.rows(f"projection/{name}") == before
    more(small, 3)
    assert not small.run(name).whole
    builder(small).build(name)
    again = verify(small.site, name)
    assert again.equal
    assert again.rows.built_rows > 0
    assert ask(small.lake, f"SELECT max(_epoch) AS e FROM {name}").rows.to_pylist() == [{"e": 3}]


@pytest.mark.matrix
def test_a_rollback_gives_the_table_back_to_its_old_generation(small: SmallLake) -> None:
    fill(small, "windy")
    builder(small).build("windy")
    swap(small.site, "windy", not_needed)
    more(small, 3)
    small.run("windy")
    newest = small.rows("projection/windy")
    assert rollback(small.site, "windy").epoch == 2
    small.run("windy")
    assert small.rows("projection/windy") == newest
    builder(small).build("windy")
    assert verify(small.site, "windy").equal


@pytest.mark.matrix
def test_late_rows_are_taken_in_when_asked_for(small: SmallLake) -> None:
    small.deploy("delays")
    departures = some_departures(7, 0, 80)
    assert any(d.late for d in departures)
    small.epoch(departures)
    small.run("delays")
    assert plan_replay(small.site, "delays").late_rows == sum(d.late for d in departures)
    builder(small).build("delays", include_late=True)
    found = verify(small.site, "delays")
    assert found.declared
    assert found.accepted
    assert not found.equal
    swap(small.site, "delays", not_needed)
    assert counted(small) == flights_per_window(departures)
    assert builder(small).build("delays").include_late
    again = verify(small.site, "delays")
    assert (again.declared, again.equal) == (False, True)


def test_another_query_becomes_the_table_with_its_columns(small: SmallLake) -> None:
    fill(small, "delays")
    text = DELAYS.replace("AVG(delay)", "MAX(delay) AS worst, AVG(delay)")
    builder(small).build("delays", text=text)
    found = verify(small.site, "delays")
    assert [(t.name, t.live) for t in found.types] == [("worst", None)]
    assert (found.rows.differing, found.accepted) == (0, False)
    swap(small.site, "delays", not_needed)
    more(small, 3)
    small.run("delays")
    assert all(row["worst"] >= row["mean_delay"] for row in small.rows("projection/delays"))
    rollback(small.site, "delays")
    assert "worst" not in small.rows("projection/delays")[0]


@pytest.mark.matrix
def test_a_build_reads_histories_as_they_were_at_its_epoch(small: SmallLake) -> None:
    fill(small, "windy")
    more(small, 3)  # typed and history tables go on, the projection does not
    assert builder(small).build("windy").epoch == 2
    assert verify(small.site, "windy").equal


@pytest.mark.matrix
def test_a_swap_first_brings_the_generation_to_where_the_live_one_is(small: SmallLake) -> None:
    fill(small, "windy")
    made = builder(small)
    made.build("windy")
    more(small, 3)
    small.run("windy")
    live = small.rows("projection/windy")
    done = swap(small.site, "windy", lambda replay: made.catch_up(replay, typed_head(small.site)))
    assert done.epoch == 3
    assert small.rows("projection/windy") == live


def test_a_swap_of_final_rows_takes_in_those_that_ended_without_new_facts(
    small: SmallLake,
) -> None:
    """Events of other types of the category came alone: they move the watermark."""
    small.deploy("closed")
    first = [each for each in some_departures(1, 100, 60) if each.minute <= 150]
    small.epoch(first, seen_up_to=150)
    small.run("closed")
    before = small.rows("projection/closed")
    made = builder(small)
    made.build("closed")
    small.epoch(seen_up_to=599)
    small.run("closed")
    live = small.rows("projection/closed")
    assert len(live) > len(before) > 0
    done = swap(small.site, "closed", lambda replay: made.catch_up(replay, typed_head(small.site)))
    assert done.epoch == 2
    assert small.rows("projection/closed") == live
    small.run("closed")
    assert small.rows("projection/closed") == live
    assert Tables().open(small.lake.path("corrections/closed")) is None


def test_a_swap_takes_in_what_another_projection_changed_at_the_same_epoch(
    small: SmallLake,
) -> None:
    small.deploy("per_flight", "by_number")
    more(small, 1)
    for name in ("per_flight", "by_number"):
        small.run(name)
    made = builder(small)
    built = made.build("by_number")
    text = CHAIN["per_flight"].replace("COUNT(*) AS n", "COUNT(*) + 1 AS n")
    made.build("per_flight", text=text)
    swap(small.site, "per_flight", not_needed)
    stale = small.rows(generation_name("by_number", built.generation))
    small.run("by_number")
    live = small.rows("projection/by_number")
    assert live != stale
    brought: list[Replay] = []

    def catch_up(replay: Replay) -> Replay:
        brought.append(replay)
        return builder(small).catch_up(replay, typed_head(small.site))

    assert swap(small.site, "by_number", catch_up).epoch == 1
    assert len(brought) == 1
    assert small.rows("projection/by_number") == live


def test_a_generation_whose_catch_up_died_is_compared_where_its_table_stands(
    small: SmallLake,
) -> None:
    fill(small, "latest", epochs=1)
    made = builder(small)
    built = made.build("latest")
    more(small, 2)
    small.run("latest")
    failpoints.arm(failpoints.PROJECTION_AFTER_COMMIT)
    with pytest.raises(failpoints.Crash):
        made.catch_up(built, Epoch(2))
    failpoints.disarm()
    found = verify(small.site, "latest")
    assert (found.equal, found.epoch) == (True, 2)


@pytest.mark.matrix
def test_a_live_runner_that_does_not_know_of_the_swap_refuses_to_write(small: SmallLake) -> None:
    fill(small, "latest")
    builder(small).build("latest")
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        swap(small.site, "latest", not_needed)
    more(small, 3)
    before = small.rows("projection/latest")
    with pytest.raises(LeaseLost, match="replaced by another generation"):
        small.run("latest")
    with pytest.raises(Conflict, match="interrupted"):
        builder(small).build("latest")
    assert small.rows("projection/latest") == before
    assert swap(small.site, "latest", not_needed).generation == 2
    small.run("latest")
    builder(small).build("latest")
    assert verify(small.site, "latest").equal


@pytest.mark.matrix
def test_an_interrupted_rollback_is_finished_by_the_same_command(small: SmallLake) -> None:
    fill(small, "latest")
    builder(small).build("latest")
    swap(small.site, "latest", not_needed)
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        rollback(small.site, "latest")
    more(small, 3)
    with pytest.raises(LeaseLost):
        small.run("latest")
    assert rollback(small.site, "latest").generation == 1
    small.run("latest")
    builder(small).build("latest")
    assert verify(small.site, "latest").equal


@pytest.mark.matrix
def test_a_crash_after_the_build_leaves_the_live_generation_alone(small: SmallLake) -> None:
    fill(small, "latest", epochs=1)
    before = small.rows("projection/latest")
    failpoints.arm(failpoints.REPLAY_AFTER_BUILD)
    with pytest.raises(failpoints.Crash):
        builder(small).build("latest")
    assert small.rows("projection/latest") == before
    with pytest.raises(Conflict, match="is being built"):
        Builder(small.spark, small.site, lambda _: None).build("latest")
    assert builder(small).build("latest").generation == 2
    assert verify(small.site, "latest").equal


def test_a_build_that_is_cancelled_stops_and_removes_its_files(small: SmallLake) -> None:
    fill(small, "latest", epochs=1)
    seen: list[BuildProgress] = []

    def cancel_it(progress: BuildProgress) -> None:
        if not seen:
            cancel(small.site, "latest")
        seen.append(progress)

    with pytest.raises(Conflict, match="cancelled"):
        builder(small, cancel_it).build("latest")
    assert seen[0].rows == 60
    assert not Path(small.lake.path(generation_name("latest", 2))).exists()
    assert builder(small).build("latest").generation == 3


def test_swaps_beside_a_live_runner_lose_nothing(small: SmallLake) -> None:
    fill(small, "latest", epochs=1)
    made = builder(small)
    errors: list[BaseException] = []
    over = threading.Event()
    deployed = DeployedCatalog(small.lake, Tables())

    def live() -> None:
        n = 2
        try:
            # Epochs have a pause between them: without one, no catch-up would ever be the last.
            while not over.wait(0.2):
                more(small, n)
                n += 1
                if deployed.deployment().claimed("latest"):
                    continue  # As the pipeline's own loop, it holds still.
                try:
                    small.run("latest")
                except LeaseLost:
                    small.tables.forget(small.lake.path("projection/latest"))
        except BaseException as error:
            errors.append(error)

    runner = threading.Thread(target=live)
    runner.start()
    try:
        for _ in range(examples(1, matrix=2)):
            made.build("latest")
            swap(small.site, "latest", lambda replay: made.catch_up(replay, typed_head(small.site)))
    finally:
        over.set()
        runner.join()
    assert not errors
    small.run("latest")
    made.build("latest")
    assert verify(small.site, "latest").equal


@pytest.mark.matrix
@pytest.mark.parametrize("name", [pytest.param("delays", marks=pytest.mark.matrix), "windy"])
def test_a_result_too_large_for_the_driver_is_the_same(small: SmallLake, name: str) -> None:
    fill(small, name)
    wanted = small.rows(f"projection/{name}")
    small.projector = Projector(
        small.spark.newSession(),
        small.lake,
        Tables(),
        small.manifest,
        bounded_bytes=0,
        choice=ExecutorChoice(asked=Executor.SPARK),
    )
    subject = subject_of(small.site, name)
    target = made_target(small, name)
    run = small.projector.run(subject.plan, target, subject.catalog, Epoch(2))
    assert run.whole
    assert run.rows == len(wanted)
    assert small.rows(target.name) == wanted
    more(small, 3)
    small.run(name)
    subject = subject_of(small.site, name)
    small.projector.run(subject.plan, made_target(small, name, epoch=3), subject.catalog, Epoch(3))
    assert small.rows(target.name) == small.rows(f"projection/{name}")
    frame = small.spark.read.format("delta").load(target.path)
    assert frame.count() == len(small.rows(target.name))


def made_target(small: SmallLake, name: str, *, epoch: int = 2) -> object:
    from replay.subject import generation_target

    subject = subject_of(small.site, name)
    return generation_target(small.site, subject, 9, Epoch(epoch), include_late=False)


def counted(small: SmallLake) -> dict[tuple[object, object], int]:
    rows: pa.Table = ask(small.lake, "SELECT carrier, window_start, flights FROM delays").rows
    return {(row["carrier"], row["window_start"]): row["flights"] for row in rows.to_pylist()}


def flights_per_window(departures: list[Departure]) -> dict[tuple[object, object], int]:
    found: dict[tuple[object, object], int] = defaultdict(int)
    for departure in departures:
        found[departure.carrier, START + timedelta(hours=departure.minute // 60)] += 1
    return dict(found)
