"""A fold in slices is planned from all of its rows, also where no DDL was told."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import pytest

from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, Tasks, TasksHere
from lake.layout import Lake, changes_log, current_name
from lake.tables import Tables
from pipeline.current import image_stager
from pipeline.current.tables import CurrentTables
from pipeline.ddl.table_plans import SchemaFollower
from pipeline.log.large_folds import LogRows, slices
from tests.support.sources.ddl_rows import SOURCE, TABLE, Column, Folding, Item


@pytest.mark.parametrize("tasks", [None, TasksHere()])
@pytest.mark.parametrize(("kind", "values"), [("int8", [2**40, 2**40 + 1]), ("text", ["x", "y"])])
def test_a_type_that_changes_behind_the_first_slice_is_planned_for(
    lake: Lake,
    kind: str,
    values: list[Any],
    tasks: Tasks | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = slices
    monkeypatch.setattr(image_stager, "slices", lambda rows: cut(rows, most=2))
    item = Item()
    item.attnum += 1
    item.columns.append(Column(2, "a", "int4"))
    for key in range(6):
        item.write("c", key, {2: key})
    item.columns[-1].type = kind
    for key, value in enumerate(values, start=6):
        item.write("c", key, {2: value})
    for place, entry in enumerate(item.log, start=1):
        entry |= {"transaction_id": "7", "commit_order": 5, "total_order": place}
    Folding(lake, item).append(item.log)
    tables = Tables()
    log = tables.open(lake.path(changes_log(SOURCE)))
    assert log is not None
    rows = LogRows(dataset_of(log), pc.field("table") == TABLE)
    follower = SchemaFollower(lake, tables, item.registry)
    (planned,) = (
        plan
        for _, plan in follower.plans(
            SOURCE, {TABLE: rows.planned()}, {"7"}, lambda table: None, from_epoch=1
        ).values()
    )
    if kind == "text":
        assert planned.hold is not None
        assert planned.hold.reason == "column a was int32 and is string"
        return
    executors = Executors(tasks=tasks)
    current = CurrentTables(lake, tables, item.registry, executors=executors)
    current.fold_large(SOURCE, TABLE, rows, Epoch(1), planned.evolution)
    found = tables.read(lake.path(current_name(SOURCE, TABLE)))
    assert found is not None
    assert sorted(found["a"].to_pylist()) == [*range(6), *values]
