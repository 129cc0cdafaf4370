"""Tables of a local lake are read by Arrow itself, whatever their folders are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from lake.datasets import dataset_of, dataset_since
from lake.tables import Tables

ODD = ["a b", "public.orders", "ü", "a%20b", "q/w", "#h", "a=b", "it's", "x:y", "plain"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    where = str(tmp_path / "a lake")
    rows = pa.table({"place": ODD, "n": list(range(len(ODD)))})
    write_deltalake(where, rows, partition_by=["place"])
    return where


def test_odd_names_of_folders_and_partitions(path: str) -> None:
    rows = dataset_of(DeltaTable(path)).to_table().to_pylist()
    assert {row["place"]: row["n"] for row in rows} == {name: i for i, name in enumerate(ODD)}


def test_files_below_a_bound_are_not_looked_at(path: str) -> None:
    found = dataset_since(DeltaTable(path), "n", 4)
    assert {row["place"]: row["n"] for row in found.to_table().to_pylist()} == {
        name: i for i, name in enumerate(ODD) if i >= 4
    }
    assert found.to_table(filter=pc.field("place") == "it's")["n"].to_pylist() == [
        ODD.index("it's")
    ]
    assert dataset_since(DeltaTable(path), "absent", 4).count_rows() == len(ODD)
    read = Tables().read(path, since=("n", 9), columns=["place"])
    assert read is not None
    assert read["place"].to_pylist() == ["plain"]


def test_arrow_reads_local_files_without_python(path: str) -> None:
    files = dataset_of(DeltaTable(path)).filesystem
    assert isinstance(files, fs.SubTreeFileSystem)
    assert isinstance(files.base_fs, fs.LocalFileSystem)


def test_a_process_that_read_ends_in_order(path: str) -> None:
    code = (
        "import sys; from deltalake import DeltaTable; from lake.datasets import *; "
        "print(sum(dataset_of(DeltaTable(sys.argv[1])).to_table().num_rows for _ in range(20)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(20 * len(ODD)))
