"""Runs by regions on typed tables, without Spark: what is kept between runs, and when it is not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.errors import TooLarge
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run import region_runs
from projections.run.catalog import Deployment
from projections.run.dataflow import Dataflow
from projections.run.region_runs import Reading, RegionRuns
from projections.run.relations import LakeCatalog
from projections.sql.plans.plan import plan
from projections.sql.statements.parse import parse_script

MOMENT = pa.timestamp("us", "UTC")
START = datetime(2013, 1, 1, tzinfo=UTC)
TYPED = "typed/events.visit.seen"
FURTHER = "typed/events.visit.left"
HIDDEN = [
    ("_epoch", pa.int64()),
    ("_late", pa.bool_()),
    ("_time", MOMENT),
    ("_seq_hi", pa.int64()),
    ("_seq_lo", pa.int64()),
]
APP = "projection/visits/g1"
SQL = """
CREATE PROJECTION visits WITH (key = 'person, window_start') AS
SELECT person, window_start, COUNT(*) AS n, SUM(page) AS pages
FROM STREAM events.visit GROUP BY person, SESSION(occurred_at, '10 minutes');
"""


class World:
    """A lake with the typed tables of one category, and a projection kept in it."""

    def __init__(self, place: Path) -> None:
        self.lake, self.tables = Lake.at(place), Tables()
        self.path = self.lake.path("projection/visits")
        self.runs = RegionRuns(self.lake, self.tables)
        self.writer = ArrowWriter(self.tables)
        self.position = 0

    def seen(self, epoch: int, *minutes: int, late: bool = False, table: str = TYPED) -> None:
        """Add visits of one person."""
        rows = []
        for minute in minutes:
            self.position += 1
            at = START + timedelta(minutes=minute)
            rows.append(
                {name: None for name in EVENT_COLUMNS.names}
                | {"person": "p", "page": minute, "occurred_at": at, "_epoch": epoch}
                | {"_late": late, "_time": at, "_seq_hi": self.position, "_seq_lo": 0}
            )
        own = [("person", pa.string())] + ([("page", pa.int64())] if table == TYPED else [])
        schema = pa.schema([*own, *EVENT_COLUMNS, *HIDDEN])
        written = pa.Table.from_pylist(rows, schema)
        write_deltalake(self.lake.path(table), written, mode="append")

    def reading(self, sql: str = SQL, *, include_late: bool = False) -> Reading:
        typed = [name for name in (TYPED, FURTHER) if self.tables.open(self.lake.path(name))]
        nothing = Deployment(version=1, captures={}, slots={}, sources={}, projections={})
        catalog = LakeCatalog(self.lake, self.tables, nothing, typed=typed, fields={})
        return Reading(
            plan=plan(parse_script(sql).projections[0], catalog),
            catalog=catalog,
            app_id=APP,
            path=self.path,
            include_late=include_late,
            versions={},
        )

    def run(self, epoch: int, *, include_late: bool = False, commit: bool = True) -> int:
        """Bring the table to an epoch; return how many rows were written."""
        reading = self.reading(include_late=include_late)
        changes = self.runs.changes(reading, Epoch(epoch))
        if commit:
            guard = Guard(APP, Epoch(epoch))
            version = self.writer.merge(self.path, changes, guard, keys=reading.plan.key)
            self.runs.committed(APP, version)
        return changes.num_rows

    def rows(self) -> list[tuple[object, object]]:
        """Return sessions as (rows, sum of pages), in order of time."""
        found = DeltaTable(self.path).to_pyarrow_table().to_pylist()
        return [(r["n"], r["pages"]) for r in sorted(found, key=lambda r: str(r["window_start"]))]


def test_elements_are_read_of_typed_tables_as_they_are_stored(tmp_path: Path) -> None:
    world = World(tmp_path)
    seen = pa.struct([("page", pa.int64()), ("at", MOMENT)])
    own = [("pages", pa.list_(seen)), ("tags", pa.map_(pa.string(), pa.int32()))]
    for position, pages in enumerate([[{"page": 1, "at": START}, {"page": 1, "at": None}], None]):
        row = {name: None for name in EVENT_COLUMNS.names} | {"pages": pages, "tags": [("a", 1)]}
        place = {"_epoch": 1, "_late": False, "_time": START, "_seq_hi": position, "_seq_lo": 0}
        rows = pa.Table.from_pylist([row | place], pa.schema([*own, *EVENT_COLUMNS, *HIDDEN]))
        write_deltalake(world.lake.path(TYPED), rows, mode="append")
    reading = world.reading(
        "CREATE PROJECTION visits WITH (key = 'page, tag') AS SELECT p.page AS page, t.tag AS tag, "
        "COUNT(DISTINCT p.at) AS times, COUNT(*) AS n FROM STREAM events.visit "
        "LATERAL VIEW explode(pages) e AS p LATERAL VIEW explode(tags) t AS tag, v "
        "WHERE v = 1 GROUP BY p.page, t.tag"
    )
    found = world.runs.first(reading, Epoch(1)).to_pylist()
    assert found == [{"page": 1, "tag": "a", "times": 1, "n": 2}]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Sequence[object]:
    """Every dataflow that was begun."""
    made: list[object] = []

    class Counted(Dataflow):
        def __init__(self, *arguments: object, **settings: int) -> None:
            made.append(self)
            super().__init__(*arguments, **settings)

    monkeypatch.setattr(region_runs, "Dataflow", Counted)
    return made


def test_each_run_takes_what_is_new_up_to_its_epoch(
    tmp_path: Path, begun: Sequence[object]
) -> None:
    world = World(tmp_path)
    world.seen(1, 0, 5)
    world.seen(2, 30)
    world.run(1)
    assert world.rows() == [(2, 5)]
    world.run(2)
    assert world.rows() == [(2, 5), (1, 30)]
    world.seen(3, 14, 22)
    assert world.run(3) == 2, "two sessions become one: one row changes, one goes"
    assert world.rows() == [(5, 71)]
    assert world.run(3) == 0
    assert len(begun) == 1


def test_rows_beyond_the_lateness_count_where_they_are_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.seen(1, 0)
    world.seen(1, 3, late=True)
    world.run(1)
    assert world.rows() == [(1, 0)]
    world.run(2, include_late=True)
    assert world.rows() == [(2, 3)]


def test_a_type_that_lacks_a_field_has_null_in_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.seen(1, 0)
    world.run(1)
    world.seen(2, 4, table=FURTHER)
    world.run(2)
    assert world.rows() == [(2, 0)]


def test_state_that_does_not_fit_is_not_blamed_on_the_rows(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.seen(1, *range(0, 60_000, 20))
    world.runs = RegionRuns(world.lake, world.tables, memory_bytes=2**21)
    with pytest.raises(TooLarge, match="needs more than 2 MB of memory") as caught:
        world.run(1)
    assert "pipeline.state_memory_bytes" in caught.value.remedy
    assert "Write the query" not in caught.value.remedy
    # Given more, it begins anew and has everything.
    world.runs = RegionRuns(world.lake, world.tables)
    assert world.run(1) == 3_000


def test_a_commit_that_failed_is_begun_anew(tmp_path: Path, begun: Sequence[object]) -> None:
    world = World(tmp_path)
    world.seen(1, 0)
    world.run(1)
    world.seen(2, 5)
    world.run(2, commit=False)
    world.run(2)
    assert world.rows() == [(2, 5)]
    assert len(begun) == 2


def test_a_table_that_somebody_else_changed_is_put_right(
    tmp_path: Path, begun: Sequence[object]
) -> None:
    world = World(tmp_path)
    world.seen(1, 0, 40)
    world.run(1)
    DeltaTable(world.path).delete("n = 1 AND pages = 40")
    DeltaTable(world.path).update({"pages": "7"})
    world.seen(2, 80)
    assert world.run(2) == 3, "the new session, the one that is missing, the one that is wrong"
    assert world.rows() == [(1, 0), (1, 40), (1, 80)]
    assert len(begun) == 2


def test_a_compaction_leaves_what_is_kept(tmp_path: Path, begun: Sequence[object]) -> None:
    world = World(tmp_path)
    for epoch in (1, 2):
        world.seen(epoch, epoch * 40)
        world.run(epoch)
    before = DeltaTable(world.path).version()
    DeltaTable(world.path).optimize.compact()
    assert DeltaTable(world.path).version() > before
    world.seen(3, 120)
    assert world.run(3) == 1
    assert world.rows() == [(1, 40), (1, 80), (1, 120)]
    assert len(begun) == 1


def test_what_nobody_wants_any_more_is_forgotten(tmp_path: Path, begun: Sequence[object]) -> None:
    world = World(tmp_path)
    world.seen(1, 0)
    world.run(1)
    world.runs.keep_only([APP])
    world.seen(2, 40)
    world.run(2)
    world.runs.keep_only([])
    world.seen(3, 80)
    assert world.run(3) == 1
    assert world.rows() == [(1, 0), (1, 40), (1, 80)]
    assert len(begun) == 2
