"""What every `TableWriter` promises; the Arrow and the Spark writer run the same suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from kernel.errors import Incompatible, LeaseLost
from kernel.positions import Epoch
from lake.file_merges import MOST_BYTES, FileMerges
from lake.spark_writer import SparkWriter
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, ArrowWriter, Guard, TableWriter, with_op

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("n", pa.int64()),
        ("m", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
AT = datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)
WRITERS = ("arrow", "spark")
CASES = (
    ("arrow", "folder"),
    ("arrow_merge", "folder"),
    ("spark", "folder"),
    ("arrow", "s3"),
)

MOMENT = pa.timestamp("us", "UTC")
LOST = [
    (pa.int32(), 1, pa.float64(), 1.75),
    (pa.int32(), 1, pa.int64(), 2**40),
    (pa.int64(), 1, pa.decimal128(20, 4), Decimal("1.7555")),
    (pa.decimal128(10, 2), Decimal("1.00"), pa.decimal128(20, 4), Decimal("1.7555")),
    (pa.float64(), 1.5, pa.int64(), 2**53 + 1),
    (pa.float64(), 1.5, pa.decimal128(20, 2), Decimal("123456789012345678.91")),
    (pa.float32(), 1.5, pa.float64(), 0.1),
    (pa.date32(), 1, MOMENT, datetime(2013, 1, 1, 5, tzinfo=UTC)),
    (pa.int64(), 1, pa.string(), "one"),
    (pa.int64(), 1, pa.string(), "007"),
    (pa.struct([("a", pa.int32())]), {"a": 1}, pa.struct([("a", pa.float64())]), {"a": 1.75}),
    (pa.list_(pa.int32()), [1], pa.list_(pa.float64()), [1.75]),
    (pa.decimal128(10, 2), Decimal("1.00"), pa.float64(), 0.129),
    (pa.decimal128(10, 2), Decimal("1.00"), pa.float32(), 0.129),
    (pa.decimal128(10, 2), Decimal("1.00"), pa.int64(), 10**9),
    (pa.bool_(), True, pa.int64(), 2),
    (pa.bool_(), True, pa.float64(), 0.5),
    (pa.bool_(), True, pa.decimal128(10, 2), Decimal("2.50")),
    (pa.int64(), 1, MOMENT, datetime(2013, 1, 1, 5, tzinfo=UTC)),
    (MOMENT, datetime(2013, 1, 1, 5, tzinfo=UTC), pa.int64(), 1),
    (
        pa.map_(pa.string(), pa.decimal128(10, 2)),
        [("a", Decimal("1.00"))],
        pa.map_(pa.string(), pa.float64()),
        [("a", 0.129)],
    ),
]
"""A stored column's type and a value in it, and rows' type with a value that is lost in it."""
HELD = [
    (pa.int64(), 1, pa.int32(), 2),
    (pa.int32(), 1, pa.int64(), 2),
    (pa.float64(), 1.5, pa.int32(), 2),
    (pa.float64(), 1.5, pa.decimal128(20, 2), Decimal("2.5")),
    (pa.float32(), 1.5, pa.float64(), 2.5),
    (pa.int32(), 1, pa.null(), None),
    (pa.string(), "a", pa.large_string(), "b"),
    (pa.decimal128(20, 4), Decimal("1.7555"), pa.decimal128(10, 2), Decimal("2.50")),
    (pa.struct([("a", pa.int64())]), {"a": 1}, pa.struct([("a", pa.int32())]), {"a": 2}),
    (pa.list_(pa.int64()), [1], pa.list_(pa.int32()), [2]),
    (pa.decimal128(10, 2), Decimal("1.50"), pa.int64(), 2),
    (pa.decimal128(10, 2), Decimal("1.50"), pa.float64(), 2.5),
    (pa.bool_(), False, pa.int64(), 1),
    (pa.list_(pa.decimal128(10, 2)), [Decimal("1.50")], pa.list_(pa.int64()), [2]),
    (
        pa.struct([("a", pa.decimal128(10, 2))]),
        {"a": Decimal("1.50")},
        pa.struct([("a", pa.int64())]),
        {"a": 2},
    ),
    (pa.date32(), date(2013, 1, 1), MOMENT, None),
    (MOMENT, AT, pa.int64(), None),
    (pa.bool_(), True, pa.decimal128(10, 2), None),
    (pa.date32(), date(2013, 1, 1), pa.binary(), None),
    (pa.int64(), 1, pa.list_(pa.int64()), None),
]

Row = tuple[int, str | None, int]


def rows_of(*rows: Row, ops: Sequence[str] = ()) -> pa.Table:
    """Rows as (id, name, n); m is n again."""
    made = pa.Table.from_pylist(
        [{"id": i, "name": name, "n": n, "m": n, "at": AT} for i, name, n in rows], schema=SCHEMA
    )
    return made.append_column(OP, pa.array(ops, pa.string())) if ops else made


def no_rows(*, ops: bool = False) -> pa.Table:
    fields = [*SCHEMA, pa.field(OP, pa.string())] if ops else list(SCHEMA)
    return pa.schema(fields).empty_table()


class Subject:
    """A writer under test that takes Arrow rows, whatever the writer itself takes."""

    def __init__(
        self, writer: TableWriter[Any], tables: Tables, convert: Callable[[pa.Table], object]
    ) -> None:
        self.tables = tables
        self._writer = writer
        self._convert = convert

    def append(self, path: str, rows: pa.Table, epoch: int, *, app: str = "t", **more: Any) -> int:
        return self._writer.append(path, self._convert(rows), Guard(app, Epoch(epoch)), **more)

    def overwrite(self, path: str, rows: pa.Table, epoch: int, *, again: bool = False) -> int:
        guard = Guard("t", Epoch(epoch), again)
        return self._writer.overwrite(path, self._convert(rows), guard)

    def merge(
        self,
        path: str,
        rows: pa.Table,
        epoch: int,
        *,
        keys: Sequence[str] = ("id",),
        newer: Sequence[str] = (),
        again: bool = False,
    ) -> int:
        guard = Guard("t", Epoch(epoch), again)
        return self._writer.merge(path, self._convert(rows), guard, keys=keys, newer=newer)

    def reached(self, path: str) -> int | None:
        table = self.tables.open(path)
        assert table is not None
        return table.transaction_version("t")


def subject(kind: str, spark: SparkSession, tables: Tables) -> Subject:
    if kind in ("arrow", "arrow_merge"):
        # Without files that it may merge by itself, deltalake's MERGE does all merges.
        files = FileMerges(most_bytes=MOST_BYTES if kind == "arrow" else 0)
        return Subject(ArrowWriter(tables, files=files), tables, lambda rows: rows)

    def frame(rows: pa.Table) -> object:
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        return spark.createDataFrame(rows if rows.num_rows else [], columns)

    return Subject(SparkWriter(spark, tables), tables, frame)


@pytest.fixture(
    params=[
        *CASES[:2],
        *(pytest.param(other, marks=pytest.mark.matrix) for other in (*CASES[2:], ("spark", "s3"))),
    ],
    ids="-".join,
)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Who writes, and where."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def writer(case: tuple[str, str], spark: SparkSession) -> Subject:
    return subject(case[0], spark, Tables())


@pytest.fixture
def path(case: tuple[str, str], request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if case[1] == "folder":
        return str(tmp_path / "table")
    root: str = request.getfixturevalue("bucket_lake")
    return f"{root}/of@20two"


def by_cases(*quick: tuple[str, str]) -> pytest.MarkDecorator:
    """Try these cases in `make test`, and all of them in the matrix."""
    others = [case for case in (*CASES, ("spark", "s3")) if case not in quick]
    slow = [pytest.param(case, marks=pytest.mark.matrix) for case in others]
    return pytest.mark.parametrize("case", [*quick, *slow], ids="-".join, indirect=True)


everywhere = by_cases(*CASES)
"""By Spark and on S3 in `make test`, too: what the two writers do each in a way of its own."""


def stored(path: str) -> list[Row]:
    rows = Tables().read(path)
    assert rows is not None
    found = [(row["id"], row["name"], row["n"]) for row in rows.to_pylist()]
    return sorted(found, key=lambda row: (row[0], row[1] or "", row[2]))


@everywhere
def test_the_same_append_twice_has_the_effect_of_once(writer: Subject, path: str) -> None:
    first = writer.append(path, rows_of((1, "a", 1), (2, "b", 1)), 1)
    assert writer.append(path, rows_of((1, "a", 1), (2, "b", 1)), 1) == first
    assert stored(path) == [(1, "a", 1), (2, "b", 1)]


def test_an_older_epoch_is_skipped(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1)), 7)
    writer.append(path, rows_of((2, "b", 1)), 6)
    writer.merge(path, rows_of((3, "c", 1), ops=[UPSERT]), 7)
    writer.overwrite(path, rows_of((4, "d", 1)), 5)
    assert stored(path) == [(1, "a", 1)]
    assert writer.reached(path) == 7


@everywhere
def test_rows_of_an_epoch_that_is_there_can_be_put_right(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1)), 7)
    merged = writer.merge(path, rows_of((1, "b", 2), ops=[UPSERT]), 7, again=True)
    assert stored(path) == [(1, "b", 2)]
    assert writer.overwrite(path, rows_of((2, "c", 3)), 7, again=True) > merged
    assert stored(path) == [(2, "c", 3)]
    assert writer.reached(path) == 7
    writer.overwrite(path, rows_of((3, "d", 4)), 6, again=True)
    assert stored(path) == [(2, "c", 3)]


def test_another_writers_epochs_do_not_matter(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1)), 7, app="another")
    writer.append(path, rows_of((2, "b", 1)), 1)
    assert stored(path) == [(1, "a", 1), (2, "b", 1)]


def test_a_merge_without_effect_still_carries_its_guard(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1)), 1)
    writer.merge(path, rows_of((9, None, 0), ops=[DELETE]), 2)
    assert writer.reached(path) == 2
    writer.merge(path, no_rows(ops=True), 3)
    assert writer.reached(path) == 3
    assert stored(path) == [(1, "a", 1)]


@everywhere
def test_merge_upserts_and_deletes_by_key(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1), (2, "b", 1), (3, "c", 1)), 1)
    changes = rows_of((1, "A", 2), (2, None, 2), (4, "d", 2), ops=[UPSERT, DELETE, UPSERT])
    version = writer.merge(path, changes, 2)
    assert stored(path) == [(1, "A", 2), (3, "c", 1), (4, "d", 2)]
    assert writer.merge(path, changes, 2) == version


def test_null_in_a_key_is_a_value_like_any_other(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 0), (2, "a", 0)), 1)
    writer.append(path, rows_of((3, None, 0), (4, None, 0), (5, None, 0)), 2)
    writer.append(path, rows_of((6, "z", 0)), 3)
    changes = rows_of(
        (1, "a", 9), (3, None, 9), (4, None, 9), (6, None, 9), ops=[UPSERT, UPSERT, DELETE, UPSERT]
    )
    writer.merge(path, changes, 4, keys=["name", "id"])
    assert stored(path) == [
        (1, "a", 9),
        (2, "a", 0),
        (3, None, 9),
        (5, None, 0),
        (6, None, 9),
        (6, "z", 0),
    ]


def test_merge_into_an_empty_table_leaves_deleted_keys_out(writer: Subject, path: str) -> None:
    writer.merge(path, rows_of((1, "a", 1), (2, None, 1), ops=[UPSERT, DELETE]), 1)
    assert stored(path) == [(1, "a", 1)]
    assert writer.reached(path) == 1


@everywhere
def test_merge_keeps_a_stored_row_that_is_newer(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 5), (2, "b", 5), (3, "c", 5)), 1)
    changes = rows_of((1, "old", 4), (2, "same", 5), (3, "new", 6), ops=[UPSERT] * 3)
    writer.merge(path, changes, 2, newer=["n", "m"])
    assert stored(path) == [(1, "a", 5), (2, "same", 5), (3, "new", 6)]


def test_append_and_merge_add_columns(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1)), 1)
    wider = rows_of((2, "b", 1)).append_column("x", pa.array([1.5]))
    writer.append(path, wider, 2)
    widest = rows_of((1, "A", 2), ops=[UPSERT]).append_column("y", pa.array(["new"]))
    writer.merge(path, widest, 3)
    rows = Tables().read(path)
    assert rows is not None
    kept = {row["id"]: (row["name"], row["x"], row["y"]) for row in rows.to_pylist()}
    assert kept == {1: ("A", None, "new"), 2: ("b", 1.5, None)}


def test_a_time_without_a_zone_may_come_later(writer: Subject, path: str) -> None:
    """Delta has a feature of its own for these columns, which a table without any does not have."""
    clock = AT.replace(tzinfo=None)

    def timed(rows: pa.Table, name: str) -> pa.Table:
        return rows.append_column(name, pa.array([clock], pa.timestamp("us")))

    writer.append(path, rows_of((1, "a", 1)), 1)
    writer.append(path, timed(rows_of((2, "b", 1)), "x"), 2)
    writer.append(path, timed(rows_of((3, "c", 1)), "x"), 3)
    writer.merge(path, rows_of((9, "", 1), ops=[DELETE]), 4)
    other, third = f"{path}-merged", f"{path}-replaced"
    writer.append(other, rows_of((1, "a", 1)), 1)
    writer.merge(other, timed(rows_of((1, "b", 2), ops=[UPSERT]), "x"), 2)
    writer.append(third, rows_of((1, "a", 1)), 1)
    writer.overwrite(third, timed(rows_of((1, "b", 1)), "x"), 2)
    for place in (path, other, third):
        rows = Tables().read(place)
        assert rows is not None
        assert clock in rows["x"].to_pylist()


def test_a_merged_row_replaces_the_stored_one_whole(writer: Subject, path: str) -> None:
    more = rows_of((1, "a", 1), (2, "b", 1)).append_column("x", pa.array([1.5, 2.5]))
    writer.append(path, more, 1)
    writer.merge(path, rows_of((1, "A", 2), ops=[UPSERT]), 2)
    rows = Tables().read(path)
    assert rows is not None
    kept = {row["id"]: (row["name"], row["x"]) for row in rows.to_pylist()}
    assert kept == {1: ("A", None), 2: ("b", 2.5)}


def columns_of(number: int, kinds: Sequence[pa.DataType], values: Sequence[object]) -> pa.Table:
    """One row: its number, and values of these types in columns x0, x1 …"""
    arrays = [pa.array([value], kind) for kind, value in zip(kinds, values, strict=True)]
    names = [f"x{place}" for place in range(len(arrays))]
    return pa.table([pa.array([number], pa.int64()), *arrays], names=["id", *names])


@pytest.mark.parametrize("how", ["append", "merge"])
def test_values_that_a_column_does_not_hold_are_refused(
    writer: Subject, path: str, how: str
) -> None:
    kinds, firsts, others, values = zip(*LOST, strict=True)
    writer.append(path, columns_of(1, kinds, firsts), 1)
    more = columns_of(2, others, values)
    write = writer.append if how == "append" else writer.merge
    for place in range(len(LOST)):
        rows = more.select(["id", f"x{place}"])
        rows = rows if how == "append" else with_op(rows, UPSERT)
        with pytest.raises(Incompatible, match=f"column x{place} of .* as they are") as refused:
            write(path, rows, 2)
        assert "penstock replay apply" in str(refused.value.remedy)
    kept = Tables().read(path)
    assert kept is not None
    assert kept.to_pylist() == columns_of(1, kinds, firsts).to_pylist()
    assert writer.reached(path) == 1


def test_values_of_another_type_that_a_column_holds_are_stored(writer: Subject, path: str) -> None:
    kinds, firsts, others, values = zip(*HELD, strict=True)
    wanted = [columns_of(1, kinds, firsts), *(columns_of(n, others, values) for n in (2, 3))]
    writer.append(path, wanted[0], 1)
    writer.append(path, wanted[1], 2)
    writer.merge(path, with_op(wanted[2], UPSERT), 3)
    rows = Tables().read(path)
    assert rows is not None
    kept = sorted(rows.to_pylist(), key=lambda row: row["id"])
    assert kept == [row for each in wanted for row in each.to_pylist()]
    assert [rows.schema.field(f"x{place}").type for place in range(len(kinds))] == [*kinds]


def test_no_rows_of_any_type_join_a_table(writer: Subject, path: str) -> None:
    kinds, firsts, others, values = zip(*LOST, strict=True)
    writer.append(path, columns_of(1, kinds, firsts), 1)
    none = columns_of(2, others, values).slice(0, 0)
    writer.append(path, none, 2)
    writer.merge(path, with_op(none, UPSERT), 3)
    assert writer.reached(path) == 3
    rows = Tables().read(path)
    assert rows is not None
    assert rows.to_pylist() == columns_of(1, kinds, firsts).to_pylist()


def test_overwrite_replaces_rows_and_columns(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1)), 1)
    writer.overwrite(path, pa.table({"id": [7], "word": ["x"]}), 2)
    rows = Tables().read(path)
    assert rows is not None
    assert rows.to_pylist() == [{"id": 7, "word": "x"}]
    assert writer.reached(path) == 2


def test_partitions_are_kept(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1), (2, "b", 1)), 1, partition_by=["name"])
    writer.append(path, rows_of((3, "a", 1)), 2, partition_by=["name"])
    assert DeltaTable(path).metadata().partition_columns == ["name"]
    assert stored(path) == [(1, "a", 1), (2, "b", 1), (3, "a", 1)]


class Interrupting(Tables):
    """Lets another writer commit just after this one has looked at the table."""

    def __init__(self, between: Callable[[], None]) -> None:
        super().__init__()
        self._between = between

    def ensure(
        self, path: str, schema: pa.Schema, *, partition_by: Sequence[str] = ()
    ) -> DeltaTable:
        table = super().ensure(path, schema, partition_by=partition_by)
        self._between()
        return table


@pytest.mark.parametrize("operation", ["append", "merge", "overwrite"])
def test_a_commit_of_another_under_the_same_app_id_is_a_conflict(
    case: tuple[str, str], operation: str, spark: SparkSession, path: str
) -> None:
    ArrowWriter(Tables()).append(path, rows_of((1, "a", 1)), Guard("t", Epoch(1)))

    def other() -> None:
        guard = CommitProperties(app_transactions=[Transaction("t", 2)])
        write_deltalake(path, rows_of((2, "theirs", 1)), mode="append", commit_properties=guard)

    ours = subject(case[0], spark, Interrupting(other))
    rows = rows_of((3, "ours", 1), ops=[UPSERT] if operation == "merge" else ())
    with pytest.raises(LeaseLost):
        getattr(ours, operation)(path, rows, 2)
    assert stored(path) == [(1, "a", 1), (2, "theirs", 1)]


@by_cases(("spark", "folder"), ("arrow", "s3"))
def test_each_goes_on_where_the_other_stopped(
    case: tuple[str, str], spark: SparkSession, path: str
) -> None:
    tables = Tables()
    first = case[0].removesuffix("_merge")
    second = WRITERS[1 - WRITERS.index(first)]
    one, two = subject(first, spark, tables), subject(second, spark, tables)
    one.append(path, rows_of((1, "a", 1), (2, "b", 1)), 1)
    two.append(path, rows_of((1, "again", 1)), 1)
    two.merge(path, rows_of((1, "A", 2), (2, None, 2), ops=[UPSERT, DELETE]), 2)
    one.merge(path, rows_of((3, "c", 3), ops=[UPSERT]), 3)
    assert stored(path) == [(1, "A", 2), (3, "c", 3)]
    assert [row["id"] for row in spark.read.format("delta").load(path).orderBy("id").collect()] == [
        1,
        3,
    ]


def test_any_engine_opens_what_was_written(writer: Subject, path: str) -> None:
    writer.append(path, rows_of((1, "a", 1), (2, "b", 1)), 1)
    writer.merge(path, rows_of((2, "B", 2), ops=[UPSERT]), 2)
    table = DeltaTable(path)
    wanted = [(1, "a", AT), (2, "B", AT)]
    with duckdb.connect() as connection:
        connection.register("written", table.to_pyarrow_dataset())
        query = 'SELECT id, name, epoch_us("at") FROM written ORDER BY id'
        by_duckdb = connection.execute(query).fetchall()
    assert by_duckdb == [(i, name, round(at.timestamp() * 1e6)) for i, name, at in wanted]
    by_polars = pl.scan_delta(path).select("id", "name", "at").sort("id").collect()
    assert by_polars.rows() == wanted
    assert table.protocol().reader_features in (None, [])
    assert dict(table.metadata().configuration) == dict(TABLE_SETTINGS)
