"""A large source transaction goes to its typed table in slices: whole, once, through a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import failpoints
from kernel.positions import Epoch
from lake.executor_tasks import Executors, Task, Tasks, TasksHere
from lake.layout import Lake
from lake.table_columns import TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible
from tests.support.sources.ddl_rows import SOURCE, START, TABLE, Folding, Item

TYPED = f"typed/{SOURCE}.{TABLE}"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def large() -> Item:
    """One transaction of many rows, with DDL in the middle of it."""
    item = Item()
    item.tell("describe")
    column = item.add("a", "int4")
    for key in range(12):
        item.write("c", key, {column.attnum: key})
    column.name = "b"
    item.tell()
    for key in range(12):
        item.write("u", key, {column.attnum: -key})
    item.write("d", 3)
    item.tell("describe")
    for place, entry in enumerate(item.log, 1):
        entry |= {"transaction_id": "7", "commit_order": 5, "total_order": place}
    end = {"table": TRANSACTIONS_TABLE, "transaction_id": "7", "lsn": 900, "committed_at": START}
    item.log.append({**end, "counts": "{}"})
    return item


def bring(lake: Lake, item: Item, *, most: int, tasks: Tasks | None = None) -> dict[str, TableAt]:
    """Bring typed tables up to the only epoch, as a new process would."""
    executors = Executors(tasks=tasks)
    changes = TypedChanges(
        lake, Tables(), item.registry, most=most, slice_rows=4, executors=executors
    )
    visible = Visible(0, [(Epoch(1), 900)])
    return changes.add(
        SOURCE, visible, Epoch(1), pending_from=1, snapshot_lsn=0, current={}, brought={}
    )


def facts(lake: Lake) -> list[tuple[object, ...]]:
    rows = Tables().read(lake.path(TYPED))
    assert rows is not None
    rows = rows.sort_by("_seq_lo")
    names = ("id", "b", "_operation", "_epoch", "_transaction")
    return [tuple(row[name] for name in names) for row in rows.to_pylist()]


def left_files(lake: Lake) -> set[str]:
    """Return the names of files of executors that the typed table does not have."""
    table = Tables().open(lake.path(TYPED))
    known = set() if table is None else {Path(uri).name for uri in table.file_uris()}
    return {path.name for path in Path(lake.path(TYPED)).glob("*-e1.*.parquet")} - known


@pytest.mark.parametrize("tasks", [None, TasksHere()])
def test_p1_slices_of_a_large_transaction_are_whole_through_a_crash(
    lake: Lake, tasks: Tasks | None
) -> None:
    item = large()
    Folding(lake, item).append(item.log)
    failpoints.arm(failpoints.TYPED_AFTER_PART, hit=2 if tasks is None else 1)
    with pytest.raises(failpoints.Crash):
        bring(lake, item, most=5, tasks=tasks)
    if tasks is None:
        assert 0 < len(facts(lake)) < 25
    else:
        assert left_files(lake)
        assert Tables().open(lake.path(TYPED)) is None
    bring(lake, item, most=5, tasks=tasks)
    sliced = facts(lake)
    assert not left_files(lake)
    bring(lake, item, most=5, tasks=tasks)
    assert facts(lake) == sliced
    calm = Lake(f"{lake.root}-calm")
    Folding(calm, item).append(item.log)
    bring(calm, item, most=1000)
    assert sliced == facts(calm)
    # A crash before its epoch is noted: the columns that a new table began with stay as they are.
    bring(calm, item, most=1000)
    assert sliced == facts(calm)
    assert [row[:3] for row in sliced[-3:]] == [(10, -10, "u"), (11, -11, "u"), (3, None, "d")]
    assert sliced[5][:3] == (5, 5, "c")


def test_files_that_executors_wrote_before_one_declined_go_with_the_drivers_commit(
    lake: Lake,
) -> None:
    item = large()
    Folding(lake, item).append(item.log)

    def declined(task: Task, parts: int) -> None:
        assert TasksHere()(task, parts)
        assert left_files(lake)

    bring(lake, item, most=5, tasks=declined)
    assert len(facts(lake)) == 25
    assert not left_files(lake)
