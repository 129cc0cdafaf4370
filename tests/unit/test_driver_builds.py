"""Builds that this process makes without Spark: of what, in how much memory, and their end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from kernel.errors import BeyondThisProcess, Cancelled, Conflict, StorageFull, TooLarge
from kernel.positions import Epoch
from lake.datasets import paths_of
from lake.duckdb_files import relation_of
from lake.layout import Lake
from lake.sessions import SparkOnDemand
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.executor import Executor, ExecutorChoice
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.run.region_runs import Reading
from projections.run.whole_rows import WholeRows, _next_of
from replay.book import State
from replay.build import Builder
from replay.cancel import cancel
from replay.generations import generation_name
from replay.progress import BuildProgress
from replay.subject import Site, subject_of
from tests.support.lake.handmade import HandMade
from tests.support.services.small_disk import fill, small_disk

MOMENT = pa.timestamp("us", "UTC")
START = datetime(2013, 1, 1, tzinfo=UTC)
STAMPS = [
    ("_epoch", pa.int64()),
    ("_late", pa.bool_()),
    ("_time", MOMENT),
    ("_seq_hi", pa.int64()),
    ("_seq_lo", pa.int64()),
]
TYPED = "typed/events.visit.seen"
PERSONS = """
CREATE PROJECTION persons WITH (key = 'person') AS
SELECT person, COUNT(*) AS n, SUM(weight) AS weight, MAX(occurred_at) AS at
FROM STREAM events.visit GROUP BY person;
"""
NEWEST = """
CREATE PROJECTION newest WITH (key = 'person') AS
SELECT person, weight, occurred_at, entity_id FROM STREAM events.visit WHERE weight > 2;
"""


class SparkNeeded(Exception):
    """What a builder of these tests raises where it would start Spark."""


def started() -> SparkSession:
    raise SparkNeeded


class Visits:
    """A lake with visits of persons, and two projections of them."""

    def __init__(self, place: Path) -> None:
        self.made = HandMade(Lake.at(place))
        self.position = 0
        for name, text in (("persons", PERSONS), ("newest", NEWEST)):
            entry = Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
            self.made.deployed.put([entry])

    @property
    def site(self) -> Site:
        return self.made.site

    def come(self, rows: list[dict[str, object]], *more: tuple[str, pa.DataType]) -> Epoch:
        """Commit an epoch with visits; columns that they say nothing of are NULL."""
        epoch = self.made.epoch()
        shape = pa.schema([("person", pa.string()), *more, *EVENT_COLUMNS, *STAMPS])
        full = []
        for row in rows:
            self.position += 1
            at = START + timedelta(seconds=self.position)
            stamps = {"_epoch": epoch, "_late": False, "_time": at, "_seq_hi": self.position}
            full.append(
                {name: None for name in shape.names}
                | {"occurred_at": at, "_seq_lo": 0}
                | stamps
                | row
            )
        self.made.derive({TYPED: pa.Table.from_pylist(full, shape)}, epoch)
        return epoch

    def builder(
        self,
        report: Callable[[BuildProgress], None] = lambda _: None,
        *,
        executor: Executor = Executor.AUTO,
        reserve_bytes: int = 0,
    ) -> Builder:
        return Builder(
            SparkOnDemand(started),
            self.site,
            report,
            choice=ExecutorChoice(asked=executor),
            record_every_s=0.0,
            abandoned_after=timedelta(0),
            reserve_bytes=reserve_bytes,
        )

    def built(self, name: str, generation: int = 2) -> list[dict[str, Any]]:
        found = Tables().read(self.made.lake.path(generation_name(name, generation)))
        assert found is not None
        return sorted(found.to_pylist(), key=lambda row: str(row["person"]))

    def reading(self, name: str) -> Reading:
        subject = subject_of(self.site, name)
        return Reading(
            plan=subject.plan,
            catalog=subject.catalog,
            app_id="test",
            path="nowhere",
            include_late=False,
            versions={},
        )


WEIGHT = ("weight", pa.float64())


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def visits(tmp_path: Path) -> Visits:
    made = Visits(tmp_path / "lake")
    # The first file has no column `weight` yet.
    made.come([{"person": "ann"}, {"person": "bob"}, {"person": None}])
    made.come([{"person": "ann", "weight": 1.5}, {"person": "bob", "weight": float("nan")}], WEIGHT)
    made.come([{"person": "ann", "weight": 3.0, "_late": True}], WEIGHT)
    return made


@pytest.mark.parametrize("folder", ["lake's", "lake [eu] {1}"])
def test_files_are_read_whatever_their_folder_is_called(tmp_path: Path, folder: str) -> None:
    """Of the second one DuckDB would take the name for a pattern."""
    path, tables = str(tmp_path / folder / "t"), Tables()
    ArrowWriter(tables).append(path, pa.table({"a": [1], "b": ["x"]}), Guard("t", Epoch(1)))
    table = tables.open(path)
    assert table is not None
    with duckdb.connect() as connection:
        given, present = relation_of(connection, "read", table, sorted(paths_of(table)), ["a", "b"])
        assert present == {"a", "b"}
        assert connection.sql(f"SELECT a, b FROM {given}").fetchall() == [(1, "x")]


def test_a_small_build_needs_no_spark(visits: Visits) -> None:
    seen: list[BuildProgress] = []
    done = visits.builder(seen.append).build("persons")
    assert (done.state, done.epoch, done.detail["slices"]) == (State.BUILT, 3, 1)
    assert [(row["person"], row["n"], row["_epoch"]) for row in visits.built("persons")] == [
        ("ann", 2, 3),
        ("bob", 2, 3),
    ]
    assert str(visits.built("persons")[1]["weight"]) == "nan"
    assert (seen[-1].slice, seen[-1].slices, seen[-1].done) == (1, 1, seen[-1].rows)


def test_rows_of_no_number_are_read_whatever_the_bounds_of_their_file_say(visits: Visits) -> None:
    visits.builder().build("newest")
    found = [(row["person"], str(row["weight"])) for row in visits.built("newest")]
    # A query without state has late rows too.
    assert found == [("ann", "3.0"), ("bob", "nan")]


def test_late_rows_are_taken_in_where_a_build_asks_for_them(visits: Visits) -> None:
    visits.builder().build("persons", include_late=True)
    assert [row["n"] for row in visits.built("persons")] == [3, 2]


def test_p6_slices_by_the_hash_of_the_key_give_the_whole(visits: Visits) -> None:
    visits.come([{"person": f"p{n % 40}", "weight": n / 7} for n in range(200)], WEIGHT)
    for name in ("persons", "newest"):
        visits.builder().build(name)
        whole = visits.built(name)
        cancel(visits.site, name)
        seen: list[BuildProgress] = []
        failpoints.arm(failpoints.REPLAY_AFTER_SLICE, hit=2)
        with pytest.raises(failpoints.Crash):
            visits.builder(seen.append).build(name, slices=5)
        failpoints.disarm()
        done = visits.builder(seen.append).build(name)
        assert done.detail["slices"] == 5
        assert (seen[-1].slice, seen[-1].slices) == (5, 5)
        assert str(visits.built(name, done.generation)) == str(whole)


def test_a_full_disk_stops_a_build_which_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """So full that not even the book takes a row."""
    with small_disk(tmp_path / "disk", 16) as disk:
        visits = Visits(disk / "lake")
        visits.come([{"person": f"p{n % 40}", "weight": n / 7} for n in range(200)], WEIGHT)
        fillers: list[Path] = []

        def fills(progress: BuildProgress) -> None:
            if progress.slice == 2 and not fillers:
                fillers.append(fill(disk, leave_bytes=0))

        with pytest.raises(StorageFull, match="generation 2 of persons stopped") as told:
            visits.builder(fills).build("persons", slices=5)
        assert "No space left on device" in str(told.value)
        assert "penstock replay resume persons" in told.value.remedy
        fillers[0].unlink()
        seen: list[BuildProgress] = []
        assert visits.builder(seen.append).resume("persons").state is State.BUILT
        assert min(each.slice for each in seen) == 3, (
            "the two that are there are not computed again"
        )
        assert sum(row["n"] for row in visits.built("persons")) == 200


def test_spark_is_started_where_it_is_asked_for(visits: Visits) -> None:
    with pytest.raises(SparkNeeded):
        visits.builder(executor=Executor.SPARK).build("persons")


def test_what_is_too_large_for_this_process_is_for_spark(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = visits.builder()
    builder._builds.most_bytes = 1
    with pytest.raises(SparkNeeded):
        builder.build("persons", slices=1)


def test_what_needs_more_memory_than_there_is_is_for_spark(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> str:
        raise TooLarge("no room")

    monkeypatch.setattr(WholeRows, "_query", refused)
    with pytest.raises(SparkNeeded):
        visits.builder().build("persons")


def test_a_cancelled_build_ends_its_work(visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query of this test would take hours."""
    at_work = threading.Event()
    endless = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c"

    def query(*_: object) -> str:
        at_work.set()
        return endless

    def report(_: BuildProgress) -> None:
        if at_work.is_set():
            cancel(visits.site, "persons")

    monkeypatch.setattr(WholeRows, "_query", query)
    monkeypatch.setattr("replay.progress.TICK_S", 0.05)
    with pytest.raises(Exception, match="cancelled") as ended:
        visits.builder(report).build("persons")
    assert not isinstance(ended.value, SparkNeeded | Cancelled)


