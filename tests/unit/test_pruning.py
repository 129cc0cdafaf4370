"""Bounds written into a MERGE: they skip files and change no result."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kernel.positions import Epoch
from lake.datasets import paths_of
from lake.file_merges import MOST_BYTES, FileMerges
from lake.pruning import RANGES, within
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard


def test_ranges_follow_the_gaps() -> None:
    rows = pa.table({"id": pa.array([5, 1_000_003, 6, 1_000_001], pa.int64())})
    assert within(rows, ["id"], "t") == (
        '(t."id" >= 5 AND t."id" <= 6) OR (t."id" >= 1000001 AND t."id" <= 1000001) OR '
        '(t."id" >= 1000003 AND t."id" <= 1000003)'
    )


def test_there_are_never_many_ranges() -> None:
    rows = pa.table({"id": pa.array(range(0, 10_000, 7), pa.int64())})
    found = within(rows, ["id"], "t")
    assert found is not None
    assert found.count(" OR ") == RANGES - 1


def test_a_key_without_plain_literals_has_no_bounds() -> None:
    assert within(pa.table({"at": pa.array([1.5])}), ["at"], "t") is None
    nulls = pa.table({"id": pa.array([None], pa.int64())})
    assert within(nulls, ["id"], "t") is None


@pytest.mark.parametrize("here", [False, True])
@pytest.mark.parametrize("text", [False, True])
def test_files_without_the_keys_are_not_rewritten(tmp_path: Path, text: bool, here: bool) -> None:
    path, tables = str(tmp_path / "t"), Tables()
    writer = ArrowWriter(tables, files=FileMerges(most_bytes=MOST_BYTES if here else 0))
    kind = pa.string() if text else pa.int64()

    def key(number: int) -> object:
        return f"it's {number:06d}" if text else number

    for part in range(4):
        ids = [key(part * 100 + i) for i in range(100)]
        frame = pa.table({"id": pa.array(ids, kind), "n": pa.array([0] * 100)})
        writer.append(path, frame, Guard("t", Epoch(part + 1)))
    table = tables.open(path)
    assert table is not None
    before = paths_of(table)
    changed = [key(310), key(320), key(999)]
    rows = pa.table({"id": pa.array(changed, kind), "n": [1, 1, 1], OP: [UPSERT] * 3})
    writer.merge(path, rows, Guard("t", Epoch(9)), keys=["id"])
    found = table.to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in found if row["n"] == 1) == sorted(changed)
    assert len(found) == 401
    assert len(before - paths_of(table)) == 1
