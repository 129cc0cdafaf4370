"""Rows are brought to new columns a few at a time, however wide they are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lake.executor_tasks import TasksHere
from lake.file_batches import BATCH_BYTES
from lake.tables import Tables
from pipeline.ddl import table_rewrites
from pipeline.ddl.steps import Renamed, Step
from pipeline.ddl.table_rewrites import evolve, rewritten_ahead

WIDE = 200_000
ROWS = 5 * BATCH_BYTES // WIDE
STEPS: list[Step] = [Renamed("text", "words")]


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """Return the path of a table with one file of wide rows."""
    rows = {"id": list(range(ROWS)), "text": [str(n % 10) * WIDE for n in range(ROWS)]}
    write_deltalake(str(tmp_path / "wide"), pa.table(rows))
    return str(tmp_path / "wide")


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what the batches come to take that steps are applied to."""
    found: list[int] = []
    real = table_rewrites.apply

    def noting(rows: pa.Table, steps: list[Step]) -> pa.Table:
        if rows.num_rows:
            found.append(rows.nbytes)
        return real(rows, steps)

    monkeypatch.setattr(table_rewrites, "apply", noting)
    return found


@pytest.mark.parametrize("beside", [False, True], ids=["in the turn", "beside"])
def test_wide_rows_are_never_in_memory_all_at_once(
    wide: str, sizes: list[int], beside: bool
) -> None:
    if beside:
        assert rewritten_ahead(DeltaTable(wide), STEPS, TasksHere()) is not None
    else:
        assert evolve(Tables(), wide, STEPS, None)
        rows = DeltaTable(wide).to_pyarrow_table()
        assert (rows.num_rows, rows.schema.names) == (ROWS, ["id", "words"])
    assert len(sizes) >= 4
    assert max(sizes) <= 2 * BATCH_BYTES


def test_rows_with_lists_are_brought_along_too(tmp_path: Path) -> None:
    path = str(tmp_path / "lists")
    write_deltalake(path, pa.table({"text": ["a", "b"], "tags": [["x"], []]}))
    assert evolve(Tables(), path, STEPS, None)
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted(rows, key=str) == [{"words": "a", "tags": ["x"]}, {"words": "b", "tags": []}]
