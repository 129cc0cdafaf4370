"""A filter finds the rows that it asks for, whoever wrote the file and its bounds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake import datasets
from lake.adoption import commit_staged
from lake.datasets import dataset_of, for_duckdb, scanner_of
from lake.file_merges import FileMerges
from lake.staged_files import StagedFiles
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.ddl.unchanged_values import any_of

UTC_US = pa.timestamp("us", "UTC")
MOMENTS = [
    datetime(2020, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
    datetime(2020, 1, 1, 0, 0, 5, 999999, tzinfo=UTC),
]
COLUMNS = {
    "text": pa.array(["a", "b"]),
    "long": pa.array(["b" * 100 + "1", "b" * 100 + "z"]),
    "greatest": pa.array([chr(0x10FFFF) * 80, "é" * 90]),
    "money": pa.array([Decimal("19.99"), Decimal("0.10")], pa.decimal128(12, 2)),
    "exact": pa.array(
        [Decimal("-12345678901234567890.123456789"), Decimal("0.000000001")], pa.decimal128(38, 9)
    ),
    "count": pa.array([Decimal(10**20 - 1), Decimal(12345678901234567)], pa.decimal128(20, 0)),
    "ratio": pa.array([1.5, -0.1]),
    "single": pa.array([0.1, 1e30], pa.float32()),
    "endless": pa.array([1.0, float("inf")]),
    "flag": pa.array([True, False]),
    "bytes": pa.array([b"\xff" * 80, b"\x00"]),
    "whole": pa.array([2**62 + 1, -(2**63)]),
    "small": pa.array([5, -7], pa.int32()),
    "day": pa.array([date(1, 1, 1), date(9999, 12, 31)]),
    "farther": pa.array([3_000_000, -800_000], pa.int32()).cast(pa.date32()),
    "zoned": pa.array(MOMENTS, UTC_US),
    "plain": pa.array([moment.replace(tzinfo=None) for moment in MOMENTS], pa.timestamp("us")),
}
NULLS = {
    "some": pa.array([None, 3]),
    "all": pa.array([None, None], pa.int64()),
    "word": pa.array([None, "a"]),
}


def appended(path: str, rows: pa.Table) -> None:
    ArrowWriter(Tables()).append(path, rows, Guard("t", Epoch(1)))


def merged(path: str, rows: pa.Table) -> None:
    """As deltalake's MERGE leaves it: texts are views."""
    writer = ArrowWriter(Tables(), files=FileMerges(most_bytes=0))
    writer.append(path, rows, Guard("t", Epoch(1)))
    upserts = rows.append_column(OP, pa.array([UPSERT] * rows.num_rows))
    writer.merge(path, upserts, Guard("t", Epoch(2)), keys=["n"])


def staged(path: str, rows: pa.Table) -> None:
    table = Tables().ensure(path, rows.schema)
    files = StagedFiles(table)
    files.write(rows)
    commit_staged(table, files.close(), files.schemas, "t", 1)


Write = Callable[[str, pa.Table], None]
WRITES = pytest.mark.parametrize("write", [appended, merged, staged])


def table_of(values: pa.Array) -> pa.Table:
    return pa.table({"v": values, "n": range(len(values))})


@WRITES
@pytest.mark.parametrize("column", COLUMNS)
def test_each_value_is_found_by_itself(write: Write, column: str, tmp_path: Path) -> None:
    rows, path = table_of(COLUMNS[column]), str(tmp_path / "a")
    write(path, rows)
    tables = Tables()
    for number, value in enumerate(rows["v"]):
        for where in (pc.field("v") == value, any_of(rows.select(["v"]).slice(number, 1))):
            found = tables.read(path, where=where, columns=["n"])
            assert found is not None
            assert found["n"].to_pylist() == [number]
    with duckdb.connect() as connection:
        connection.register("t", for_duckdb(dataset_of(DeltaTable(path))))
        connection.register("wanted", rows.select(["v"]))
        joined = connection.sql("SELECT n FROM t JOIN wanted USING (v) ORDER BY n").fetchall()
        assert joined == [(0,), (1,)]
        connection.register("first", rows.select(["v"]).slice(0, 1))
        one = connection.execute("SELECT n FROM t WHERE v = (SELECT v FROM first)")
        assert one.fetchall() == [(0,)]


@WRITES
@pytest.mark.parametrize("column", NULLS)
def test_rows_without_a_value_are_found(write: Write, column: str, tmp_path: Path) -> None:
    rows, path = table_of(NULLS[column]), str(tmp_path / "a")
    write(path, rows)
    found = Tables().read(path, where=pc.field("v").is_null())
    assert found is not None
    assert found.num_rows == rows["v"].null_count


@pytest.mark.parametrize("column", sorted({*COLUMNS} - {"endless", "greatest", "farther"}))
def test_copied_rows_are_found_through_deltalake_too(column: str, tmp_path: Path) -> None:
    """Which takes a column without bounds for null, where others of the file have bounds."""
    rows, path = table_of(COLUMNS[column]), str(tmp_path / "a")
    staged(path, rows)
    for checkpoint in (False, True):
        if checkpoint:
            DeltaTable(path).create_checkpoint()
        theirs = DeltaTable(path).to_pyarrow_dataset()
        for number, value in enumerate(rows["v"]):
            found = theirs.to_table(filter=pc.field("v") == value)
            assert found["n"].to_pylist() == [number]


@WRITES
def test_files_beyond_a_filter_are_not_read(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(str(path), pa.table({"v": [1, 2], "n": [1, 2]}))
    for file in path.rglob("*.parquet"):
        file.unlink()
    found = Tables().read(str(path), where=pc.field("n") > 2)
    assert found is not None
    assert found.num_rows == 0
    with pytest.raises(FileNotFoundError):
        Tables().read(str(path), where=pc.field("n") > 1)


def test_of_merged_files_only_what_a_filter_needs_is_read(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    merged(path, pa.table({"v": ["a", "b"], "n": [1, 2], "value": ["x", "y"], "more": [1, 2]}))
    rows = dataset_of(DeltaTable(path))
    where = pc.field("v") == "b"
    assert datasets._needed_for_views(rows, where) == {"v"}
    assert datasets._needed_for_views(rows, pc.is_in(pc.field("n"), pa.array([1]))) is None
    assert scanner_of(rows, where, ["more"]).to_table().to_pylist() == [{"more": 2}]
    assert scanner_of(rows, where & (pc.field("n") > 5)).to_table().num_rows == 0
    assert scanner_of(rows, where & (pc.field("n") > 1), ["value"]).count_rows() == 1
