"""Builds into another lake: whole or not there, resumable, and nothing of them in the one read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from kernel.errors import Conflict, ContractViolation
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from replay.book import Replay, ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel
from replay.progress import BuildProgress
from replay.starts import Start
from replay.subject import Site
from replay.verify import verify
from tests.support.lake.small_lake import LATEST, SmallLake, fill, more

SLICES = 4


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    return SmallLake(spark, Lake.at(tmp_path / "own"))


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def builder(
    small: SmallLake, site: Site, report: Callable[[BuildProgress], None] = lambda _: None
) -> Builder:
    return Builder(small.spark, site, report, record_every_s=0.0, abandoned_after=timedelta(0))


def newest(site: Site, name: str) -> Replay:
    return ReplayBook(site.place, Tables()).of(name)[-1]


def rows_there(site: Site, name: str) -> list[dict[str, object]]:
    found = Tables().read(site.place.path(f"projection/{name}"))
    assert found is not None
    visible = [column for column in found.schema.names if not column.startswith("_")]
    return sorted(found.select(visible).to_pylist(), key=str)


def files_of(lake: Lake) -> set[Path]:
    return {*Path(lake.root).rglob("*")}


def test_a_build_into_another_lake_goes_on_after_a_crash_and_is_there_at_once(
    small: SmallLake, any_lake: Lake
) -> None:
    fill(small, "latest")
    there, before = replace(small.site, into=any_lake), files_of(small.lake)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE, hit=2)
    with pytest.raises(failpoints.Crash):
        builder(small, there).build("latest", slices=SLICES)
    assert rows_there(there, "latest") == [], "what is not whole, readers do not see"
    failpoints.arm(failpoints.REPLAY_AFTER_BUILD)
    seen: list[BuildProgress] = []
    with pytest.raises(failpoints.Crash):
        builder(small, there, seen.append).build("latest", slices=SLICES)
    assert min(each.slice for each in seen) >= 2, "no slice that was there is computed"
    done = builder(small, there).build("latest", slices=SLICES)
    assert (done.state, done.generation, done.epoch) == (State.BUILT, 1, 2)
    assert rows_there(there, "latest") == small.rows("projection/latest")
    assert verify(there, "latest").equal
    assert files_of(small.lake) == before
    assert ReplayBook(small.lake, Tables()).of("latest") == []


@pytest.mark.matrix
def test_a_changed_query_is_tried_and_tried_again_and_the_table_as_it_was_is_copied(
    small: SmallLake, tmp_path: Path
) -> None:
    fill(small, "latest")
    there = replace(small.site, into=Lake.named(tmp_path / "sandbox"))
    flight = small.rows("projection/latest")[0]["flight"]
    failing = LATEST.replace("delay,", f"delay, delay / (flight - {flight}) AS share,")
    with pytest.raises(ContractViolation, match=f"the row of flight = {flight}"):
        builder(small, there).build("latest", text=failing, slices=SLICES)
    assert newest(there, "latest").state is State.STOPPED
    with pytest.raises(Conflict, match="by another query"):
        builder(small, there).build("latest")
    cancel(there, "latest")
    later = LATEST.replace("delay,", "delay + 1 AS delay,")
    builder(small, there).build("latest", text=later)
    found = verify(there, "latest")
    assert found.rows.differing == found.rows.live_rows > 0
    more(small, 3)
    small.run("latest")
    then = small.rows("projection/latest")
    assert builder(small, there).build("latest").epoch == 3
    assert rows_there(there, "latest") == then
    copied = builder(small, there).build("latest", start=Start(epoch=Epoch(2)))
    assert copied.epoch == 2
    assert rows_there(there, "latest") != then
    assert verify(there, "latest").equal
    assert small.run("latest").rows == 0, "the live one never noticed"


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["delays", "visits", "closed", "by_number"])
def test_what_is_built_into_another_lake_equals_the_live_table(
    small: SmallLake, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("per_flight", "by_number") if name == "by_number" else (name,)
    small.deploy(*names)
    for n in (1, 2):
        more(small, n)
        for each in names:
            small.run(each)
    there = replace(small.site, into=Lake.named(tmp_path / "sandbox"))
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        builder(small, there).build(name)
    with monkeypatch.context() as later:
        # Slices read the versions of other projections that the first one did.
        later.setattr("replay.build.read_elsewhere", lambda *_: {"projection/another": 7})
        with pytest.raises(Conflict, match="was written again since"):
            builder(small, there).build(name)
    assert builder(small, there).build(name).state is State.BUILT
    assert verify(there, name).equal