ENDLESS = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range + b.range <> 7"


def test_a_build_that_is_cancelled_before_its_query_begins_ends_it(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of this test would take hours."""
    made, begins, stopped = WholeRows._make_view, threading.Event(), threading.Event()

    def view(self: WholeRows, *given: Any) -> None:
        begins.set()
        assert stopped.wait(60)
        made(self, *given)

    class Stops(WholeRows):
        def stop(self) -> None:
            super().stop()
            stopped.set()

    def report(_: BuildProgress) -> None:
        if begins.is_set():
            cancel(visits.site, "persons")

    monkeypatch.setattr("projections.run.driver_builds.WholeRows", Stops)
    monkeypatch.setattr(WholeRows, "_make_view", view)
    monkeypatch.setattr(WholeRows, "_query", lambda *_: ENDLESS)
    monkeypatch.setattr("replay.progress.TICK_S", 0.05)
    with pytest.raises(Conflict, match="cancelled"):
        visits.builder(report).build("persons")


def test_parts_of_long_rows_are_small(tmp_path: Path) -> None:
    visits, size = Visits(tmp_path / "lake"), 20_000
    for _ in range(2):
        rows = [{"person": f"p{n}", "weight": 5.0, "entity_id": "x" * size} for n in range(6_000)]
        epoch = visits.come(rows, WEIGHT)
    work = WholeRows(visits.made.lake, visits.made.tables)
    with work.rows(visits.reading("newest"), epoch) as parts:
        assert max(part.nbytes for part in parts) < 3_000 * size


def test_memory_is_bounded_and_the_rest_goes_to_disk(tmp_path: Path) -> None:
    visits = Visits(tmp_path / "lake")
    rows = [
        {"person": f"p{n}", "weight": 5.0, "entity_id": f"{n:08}" + "x" * 600} for n in range(5_000)
    ]
    epoch = visits.come(rows, WEIGHT)
    (file,) = Path(visits.made.lake.path(TYPED)).glob("*.parquet")
    whole = pq.read_table(file)
    few = 60
    for place in range(few):
        # Each time other persons, so that all rows are held until the end.
        names = pa.array([f"p{place}-{n}" for n in range(whole.num_rows)])
        part = whole.set_column(whole.schema.get_field_index("person"), "person", names)
        visits.made.derive(
            {
                TYPED: part.drop_columns(["_epoch"]).append_column(
                    "_epoch", pa.array([epoch + 1 + place] * part.num_rows)
                )
            },
            epoch + 1 + place,
        )
    reading, last = visits.reading("newest"), Epoch(epoch + few)
    work = WholeRows(visits.made.lake, visits.made.tables, memory_bytes=128 * 2**20)
    count = size = 0
    with work.rows(reading, last) as parts:
        for part in parts:
            count, size = count + part.num_rows, size + part.nbytes
    assert count == (few + 1) * whole.num_rows
    assert size > 128 * 2**20
    with (
        pytest.raises(TooLarge),
        WholeRows(visits.made.lake, visits.made.tables, memory_bytes=2**20).rows(
            reading, last
        ) as parts,
    ):
        assert not [*parts]


def test_a_build_that_its_operator_interrupts_can_be_gone_on_with(
    visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query of this test would take hours."""
    at_work, left = threading.Event(), [signal.SIGINT]

    def query(*_: object) -> str:
        at_work.set()
        return ENDLESS

    def report(_: BuildProgress) -> None:
        if at_work.is_set() and left:
            os.kill(os.getpid(), left.pop())

    # A worker of a test run ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(WholeRows, "_query", query)
            patched.setattr("replay.progress.TICK_S", 0.5)
            with pytest.raises(KeyboardInterrupt):
                visits.builder(report).build("persons")
    finally:
        signal.signal(signal.SIGINT, before)
    (begun,) = visits.builder()._book.of("persons")
    assert begun.state is State.STOPPED
    assert visits.builder().resume("persons").state is State.BUILT


def test_a_value_without_room_in_its_column_is_left_to_spark() -> None:
    reader = pa.table({"n": [1, 2**40]}).to_reader()
    with pytest.raises(BeyondThisProcess, match="no room in its column"):
        _next_of(reader, pa.schema([("n", pa.int32())]))
