"""What every `PutTogether` promises: executors leave the rows that the driver leaves."""

from __future__ import annotations

import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.upkeep.compaction import (
    MANY_FILES,
    LargeCompaction,
    PutTogether,
    compact,
    put_together_here,
)
from lake.upkeep.spark_compaction import SparkCompaction
from lake.writer import ArrowWriter, Guard

NAME = "log/x"
MANY, FEW = "public.it's \\ a `name`", "few"
SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("epoch", pa.int64()),
        ("small", pa.int32()),
        ("value", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(20, 4)),
        ("ratio", pa.float64()),
        ("flag", pa.bool_()),
        ("many", pa.list_(pa.string())),
        ("both", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)


@pytest.fixture(params=["driver", "executors"])
def by(request: pytest.FixtureRequest, spark: SparkSession) -> PutTogether:
    """Ask for the session by name: who asks at run time has a worker start one of its own."""
    return put_together_here if request.param == "driver" else SparkCompaction(spark)


def row(table: str, number: int) -> dict[str, object]:
    """Make a row whose every column but the first two is null now and then."""
    values = {
        "small": -number,
        "value": b"\0\xff" * number,
        "at": datetime(1900, 1, 1, 0, 0, 0, number, tzinfo=UTC),
        "day": date(1, 1, 1 + number % 28),
        "amount": Decimal(number) / 16,
        "ratio": (float("nan"), float("inf"), -0.0, number / 3)[number % 4],
        "flag": number % 2 == 0,
        "many": ["a", None, "ß"][: number % 4],
        "both": {"a": number, "b": None},
    }
    kept = {
        name: value for place, (name, value) in enumerate(values.items()) if number % 11 != place
    }
    return {"table": table, "epoch": number, **kept}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Write a table with one partition of many small files, and one of few."""
    lake = Lake.at(tmp_path_factory.mktemp("made"))
    writer, path = ArrowWriter(Tables()), lake.path(NAME)
    for number in range(1, MANY_FILES + 1):
        rows = [row(MANY, number)] + ([row(FEW, number)] if number <= 2 else [])
        batch = pa.Table.from_pylist(rows, SCHEMA)
        writer.append(path, batch, Guard(NAME, Epoch(number)), partition_by=["table"])
    return lake


@pytest.fixture
def lake(made: Lake, tmp_path: Path) -> Lake:
    """Return a lake of the test's own, with that table."""
    shutil.copytree(made.root, tmp_path / "lake")
    return Lake.at(tmp_path / "lake")


def opened(lake: Lake, tables: Tables) -> DeltaTable:
    table = tables.open(lake.path(NAME))
    assert table is not None
    return table


def content(tables: Tables, lake: Lake, version: int | None = None) -> list[str]:
    """Return the rows, in one order, with NaN and the sign of zero told apart."""
    rows = tables.read(lake.path(NAME), version=version)
    assert rows is not None
    assert rows.schema.field("at").type == pa.timestamp("us", tz="UTC")
    return sorted(repr(sorted(each.items())) for each in rows.to_pylist())


def test_rows_guards_and_old_versions_stay(lake: Lake, by: PutTogether) -> None:
    tables = Tables()
    table = opened(lake, tables)
    before, version, schema = content(tables, lake), table.version(), table.schema()
    assert compact(lake, tables, [NAME], LargeCompaction(most_bytes=0, by=by)) == [NAME]
    table = opened(lake, tables)
    assert content(tables, lake) == before
    assert content(tables, lake, version) == before
    assert table.schema() == schema
    assert table.transaction_version(NAME) == MANY_FILES
    files = pa.table(table.get_add_actions(flatten=True))
    assert sorted(files["partition.table"].to_pylist()) == sorted([MANY, FEW, FEW])
    (whole,) = (each for each in files.to_pylist() if each["partition.table"] == MANY)
    assert (whole["num_records"], whole["min.epoch"], whole["max.epoch"]) == (MANY_FILES, 1, 96)
    assert compact(lake, tables, [NAME], LargeCompaction(most_bytes=0, by=by)) == []


@pytest.mark.matrix
def test_one_that_is_overtaken_changes_nothing(lake: Lake, by: PutTogether) -> None:
    """Another writer takes a file out while the new ones are written."""
    tables = Tables()

    def overtaken(table: DeltaTable, partitions: list[str | None], size: int) -> None:
        DeltaTable(lake.path(NAME)).delete("epoch = 3")
        by(table, partitions, size)

    compact(lake, tables, [NAME], LargeCompaction(most_bytes=0, by=overtaken))
    rows = tables.read(lake.path(NAME))
    assert rows is not None
    assert 3 not in rows["epoch"].to_pylist()
    assert rows.num_rows == MANY_FILES + 2 - 1


def test_only_much_goes_to_executors(lake: Lake) -> None:
    tables = Tables()

    def never(table: DeltaTable, partitions: list[str | None], size: int) -> None:
        raise AssertionError("little is written here")

    assert compact(lake, tables, [NAME], LargeCompaction(most_bytes=2**20, by=never)) == [NAME]
