"""Files and keys whose types are not those of their table: they never join it as something else."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from kernel.errors import Incompatible
from lake.adoption import commit_staged
from lake.layout import Lake
from lake.staged_files import StagedFiles
from lake.tables import Tables
from pipeline.installs.install_book import ALL, Install
from pipeline.installs.vanished_keys import Vanished, gone_keys
from schemas.registry import MemoryRegistry

STORED = pa.schema(
    [
        ("id", pa.int64()),
        ("x", pa.int32()),
        ("s", pa.struct([("a", pa.int32()), ("b", pa.int32())])),
    ]
)


@pytest.mark.parametrize(
    "files",
    [
        pa.table({"id": [1], "x": pa.array([1.75])}),
        pa.table({"id": [1], "x": pa.array([2**40], pa.int64())}),
        pa.table({"id": [1], "s": pa.array([{"a": 1.75}], pa.struct([("a", pa.float64())]))}),
        pa.table({"id": [1], "s": pa.array([{"c": 1}], pa.struct([("c", pa.int32())]))}),
    ],
)
def test_files_of_other_types_do_not_join_a_table(tmp_path: Path, files: pa.Table) -> None:
    table = Tables().ensure(str(tmp_path / "table"), STORED)
    staged = StagedFiles(table)
    staged.write(files)
    with pytest.raises(Incompatible, match="as they are"):
        commit_staged(table, staged.close(), staged.schemas, "t", 1)
    assert table.count() == 0


def test_files_that_lack_fields_or_have_more_columns_join_a_table(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    table = Tables().ensure(path, STORED)
    staged = StagedFiles(table)
    staged.write(
        pa.table(
            {
                "id": [1],
                "s": pa.array([{"b": 2}], pa.struct([("b", pa.int32())])),
                "more": pa.array(["z"], pa.large_string()),
            }
        )
    )
    commit_staged(table, staged.close(), staged.schemas, "t", 1)
    rows = Tables().read(path)
    assert rows is not None
    assert rows.to_pylist() == [{"id": 1, "x": None, "s": {"a": None, "b": 2}, "more": "z"}]


def test_keys_that_installs_take_away_are_kept_when_their_type_became_a_wider_one(
    lake: Lake,
) -> None:
    tables = Tables()
    kept = [pa.table({"id": pa.array([7], pa.int32())}), pa.table({"id": [2**40]})]
    for number, keys in enumerate(kept):
        install = Install(
            id=f"i{number}",
            source="shop",
            table="public.orders",
            kind=ALL,
            low=None,
            high=None,
            lsn=number,
            columns=(),
            keys=("id",),
            rows=0,
            read_at=datetime(2013, 1, 1, tzinfo=UTC),
            lsns=(),
        )
        Vanished(lake, tables, MemoryRegistry(), install).keep(keys)
    for number, keys in enumerate(kept):
        gone = gone_keys(lake, tables, source="shop", table="public.orders", install=f"i{number}")
        assert gone is not None
        assert gone.to_pylist() == keys.to_pylist()
