"""Files that conditions leave unread, and rows that they find: none is missing, few are read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lake.ranges import Among, Condition, Range, Spans, actions_within, dataset_within, filter_of
from lake.small_files import SINGLE_FILES, SmallFiles
from lake.table_columns import UTC_MICROS

START = datetime(2013, 1, 1, tzinfo=UTC)
SHAPE = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", UTC_MICROS)])


def moment(minute: float) -> datetime:
    return START + timedelta(minutes=minute, microseconds=1)


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Return four files of ten minutes each, a row for each minute and one without a time."""
    path = str(tmp_path / "table")
    for first in (0, 10, 20, 30):
        rows = [{"id": n, "name": f"n{n % 7}", "at": moment(n)} for n in range(first, first + 10)]
        rows.append({"id": 100 + first, "name": None, "at": None})
        write_deltalake(path, pa.Table.from_pylist(rows, SHAPE), mode="append")
    return DeltaTable(path)


def found(table: DeltaTable, *conditions: Condition) -> list[int]:
    where = filter_of(table, conditions)
    rows = dataset_within(table, conditions).to_table(filter=where)
    return sorted(rows["id"].to_pylist())


SPANS = Spans(column="at", spans=((moment(3), moment(5)), (moment(31), None)))


@pytest.mark.parametrize(
    ("condition", "ids", "files"),
    [
        (Range(column="at", lower=moment(9), upper=moment(11)), [9, 10], 2),
        (Range(column="at", lower=moment(19), upper=None), [*range(19, 40)], 3),
        (SPANS, [3, 4, *range(31, 40)], 2),
        (Among(column="id", values=pa.array([5, 7], pa.int64())), [5, 7], 1),
        (Among(column="name", values=pa.array(["n6"])), [6, 13, 20, 27, 34], 4),
        (Among(column="id", values=pa.array([2**63 - 1], pa.int64())), [], 0),
        (Among(column="id", values=pa.array([], pa.int64())), [], 4),
    ],
)
def test_rows_are_found_in_few_files(
    table: DeltaTable, condition: Condition, ids: list[int], files: int
) -> None:
    assert found(table, condition) == ids
    assert actions_within(table, [condition]).num_rows == files


@pytest.mark.parametrize(
    ("values", "ids", "files"),
    [([1, None], [0, 2, 3], 3), ([None], [2, 3], 2), ([50], [4], 2)],
)
def test_null_among_values_is_one_of_them(
    tmp_path: Path, values: list[int | None], ids: list[int], files: int
) -> None:
    shape = pa.schema([("id", pa.int64()), ("number", pa.int64())])
    for rows in ([(0, 1), (1, 2)], [(2, None)], [(3, None), (4, 50)], [(5, 7)]):
        rows_of = [dict(zip(shape.names, row, strict=True)) for row in rows]
        write_deltalake(tmp_path, pa.Table.from_pylist(rows_of, shape), mode="append")
    table = DeltaTable(tmp_path)
    condition = Among(column="number", values=pa.array(values, pa.int64()))
    assert found(table, condition) == ids
    assert actions_within(table, [condition]).num_rows == files


def test_values_of_another_type_leave_nothing_out(table: DeltaTable) -> None:
    every = found(table)
    assert found(table, Among(column="id", values=pa.array([5], pa.int32()))) == every
    assert found(table, Range(column="id", lower=moment(0), upper=None)) == every
    assert found(table, Range(column="at", lower=7, upper=None)) == every


def test_no_row_meets_a_condition_on_a_column_that_is_not_there(table: DeltaTable) -> None:
    assert filter_of(table, [Range(column="gone", lower=1, upper=None)]) is None
    assert filter_of(table, [Among(column="gone", values=pa.array([1]))]) is None
    assert found(table, Among(column="gone", values=pa.array([1, None]))) == found(table)


