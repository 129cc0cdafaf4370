"""Runs by regions on other projections' tables and on versions: what is read is what changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import DELETE, UPSERT, ArrowWriter, Guard, upserts_and_deletes, with_op
from projections.run import region_runs
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import Deployment
from projections.run.dataflow import Dataflow
from projections.run.region_runs import Reading, RegionRuns
from projections.run.relations import LakeCatalog
from projections.sql.operators.tree import Scan
from projections.sql.plans.plan import plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation

MOMENT = pa.timestamp("us", "UTC")
START = datetime(2013, 1, 1, tzinfo=UTC)
APP = "projection/cities/g1"
COLUMNS = {"id": "BIGINT", "city": "STRING", "amount": "BIGINT"}
SHAPE = pa.schema([("id", pa.int64()), ("city", pa.string()), ("amount", pa.int64())])
VERSIONS = pa.schema(
    [*SHAPE, ("valid_from", MOMENT), ("valid_to", MOMENT), ("_deleted", pa.bool_())]
)
FOLDED = pa.schema([*VERSIONS, ("_epoch", pa.int64())])
Rows = Sequence[tuple[int, str, int]]


def query(read: str) -> str:
    return (
        "CREATE PROJECTION cities WITH (key = 'city') AS "
        f"SELECT city, COUNT(*) AS n, SUM(amount) AS amount FROM {read} GROUP BY city;"
    )


class World:
    """A lake with one table that is read, and the projection `cities` over it."""

    def __init__(self, place: Path, read: str = "totals") -> None:
        self.lake, self.tables = Lake.at(place), Tables()
        self.path = self.lake.path("projection/cities")
        self.inner = self.lake.path("projection/totals")
        self.runs = RegionRuns(self.lake, self.tables)
        self.writer = ArrowWriter(Tables())
        columns = tuple(Column(name=n, type=t) for n, t in COLUMNS.items())
        relation = Relation(name=read, columns=columns, key=("id",), event_time=None)
        projection = read == "totals"
        known = MemoryCatalog(
            projections={read: relation} if projection else {},
            latests={} if projection else {read: relation},
        )
        nothing = Deployment(version=1, captures={}, slots={}, sources={}, projections={})
        self.plan = plan(parse_script(query(read)).projections[0], known)
        self.catalog = LakeCatalog(self.lake, self.tables, nothing, typed=[], fields={})
        self.epoch = 0

    def inner_run(self, rows: Rows, gone: Sequence[int] = ()) -> None:
        """Let the other projection commit."""
        self.epoch += 1
        came = pa.Table.from_pylist(
            [dict(zip(SHAPE.names, row, strict=True)) for row in rows], SHAPE
        )
        keys = pa.table({"id": pa.array(gone, pa.int64())})
        changes = upserts_and_deletes(came, keys)
        guard = Guard("projection/totals/g1", Epoch(self.epoch))
        self.writer.merge(self.inner, changes, guard, keys=("id",))

    def run(self, versions: dict[str, int] | None = None) -> int:
        """Bring `cities` forward; return how many rows were written."""
        reading = Reading(
            plan=self.plan,
            catalog=self.catalog,
            app_id=APP,
            path=self.path,
            include_late=False,
            versions=versions or {},
        )
        self.epoch += 1
        changes = self.runs.changes(reading, Epoch(self.epoch))
        guard = Guard(APP, Epoch(self.epoch))
        version = ArrowWriter(self.tables).merge(self.path, changes, guard, keys=("city",))
        self.runs.committed(APP, version)
        return changes.num_rows

    def rows(self) -> list[tuple[object, object, object]]:
        found = DeltaTable(self.path).to_pyarrow_table().to_pylist()
        return sorted((row["city"], row["n"], row["amount"]) for row in found)


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Sequence[object]:
    """Every dataflow that was begun."""
    made: list[object] = []

    class Counted(Dataflow):
        def __init__(self, *arguments: object, **options: int) -> None:
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(region_runs, "Dataflow", Counted)
    return made


def test_rows_of_a_projection_that_came_moved_and_went(
    tmp_path: Path, begun: Sequence[object]
) -> None:
    world = World(tmp_path)
    world.inner_run([(1, "Rome", 5), (2, "Rome", 7), (3, "Oslo", 1)])
    assert world.run() == 2
    world.inner_run([(2, "Oslo", 8)], gone=[1])
    assert world.run() == 2
    assert world.rows() == [("Oslo", 2, 9)]
    world.inner_run([(2, "Oslo", 8)])
    assert world.run() == 0, "what was written again as it was is no change"
    assert len(begun) == 1


def test_a_compaction_of_what_is_read_changes_nothing(
    tmp_path: Path, begun: Sequence[object]
) -> None:
    world = World(tmp_path)
    for n in range(3):
        world.inner_run([(n, "Rome", n)])
        world.run()
    DeltaTable(world.inner).optimize.compact()
    assert world.run() == 0
    world.inner_run([(9, "Oslo", 2)])
    assert world.run() == 1
    assert world.rows() == [("Oslo", 1, 2), ("Rome", 3, 3)]
    assert len(begun) == 1


def test_a_table_that_was_replaced_gives_what_is_different(
    tmp_path: Path, begun: Sequence[object]
) -> None:
    world = World(tmp_path)
    world.inner_run([(1, "Rome", 5), (2, "Oslo", 7)])
    world.run()
    rows = pa.table({"id": [1, 2], "city": ["Rome", "Oslo"], "amount": [5, 8]}, SHAPE)
    write_deltalake(world.inner, rows, mode="overwrite")
    assert world.run() == 1
    assert world.rows() == [("Oslo", 1, 8), ("Rome", 1, 5)]
    assert len(begun) == 1


def test_rows_that_are_not_kept_any_more_are_not_needed(
    tmp_path: Path, begun: Sequence[object]
) -> None:
    world = World(tmp_path)
    world.inner_run([(1, "Rome", 5), (2, "Oslo", 7)])
    world.run()
    world.inner_run([(1, "Rome", 6)])
    DeltaTable(world.inner).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert world.run() == 1
    assert world.rows() == [("Oslo", 1, 7), ("Rome", 1, 6)]
    assert len(begun) == 2, "it is made anew from what there is"


def test_a_pinned_version_is_the_one_that_is_read(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.inner_run([(1, "Rome", 5)])
    version = DeltaTable(world.inner).version()
    world.inner_run([(1, "Rome", 6)])
    world.run({"projection/totals": version})
    assert world.rows() == [("Rome", 1, 5)]


def test_the_rows_of_a_captured_table_are_the_versions_that_are_valid(tmp_path: Path) -> None:
    world = World(tmp_path, "shop.public.orders")

    def versions(*rows: tuple[int, str, int, bool, bool]) -> None:
        found = [
            {"id": i, "city": c, "amount": a, "valid_from": START, "_deleted": deleted}
            | {"valid_to": START if over else None}
            for i, c, a, over, deleted in rows
        ]
        table = pa.Table.from_pylist(found, VERSIONS)
        write_deltalake(world.lake.path("history/shop.public.orders"), table, mode="overwrite")

    versions((1, "Rome", 5, False, False), (2, "Rome", 7, False, False))
    world.run()
    assert world.rows() == [("Rome", 2, 12)]
    versions(
        (1, "Rome", 5, True, False),
        (1, "Oslo", 6, False, False),
        (2, "Rome", 7, True, False),
        (2, "Rome", 7, False, True),
    )
    assert world.run() == 2
    assert world.rows() == [("Oslo", 1, 6)]


def test_of_a_history_the_rows_of_changed_keys_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, taken = World(tmp_path, "shop.public.orders"), list[int]()
    add = Dataflow.add

    def counted(self: Dataflow, scan: Scan, rows: Iterable[pa.Table], *, weight: int = 1) -> None:
        parts = [*rows]
        taken.append(sum(part.num_rows for part in parts))
        add(self, scan, parts, weight=weight)

    def fold(epoch: int, *rows: tuple[int, str, int], op: str = UPSERT) -> None:
        same = {"valid_from": START, "valid_to": None, "_deleted": False, "_epoch": epoch}
        found = [dict(zip(SHAPE.names, row, strict=True)) | same for row in rows]
        came = with_op(pa.Table.from_pylist(found, FOLDED), op)
        path, guard = world.lake.path("history/shop.public.orders"), Guard("fold", Epoch(epoch))
        world.writer.merge(path, came, guard, keys=("id", "valid_from"))

    monkeypatch.setattr(Dataflow, "add", counted)
    fold(1, *((n, "Rome", n) for n in range(50)))
    world.run()
    assert taken == [50, 0]
    fold(2, (3, "Oslo", 5), (60, "Oslo", 1))
    assert world.run() == 2
    assert taken[2:] == [2, 1]
    assert world.rows() == [("Oslo", 2, 6), ("Rome", 49, 1222)]
    fold(3, (4, "Rome", 4), op=DELETE)
    assert world.run() == 1
    assert world.rows() == [("Oslo", 2, 6), ("Rome", 48, 1218)], "it left no row that tells of it"
    DeltaTable(world.lake.path("history/shop.public.orders")).optimize.compact()
    assert world.run() == 0


@pytest.mark.parametrize(("captured", "copied"), [(True, ("id",)), (False, ())])
def test_rows_of_one_copy_share_a_place_though_their_table_is_captured_no_more(
    tmp_path: Path, captured: bool, copied: tuple[str, ...]
) -> None:
    lake, tables = Lake.at(tmp_path), Tables()
    typed = [f"typed/{name}" for name in ("shop.public.orders", "events.visit.seen")]
    for name in typed:
        write_deltalake(lake.path(name), pa.Table.from_pylist([], SHAPE))
    table = CapturedTable(keys=("id",))
    captures = {"shop": {"public.orders": table}} if captured else {}
    deployed = Deployment(version=1, captures=captures, slots={}, sources={}, projections={})
    catalog = LakeCatalog(lake, tables, deployed, typed=typed, fields={})
    found = catalog.stream("shop.public.orders"), catalog.stream("events.visit")
    assert [each.copied for each in found if each] == [copied, None]
