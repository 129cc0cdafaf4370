"""What a build cannot be made of: refused by name, or stopped where it can be gone on with."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession, functions

from kernel import failpoints
from kernel.errors import (
    Conflict,
    ContractViolation,
    InvalidRequest,
    NotFound,
    PenstockError,
    StorageFull,
)
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import LIVE, PROJECTION, DeployedCatalog, Entry
from projections.run.projector import Projector
from projections.run.targets import live_target
from replay.book import Replay, ReplayBook, State
from replay.build import Builder
from replay.generations import generation_name
from replay.planning import plan_replay
from replay.progress import BuildProgress
from replay.slices import build_of
from replay.starts import Start
from replay.subject import Site, subject_of, typed_head
from replay.verify import Expectation, verify
from tests.support.lake.small_lake import LATEST, SmallLake, fill, more
from tests.support.lake.swaps import swap
from tests.support.lake.telling import BreakingRegistry, ToldLake
from tests.support.services.small_disk import fill as fill_disk
from tests.support.services.small_disk import small_disk

SLICES = 4


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def builder(
    spark: SparkSession, site: Site, report: Callable[[BuildProgress], None] = lambda _: None
) -> Builder:
    return Builder(spark, site, report, record_every_s=0.0, abandoned_after=timedelta(0))


def newest(lake: Lake, name: str) -> Replay:
    return ReplayBook(lake, Tables()).of(name)[-1]


def a_flight_of_slice(small: SmallLake, number: int) -> int:
    """Return a flight whose row a slice computes, of `SLICES`."""
    flights = small.spark.createDataFrame(
        [(row["flight"],) for row in small.rows("projection/latest")], "flight bigint"
    )
    own = functions.expr(f"pmod(xxhash64(flight), {SLICES}) = {number}")
    row = flights.where(own).first()
    assert row is not None
    return int(row["flight"])


def dividing(flight: int, share: str) -> str:
    """Return a query that has no result for one flight, or `share` of one."""
    divisor = f"(flight - {flight})"
    return LATEST.replace("delay,", f"delay, {share.format(divisor=divisor)} AS share,")


def stopped_at_its_last_slice(small: SmallLake, failing: str) -> None:
    """Build by a query that fails on a row of the last slice, and see that the others are there."""
    with pytest.raises(ContractViolation, match="the row of flight = ") as stopped:
        builder(small.spark, small.site).build("latest", text=failing, slices=SLICES)
    assert "replay resume latest --sql FILE" in str(stopped.value.remedy)
    there = build_of(newest(small.lake, "latest").detail)
    assert there is not None
    assert there.done == SLICES - 1


def test_a_build_whose_last_slice_fails_goes_on_once_its_query_is_mended(
    small: SmallLake,
) -> None:
    fill(small, "latest")
    flight = a_flight_of_slice(small, SLICES - 1)
    stopped_at_its_last_slice(small, dividing(flight, "delay / {divisor}"))
    assert f"flight = {flight}:" in str(newest(small.lake, "latest").detail["error"])
    other = dividing(flight, "COALESCE(try_divide(delay, {divisor}), 0)")
    with pytest.raises(Conflict, match="may be others than those of the slices that are there"):
        builder(small.spark, small.site).resume("latest", text=other)
    assert newest(small.lake, "latest").state is State.STOPPED
    seen: list[BuildProgress] = []
    mended = dividing(flight, "try_divide(delay, {divisor})")
    done = builder(small.spark, small.site, seen.append).resume("latest", text=mended)
    assert (done.state, done.generation, done.text) == (State.BUILT, 2, mended)
    assert min(each.slice for each in seen) >= SLICES - 1, "no slice that was there is computed"
    rows = small.rows(generation_name("latest", 2))
    assert [row["flight"] for row in rows if row["share"] is None] == [flight]
    assert verify(small.site, "latest", expectation=Expectation(columns=("share",))).accepted


@pytest.mark.matrix
def test_a_mended_build_has_the_rows_of_a_whole_one_and_goes_on_by_its_query(
    small: SmallLake,
) -> None:
    fill(small, "latest")
    flight = a_flight_of_slice(small, SLICES - 1)
    stopped_at_its_last_slice(small, dividing(flight, "delay / {divisor}"))
    mended = dividing(flight, "try_divide(delay, {divisor})")
    builder(small.spark, small.site).resume("latest", text=mended)
    rows = small.rows(generation_name("latest", 2))
    whole = builder(small.spark, small.site).build("latest", text=mended)
    assert rows == small.rows(generation_name("latest", whole.generation))
    made = builder(small.spark, small.site)
    swap(small.site, "latest", lambda r: made.catch_up(r, typed_head(small.site)), generation=2)
    more(small, 3)
    small.run("latest")
    builder(small.spark, small.site).build("latest")
    assert verify(small.site, "latest").equal, "it goes on by the mended query"


PLACED = """
CREATE PROJECTION placed WITH (key = 'event_id') AS
SELECT event_id, n FROM STREAM events.order.placed;
"""


@dataclass
class Orders:
    """A lake that is told orders, and a projection over them."""

    spark: SparkSession
    told: ToldLake
    registry: BreakingRegistry

    @property
    def site(self) -> Site:
        return Site(lake=self.told.lake)

    def deploy(self) -> None:
        entry = Entry(kind=PROJECTION, name="placed", generation=1, status=LIVE, text=PLACED)
        DeployedCatalog(self.told.lake, Tables()).put([entry])

    def place(self, count: int, **more: object) -> None:
        for _ in range(count):
            self.told.tell("placed", {"n": self.told.position, **more})
        self.told.epoch()

    def lose_newest_schema(self) -> None:
        found = self.registry.latest("order.placed")
        assert found is not None
        self.registry.broken[found.id] = NotFound(f"the registry has no schema {found.id}")

    def find_it_again(self) -> None:
        self.registry.broken.clear()
        self.told.derived.try_now()
        self.told.bring()

    def run(self, up_to: int) -> None:
        site = self.site
        projector = Projector(self.spark.newSession(), site.lake, site.tables, site.manifest)
        subject = subject_of(site, "placed")
        target = live_target(site.lake, "placed", 1, include_late=False)
        projector.run(subject.plan, target, subject.catalog, Epoch(up_to))


@pytest.fixture
def orders(spark: SparkSession, lake: Lake) -> Orders:
    registry = BreakingRegistry()
    return Orders(spark, ToldLake(lake, registry=registry), registry)


def test_a_missing_schema_version_bounds_a_build_and_is_named(orders: Orders) -> None:
    orders.place(3)
    orders.told.bring()
    orders.deploy()
    orders.run(1)
    orders.place(2, note="in the second version")
    orders.lose_newest_schema()
    orders.told.bring()
    plan = plan_replay(orders.site, "placed")
    assert plan.epochs == (1, 1)
    (held,) = plan.held
    assert (held.name, held.from_epoch) == ("typed/events.order.placed", 2)
    assert "the registry has no schema" in held.reason
    assert held.fix == "penstock table retry typed/events.order.placed"
    made = builder(orders.spark, orders.site)
    built = made.build("placed")
    assert built.epoch == 1
    assert verify(orders.site, "placed").equal
    with pytest.raises(Conflict, match="has no schema") as refused:
        made.catch_up(built, Epoch(2))
    assert refused.value.remedy == held.fix
    orders.find_it_again()
    orders.run(2)
    assert plan_replay(orders.site, "placed").held == ()
    assert made.catch_up(built, Epoch(2)).epoch == 2
    assert verify(orders.site, "placed").equal
    assert verify(orders.site, "placed").rows.built_rows == 5


@pytest.mark.parametrize(
    ("start", "error", "why"),
    [
        (Start(position=10_000), InvalidRequest, "nothing has position 10000"),
        (Start(epoch=Epoch(9)), NotFound, "epoch 9 is not among those that are known, 1 to 2"),
        (Start(savepoint="never"), NotFound, "never"),
    ],
)
def test_a_range_beyond_the_log_is_refused_before_anything_is_written(
    small: SmallLake, start: Start, error: type[PenstockError], why: str
) -> None:
    fill(small, "latest")
    for asked in (
        plan_replay,
        lambda site, name, start: builder(small.spark, site).build(name, start=start),
    ):
        with pytest.raises(error, match=why):
            asked(small.site, "latest", start=start)
    assert ReplayBook(small.lake, Tables()).of("latest") == []
    assert not Path(small.lake.path(generation_name("latest", 2))).exists()


@pytest.mark.matrix
def test_a_disk_that_fills_up_stops_a_build_that_goes_on_when_there_is_room(
    spark: SparkSession, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64) as disk:
        small = SmallLake(spark, Lake.at(disk / "lake"))
        fill(small, "latest")
        before = small.rows("projection/latest")
        filler: list[Path] = []

        def full(progress: BuildProgress) -> None:
            if progress.slice == 2 and not filler:
                filler.append(fill_disk(disk, leave_bytes=8192))

        with pytest.raises(StorageFull, match="no room is left"):
            builder(spark, small.site, full).build("latest", slices=SLICES)
        assert small.rows("projection/latest") == before
        os.unlink(filler[0])
        seen: list[BuildProgress] = []
        done = builder(spark, small.site, seen.append).resume("latest")
        assert done.state is State.BUILT
        assert min(each.slice for each in seen) >= 1
        assert verify(small.site, "latest").equal


@pytest.mark.matrix
def test_of_two_operators_at_once_one_builds(small: SmallLake) -> None:
    fill(small, "latest")
    answers: list[Replay | PenstockError] = []
    together = threading.Barrier(2)

    def operate() -> None:
        # One that is alive is not taken over: it reports every second.
        mine = Builder(small.spark, small.site, lambda _: None)
        together.wait()
        try:
            answers.append(mine.build("latest", slices=SLICES))
        except PenstockError as error:
            answers.append(error)

    threads = [threading.Thread(target=operate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    built = [each for each in answers if isinstance(each, Replay)]
    refused = [each for each in answers if isinstance(each, Conflict)]
    assert (len(built), len(refused)) == (1, 1), answers
    assert verify(small.site, "latest").equal
    assert [each.state for each in ReplayBook(small.lake, Tables()).of("latest")] == [
        State.VERIFIED
    ]