def test_rows_of_small_files_are_held_up_to_a_bound(table: DeltaTable, tmp_path: Path) -> None:
    actions = actions_within(table, [])
    held, bounded = SmallFiles(), SmallFiles(most_bytes=1)
    for small in (held, bounded):
        files, rows = small.split(table, actions, ["id", "at"])
        assert files is None
        assert rows.schema.names == ["id", "at"]
        assert rows.num_rows == 44
    for file in actions["path"].to_pylist():
        Path(tmp_path, "table", file).unlink()
    assert held.split(table, actions, ["id", "at"])[1].num_rows == 44
    with pytest.raises(FileNotFoundError):
        bounded.split(table, actions, ["id", "at"])


def test_small_files_that_come_and_go_are_those_that_are_there(tmp_path: Path) -> None:
    path, small = str(tmp_path / "table"), SmallFiles()
    for number in range(30):
        rows = [{"id": number, "name": f"n{number}", "at": moment(number)}]
        write_deltalake(path, pa.Table.from_pylist(rows, SHAPE), mode="append")
        table = DeltaTable(path)
        if number % 11 == 10:
            table.optimize.compact()
        actions = actions_within(table, [])
        columns = ["id"] if number % 2 else ["at", "id"]
        files, found_rows = small.split(table, actions, columns)
        assert files is None
        assert found_rows.schema.names == columns
        assert sorted(found_rows["id"].to_pylist()) == [*range(number + 1)]


def test_files_that_were_read_as_they_came_are_let_go(tmp_path: Path) -> None:
    """Who reads what is new alone asks for a file of each epoch once, for days."""
    path, small = str(tmp_path / "table"), SmallFiles()
    for number in range(SINGLE_FILES + 2):
        rows = [{"id": number, "name": f"n{number}", "at": moment(number)}]
        write_deltalake(path, pa.Table.from_pylist(rows, SHAPE), mode="append")
    table = DeltaTable(path)

    def read(number: int) -> list[int]:
        actions = actions_within(table, [Range(column="id", lower=number, upper=number + 1)])
        found: list[int] = small.split(table, actions, ["id"])[1]["id"].to_pylist()
        return found

    assert [read(number) for number in range(SINGLE_FILES + 2)] == [
        [number] for number in range(SINGLE_FILES + 2)
    ]
    assert read(2) == [2]
    for file in actions_within(table, [])["path"].to_pylist():
        Path(path, file).unlink()
    held = (2, 4, SINGLE_FILES + 1)
    assert [read(number) for number in held] == [[number] for number in held]
    with pytest.raises(FileNotFoundError):
        read(0)


def test_what_is_held_is_counted_as_it_comes_and_goes(tmp_path: Path) -> None:
    path, small = str(tmp_path / "table"), SmallFiles()
    for number in range(20):
        rows = [{"id": number, "name": "n" * number, "at": moment(number)}]
        write_deltalake(path, pa.Table.from_pylist(rows, SHAPE), mode="append")
        table = DeltaTable(path)
        if number % 7 == 6:
            table.optimize.compact()
        new = [Range(column="id", lower=number, upper=number + 1)]
        for conditions in (new, [], new):
            small.split(table, actions_within(table, conditions), ["id", "name"])
        (held,) = small._held.values()
        whole = 0 if held.together is None else held.together.nbytes
        assert held.nbytes == whole + sum(rows.nbytes for rows in held.files.values()) > 0


def test_a_column_that_became_wider_is_read_anew(tmp_path: Path) -> None:
    path, small = str(tmp_path / "table"), SmallFiles()
    for kind in (pa.int32(), pa.int64()):
        write_deltalake(path, pa.table({"id": pa.array([1, 2], kind)}), mode="overwrite")
        table = DeltaTable(path)
        if kind == pa.int64():
            write_deltalake(
                path,
                pa.table({"id": pa.array([3], kind)}),
                mode="overwrite",
                schema_mode="overwrite",
            )
            table = DeltaTable(path)
        _, rows = small.split(table, actions_within(table, []), ["id"])
        assert rows.schema.field("id").type == DeltaTable(path).to_pyarrow_table().schema[0].type
