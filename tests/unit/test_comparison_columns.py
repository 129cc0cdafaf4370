"""Two generations are compared whatever their columns are called, and whatever lists hold."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from replay.comparison import row_differences
from replay.differences import RowDifferences

DEEP = pa.list_(pa.list_(pa.int64()))
OURS = ["expected", "ours", "theirs", "k", "live", "built", "judged", "different"]
"""Names that the comparison's own statements have."""


def compared(folder: Path, live: pa.Array, built: pa.Array, column: str = "x") -> RowDifferences:
    tables = []
    for name, values in (("live", live), ("built", built)):
        path = str(folder / name)
        write_deltalake(path, pa.table({"id": range(len(values)), column: values}))
        tables.append(DeltaTable(path))
    return row_differences(*tables, key=("id",), columns=("id", column), expect="built.id = 99")


@pytest.mark.parametrize("column", OURS)
def test_a_column_may_have_any_name(tmp_path: Path, column: str) -> None:
    found = compared(tmp_path, pa.array([1, 2]), pa.array([1, 3]), column)
    assert (found.differing, found.expected) == (1, 0)
    assert [(each.name, each.live, each.built) for each in found.drift] == [(column, "2", "3")]


@pytest.mark.parametrize(
    "value", [[[1, 2], [3]], [[1], None], [None], [[]], [[], []], [[1], []], [], None]
)
def test_lists_of_lists_are_equal_to_themselves_alone(
    tmp_path: Path, value: list[list[int] | None] | None
) -> None:
    others = [[[1], [2, 3]], [[1, None]], [[None]], [[1, 2, 3]], [[1]], [[0], []], [[], [], []]]
    values = [value] * (1 + len(others))
    same = compared(tmp_path / "same", pa.array(values, DEEP), pa.array(values, DEEP))
    assert same.differing == 0
    found = compared(tmp_path / "other", pa.array(values, DEEP), pa.array([value, *others], DEEP))
    assert found.differing == len(others)
