"""Random rows of every type, through Debezium: equal to PostgreSQL's own text, read by COPY.

The connector reads a snapshot and the stream in different ways, so the rows travel by both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest

from apps.settings import Settings
from cdc.columns import columns_of
from cdc.database import connected
from schemas.columns import UNCHANGED_COLUMNS
from schemas.pg_exact import EXACT
from schemas.pg_text import text_to_lake
from schemas.records import Operation
from schemas.row_hash import table_hash
from tests.support.sources.capturing import Captured, prepare
from tests.support.sources.pg_copies import copied
from tests.support.sources.pg_values import (
    DELIMITERS,
    KINDS,
    NO_ARRAY,
    SETUP,
    array_of,
    array_text,
    drawn,
)

ROWS = 12
NAMES = sorted(KINDS)
LISTED = [name for name in NAMES if name not in NO_ARRAY]
TABLES = {
    "public.plain": {f"{name}_": KINDS[name].sql for name in NAMES},
    "public.lists": {f"{name}_": f"{KINDS[name].sql}[]" for name in LISTED},
    "public.grids": {f"{name}_": f"{KINDS[name].sql}[][]" for name in LISTED},
}


def values() -> dict[str, list[tuple[object, ...]]]:
    """Draw rows for all tables, column by column."""
    columns: dict[str, list[list[str | None]]] = {table: [] for table in TABLES}
    for name in NAMES:
        literals, mark = KINDS[name].literals, DELIMITERS.get(name, ",")
        columns["public.plain"].append(drawn(literals, ROWS))
        if name in LISTED:
            for table, dimensions in (("public.lists", 1), ("public.grids", 2)):
                arrays = array_of(literals, dimensions=dimensions, delimiter=mark)
                columns[table].append(drawn(arrays, ROWS))
    return {table: list(zip(*drawn_, strict=True)) for table, drawn_ in columns.items()}


def put(dsn: str, rows: dict[str, list[tuple[object, ...]]], first: int) -> None:
    with psycopg.connect(dsn) as connection:
        for table, found in rows.items():
            with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                for place, row in enumerate(found):
                    copy.write_row((first + place, *row))


def told_by_driver(value: object) -> bool:
    """Whether a snapshot of the connector can tell the date from the one ten days later."""
    return not isinstance(value, str) or "1582-10-" not in value


@pytest.fixture(scope="module")
def rows() -> dict[str, list[tuple[object, ...]]]:
    return values()


@pytest.fixture
def captured(
    stack: Settings,
    new_source: Callable[[str], str],
    rows: dict[str, list[tuple[object, ...]]],
) -> Iterator[Captured]:
    made = [
        f"CREATE TABLE {table} (id int PRIMARY KEY, "
        + ", ".join(f"{name} {sql}" for name, sql in columns.items())
        + ");"
        for table, columns in TABLES.items()
    ]
    dsn = new_source(SETUP + "\n".join(made))
    spared = rows | {
        "public.plain": [
            tuple(value if told_by_driver(value) else None for value in row)
            for row in rows["public.plain"]
        ]
    }
    put(dsn, spared, 0)
    found = prepare(stack, dsn, list(TABLES), {})
    try:
        found.start()
        found.await_snapshot()
        yield found
    finally:
        found.remove()


def assert_equal(captured: Captured) -> None:
    assert captured.rejected == []
    for table in TABLES:
        with connected(captured.dsn) as connection:
            columns = columns_of(connection, table)
            wanted = text_to_lake(columns, copied(connection, table)).sort_by("id")
        came = captured.current(table).sort_by("id")
        differing = [
            column.name
            for column in columns
            if came.schema.field(column.name).type != wanted.schema.field(column.name).type
            or table_hash(came, [column.name]) != table_hash(wanted, [column.name])
        ]
        assert differing == [], {n: (str(came[n]), str(wanted[n])) for n in differing[:3]}
        assert captured.differing(table) == []
        beside = zip(exact(came), exact(wanted), strict=True)
        assert [pair for pair in beside if pair[0] != pair[1]] == []


def exact(table: pa.Table) -> list[str | None]:
    return table[EXACT].to_pylist() if EXACT in table.column_names else [None] * len(table)


@pytest.mark.matrix
def test_every_type_travels_as_copy_prints_it(
    captured: Captured, rows: dict[str, list[tuple[object, ...]]]
) -> None:
    assert_equal(captured)
    put(captured.dsn, rows, ROWS)
    captured.execute(*(f"UPDATE {table} SET int4_ = NULL WHERE id % 3 = 0" for table in TABLES))
    captured.await_stream()
    assert_equal(captured)
    # What an UPDATE leaves alone stays, and nothing is left behind when it goes.
    for table, columns in TABLES.items():
        nulls = ", ".join(f"{name} = NULL" for name in columns)
        captured.execute(f"UPDATE {table} SET {nulls} WHERE id % 2 = 0")
    captured.await_stream()
    assert_equal(captured)


@pytest.mark.matrix
def test_a_large_array_that_an_update_left_alone_stays(
    stack: Settings, new_source: Callable[[str], str]
) -> None:
    """Every type that is stored out of line can be marked, without REPLICA IDENTITY FULL."""
    names = [name for name in LISTED if KINDS[name].sql not in ("boolean", '"char"')]
    columns = ", ".join(f"{name}_ {KINDS[name].sql}[]" for name in names)
    dsn = new_source(
        f"{SETUP} CREATE TABLE big (id int PRIMARY KEY, n int, grid int[], bits bit varying,"
        f" {columns}); "
        + " ".join(
            f"ALTER TABLE big ALTER COLUMN {name} SET STORAGE EXTERNAL;"
            for name in ("grid", "bits", *(f"{name}_" for name in names))
        )
    )
    literals = [drawn(KINDS[name].literals, 40) for name in names]
    with psycopg.connect(dsn) as connection:
        filled = [
            array_text((found * 40)[:900], DELIMITERS.get(name, ","))
            for name, found in zip(names, literals, strict=True)
        ]
        with connection.cursor().copy(b"COPY big FROM STDIN") as copy:
            grid = "{{" + "},{".join(["1,2"] * 2000) + "}}"
            copy.write_row((1, 1, grid, "01" * 20_000, *filled))
    found = prepare(stack, dsn, ["public.big"], {})
    try:
        found.start()
        found.await_snapshot()
        found.execute("UPDATE big SET n = 2")
        found.await_stream()
        with connected(dsn) as connection:
            wanted = text_to_lake(
                columns_of(connection, "public.big"), copied(connection, "public.big")
            )
        (update,) = found.of("public.big", Operation.UPDATE)
        (left,) = found.row(update)[UNCHANGED_COLUMNS].to_pylist()
        assert {"grid", "bits", "numeric_", "place_", "interval_", "box_"} <= set(left)
        assert found.differing("public.big") == []
        assert exact(found.current("public.big")) == exact(wanted)
        assert exact(wanted)[0] is not None, "a list has no room for two dimensions"
    finally:
        found.remove()


def test_an_interval_that_may_be_infinite_is_refused(
    stack: Settings, new_source: Callable[[str], str]
) -> None:
    dsn = new_source("CREATE TABLE spans (id int PRIMARY KEY, lasts interval);")
    refused = prepare(stack, dsn, ["public.spans"], {})
    try:
        with pytest.raises(Exception, match=r"isfinite\(lasts\)"):
            refused.start()
    finally:
        refused.remove()
