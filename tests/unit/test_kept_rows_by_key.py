"""Rows that an operator keeps, sorted by their keys in files: what is found of them, and when."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from kernel.errors import StorageFull
from projections.run import operator_tables
from projections.run.database import Database
from projections.run.operator_tables import OperatorTables
from projections.run.sorted_runs import MOST_RUNS, SortedRuns

KEYS = ("k", "t")
ROWS = (
    "SELECT i % 97 AS k, CASE WHEN i % 5 > 0 THEN concat('t', i % 5) END AS t, i AS v, "
    "CAST(1 AS BIGINT) AS _w FROM range({first}, {last}) AS r(i)"
)


@pytest.fixture
def database() -> Iterator[Database]:
    made = Database()
    yield made
    made.close()


def stored(database: Database) -> OperatorTables:
    tables = OperatorTables(database, 1)
    tables.stored("rows", ROWS.format(first=0, last=1), KEYS)
    return tables


def near(tables: OperatorTables, database: Database, asked: str) -> set[tuple[object, ...]]:
    found = tables.near("rows", asked, KEYS)
    return {*database.connection.execute(f"SELECT * FROM {found} AS f").fetchall()}


def test_rows_of_the_keys_are_found_and_few_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 100)
    tables = stored(database)
    for first in range(0, 20_000, 500):
        tables.add("rows", ROWS.format(first=first, last=first + 500))
        tables.compact("rows")
    values = "(3, 't1'), (4, NULL), (999, 't1')"
    asked = f"SELECT CAST(k AS BIGINT) AS k, t FROM (VALUES {values}) x(k, t)"
    found = near(tables, database, asked)
    every = database.connection.execute(ROWS.format(first=0, last=20_000)).fetchall()
    wanted = {row for row in every if row[:2] in ((3, "t1"), (4, None))}
    assert len(wanted) > 50
    assert found == wanted
    runs = tables._stored["rows"].runs
    assert runs is not None
    assert runs.count == 20_000
    assert len(runs._runs) < 2 * MOST_RUNS, "runs of about one size are made one"
    assert database.held_bytes() > database.beside_bytes > 20_000 * 24


def test_runs_hold_no_descriptors(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 10)
    tables, before = stored(database), len(os.listdir("/dev/fd"))
    for first in range(0, 5 * 20, 20):
        tables.add("rows", ROWS.format(first=first, last=first + 20))
        tables.compact("rows")
    assert len(os.listdir("/dev/fd")) == before, "projections may have thousands of runs"
    asked = "SELECT CAST(3 AS BIGINT) AS k, 't3' AS t"
    assert near(tables, database, asked) == {(3, "t3", 3, 1)}


def test_rows_that_came_and_went_are_dropped(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 100)
    monkeypatch.setattr(operator_tables, "SMALL_ROWS", 1)
    tables = stored(database)
    columns = operator_tables.Listed("k, t, v", "k, t, v")
    rows = ROWS.format(first=0, last=1_000)
    tables.add("rows", rows)
    tables.compact("rows", columns)
    runs = tables._stored["rows"].runs
    assert runs is not None
    assert runs.count == 1_000
    tables.add("rows", f"SELECT * REPLACE (-_w AS _w) FROM ({rows}) AS g WHERE v <> 7")
    tables.add("rows", ROWS.format(first=1_000, last=1_010))
    tables.compact("rows", columns)
    assert runs.count == 11
    held = database.beside_bytes
    tables.add("rows", f"SELECT * REPLACE (-_w AS _w) FROM {tables.near('rows', rows, KEYS)} AS g")
    tables.add("rows", ROWS.format(first=5, last=9))
    tables.compact("rows", columns)
    assert runs.count < 11
    assert database.beside_bytes < held


def test_values_of_another_type_are_compared_by_who_compares_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 10)
    tables = stored(database)
    tables.add("rows", ROWS.format(first=0, last=50))
    tables.compact("rows")
    asked = "SELECT CAST(3 AS INTEGER) AS k, 't1' AS t"
    assert len(near(tables, database, asked)) == 50


@pytest.mark.parametrize("key", ["CAST(i AS DOUBLE)", "CAST(i AS HUGEINT)", "{'a': i}"])
def test_what_has_several_forms_stays_in_the_database(
    database: Database, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 1)
    tables = OperatorTables(database, 1)
    rows = f"SELECT {key} AS k, CAST(1 AS BIGINT) AS _w FROM range(10) AS r(i)"
    tables.stored("rows", rows, ("k",))
    tables.add("rows", rows)
    tables.compact("rows")
    assert tables.near("rows", rows, ("k",)) == "rows_1"


def test_a_full_disk_beside_memory_is_told_as_what_it_is(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __enter__(self) -> Full:
            raise OSError(errno.ENOSPC, "No space left on device")

        def __exit__(self, *_: object) -> None: ...

    def full(dir: Path) -> Full:
        return Full()

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    runs = SortedRuns(database, "near_rows", "k", "k")
    with pytest.raises(StorageFull, match=r"the disk of .* is full"), database.within_memory():
        runs.add("SELECT 1 AS k", 1, lambda rows: rows)


def test_a_full_disk_behind_memory_is_told_as_what_it_is(database: Database) -> None:
    """DuckDB calls both being out of memory."""
    some = "SELECT md5(CAST(i AS VARCHAR)) AS k FROM range(1000000) AS r(i) ORDER BY k"
    database.connection.execute("SET memory_limit = '32MB'")
    for room, told in (
        ("1GB", nullcontext()),
        ("0KB", pytest.raises(StorageFull, match=r"the disk of .* is full")),
    ):
        database.connection.execute(f"SET max_temp_directory_size = '{room}'")
        with told, database.within_memory(), database.computing():
            assert database.connection.sql(some).to_arrow_table().num_rows == 1_000_000


def test_the_full_disk_of_who_reads_rows_is_told_as_it_is(database: Database) -> None:
    with pytest.raises(OSError, match="No space left"), database.within_memory():
        raise OSError(errno.ENOSPC, "No space left on device")
