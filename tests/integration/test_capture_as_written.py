"""Rows are read as their table was when they were written, and columns keep their names.

The connector is stopped while the source goes on, so that it reads old rows under a newer catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from decimal import Decimal

import pytest

from apps.settings import Settings
from schemas.records import Operation
from tests.support.sources.capturing import Captured, prepare

Behind = Callable[..., Captured]
START = "CREATE TYPE mood AS ENUM ('sad', 'ok')"


@pytest.fixture
def behind(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Behind]:
    """Capture tables, run transactions while the connector is stopped, and read them afterwards."""
    with ExitStack() as after:

        def begin(tables: Sequence[str], made: str, *transactions: str) -> Captured:
            captured = prepare(stack, new_source(f"{START};{made}"), tables, {})
            after.callback(captured.remove)
            captured.start()
            captured.await_snapshot()
            # A paused one reads on, into its queue.
            captured.connect.stop(captured.connector)
            captured.connect.await_status(
                captured.connector, lambda s: s.task is None, timeout_s=30.0
            )
            for transaction in transactions:
                captured.execute(transaction)
            captured.connect.resume(captured.connector)
            captured.connect.await_running(captured.connector)
            captured.await_stream()
            assert captured.rejected == []
            return captured

        yield begin


def streamed(captured: Captured, table: str) -> list[dict[str, object]]:
    """Return the after-images of a table's streamed changes."""
    changes = captured.of(table, Operation.INSERT, Operation.UPDATE)
    return [captured.row(change).to_pylist()[0] for change in changes]


@pytest.mark.matrix
def test_a_column_of_another_type_does_not_change_older_rows(behind: Behind) -> None:
    tables = ("public.dropped", "public.altered", "public.lost", "public.again", "public.priced")
    captured = behind(
        tables,
        """
        CREATE TABLE dropped (id int PRIMARY KEY, note text DEFAULT 'none', state mood);
        CREATE TABLE altered (id int PRIMARY KEY, note text, amount numeric(9, 2));
        CREATE TABLE lost (id int PRIMARY KEY, amount numeric(9, 2) NOT NULL, at timestamptz);
        CREATE TABLE again (id int PRIMARY KEY, note text NOT NULL);
        CREATE DOMAIN price AS numeric(10, 2);
        CREATE DOMAIN flags AS bit(3);
        CREATE TABLE priced (id int PRIMARY KEY, amount price, paid price, due int, seen flags)
        """,
        "INSERT INTO dropped VALUES (1, 'line one', 'ok'), (2, '7', 'sad')",
        "INSERT INTO altered VALUES (1, '12', 1.5)",
        "INSERT INTO lost VALUES (1, 2.5, '2020-01-01 00:00Z')",
        "INSERT INTO again VALUES (1, 'first')",
        "INSERT INTO priced VALUES (1, 1.5, 2.5, 3, B'101')",
        "ALTER TABLE dropped DROP note, DROP state, ADD note int DEFAULT 3, ADD state int[]",
        "ALTER TABLE altered ALTER note TYPE int USING note::int",
        "ALTER TABLE altered ALTER amount TYPE bool USING true",
        "DROP TABLE lost",
        "DROP TABLE again; CREATE TABLE again (note date, id bigint PRIMARY KEY)",
        "INSERT INTO dropped VALUES (3, 8, '{1,2}')",
        "INSERT INTO altered VALUES (2, 13, false)",
        "ALTER TABLE priced ALTER amount TYPE numeric, ALTER paid TYPE numeric(14, 4),"
        " ALTER due TYPE price, ALTER seen TYPE bit(1) USING B'1'",
        "INSERT INTO priced VALUES (2, 'Infinity', 9876543210.0001, 'NaN', B'0')",
    )
    rows = {table: streamed(captured, table) for table in tables}
    dropped = rows["public.dropped"]
    assert [(row["note"], row["state"]) for row in dropped[:2]] == [
        ("line one", "ok"),
        ("7", "sad"),
    ]
    assert dropped[2]["note"] == 8
    one, two = rows["public.altered"]
    assert (one["note"], str(one["amount"]), two["note"], two["amount"]) == (
        "12",
        "1.50",
        13,
        False,
    )
    (lost,) = rows["public.lost"]
    assert (lost["id"], str(lost["amount"]), str(lost["at"])) == (
        1,
        "2.50",
        "2020-01-01 00:00:00+00:00",
    )
    assert rows["public.again"] == [{"id": 1, "note": "first"}]
    own = ("amount", "paid", "due", "seen", "_exact")
    assert [[row.get(name) for name in own] for row in rows["public.priced"]] == [
        [Decimal("1.50"), Decimal("2.50"), 3, "101", None],
        ["Infinity", Decimal("9876543210.0001"), None, False, '{"due":"NaN"}'],
    ]
    assert {change.key is None for _, change in captured.changes} == {False}


@pytest.mark.matrix
def test_nulls_and_keys_of_older_rows_stay_what_they_were(behind: Behind) -> None:
    tables = ("public.filled", "public.rekeyed", "public.whole")
    captured = behind(
        tables,
        """
        CREATE TABLE filled (id int PRIMARY KEY, amount int);
        CREATE TABLE rekeyed (id int PRIMARY KEY, code int NOT NULL);
        CREATE TABLE whole (id int PRIMARY KEY, amount int);
        ALTER TABLE whole REPLICA IDENTITY FULL
        """,
        "INSERT INTO filled VALUES (1, NULL), (2, 5)",
        "INSERT INTO whole VALUES (1, NULL)",
        "UPDATE whole SET amount = 4",
        "INSERT INTO rekeyed VALUES (1, 10)",
        "UPDATE filled SET amount = 7 WHERE amount IS NULL",
        "ALTER TABLE filled ALTER amount SET NOT NULL, ALTER amount SET DEFAULT 9",
        "ALTER TABLE whole ALTER amount SET NOT NULL",
        "ALTER TABLE rekeyed RENAME id TO number",
        "UPDATE rekeyed SET code = 11",
    )
    amounts = [row["amount"] for row in streamed(captured, "public.filled")]
    assert amounts == [None, 5, 7]
    assert [row["amount"] for row in streamed(captured, "public.whole")] == [None, 4]
    first, second = captured.of("public.rekeyed")
    keys = [
        captured.registry.schema(change.key_schema_id)
        for change in (first, second)
        if change.key_schema_id is not None
    ]
    assert ['"id"' in keys[0], '"number"' in keys[1]] == [True, True]


@pytest.mark.matrix
def test_columns_keep_names_that_avro_cannot_write(behind: Behind) -> None:
    captured = behind(
        ("public.odd", "public.plain"),
        """
        CREATE TABLE odd (
            "größe" int, "order-id" int, "order_id" text, "first name" text DEFAULT 'x',
            "2nd" text[], "a.b" numeric(5, 1), PRIMARY KEY ("größe", "order-id")
        );
        CREATE TABLE plain (id int PRIMARY KEY, order_id int, _a_b text);
        INSERT INTO odd VALUES (1, 2, 'copied', 'Ada', '{a}', 1.5)
        """,
        "INSERT INTO odd VALUES (3, 4, 'written', NULL, '{b}', 2.5)",
        'UPDATE odd SET "first name" = \'Eva\' WHERE "größe" = 1',
        'INSERT INTO odd SELECT i, i FROM generate_series(10, 30) i; DELETE FROM odd WHERE "2nd"'
        " IS NULL",
        "INSERT INTO plain VALUES (1, 2, 'three')",
    )
    names = {"größe", "order-id", "order_id", "first name", "2nd", "a.b"}
    assert set(captured.current("public.odd").column_names) >= names
    assert captured.differing("public.odd") == []
    assert captured.current("public.odd").num_rows == 2
    assert captured.differing("public.plain") == []


OF_ADDED = """
CREATE DOMAIN price AS numeric(10, 2);
CREATE DOMAIN dear AS price CHECK (value > 10);
CREATE DOMAIN grid AS int[][];
CREATE DOMAIN feeling AS mood;
ALTER TABLE goods ADD c price, ADD d dear, ADD g grid, ADD f feeling, ADD cs price[],
    ADD m int[][], ADD fs feeling[]
"""
FIRST_ROW = """
INSERT INTO goods
VALUES (1, 1.5, 20, '{{1,2},{3,4}}', 'ok', '{1,NULL}', '{{1},{2}}', '{sad,ok}')
"""
MADE_AGAIN = """
DROP DOMAIN price, dear, grid, feeling CASCADE;
CREATE DOMAIN price AS text;
CREATE DOMAIN grid AS date;
CREATE DOMAIN feeling AS numeric(5, 1);
ALTER TABLE goods ADD c price, ADD g grid, ADD cs price[], ADD f feeling;
INSERT INTO goods (id, c, g, cs, f) VALUES (2, 'line one', '2020-02-02', '{a,b}', 7)
"""
FIRST = {
    "id": 1,
    "c": Decimal("1.50"),
    "d": Decimal("20.00"),
    "g": [[1, 2], [3, 4]],
    "f": "ok",
    "cs": [Decimal("1.00"), None],
    "m": [[1], [2]],
    "fs": ["sad", "ok"],
}
SECOND = {
    "id": 2,
    "m": None,
    "c": "line one",
    "g": date(2020, 2, 2),
    "cs": ["a", "b"],
    "f": Decimal("7.0"),
}


@pytest.mark.matrix
def test_added_columns_have_the_types_that_they_had_although_those_are_gone(
    behind: Behind,
) -> None:
    made = "CREATE TABLE goods (id int PRIMARY KEY)"
    captured = behind(("public.goods",), made, OF_ADDED, FIRST_ROW, MADE_AGAIN)
    assert streamed(captured, "public.goods") == [FIRST, SECOND]


@pytest.mark.matrix
def test_added_columns_have_their_types_at_once_in_a_connector_that_runs(behind: Behind) -> None:
    captured = behind(("public.goods",), "CREATE TABLE goods (id int PRIMARY KEY)")
    for transaction in (f"{OF_ADDED};{FIRST_ROW}", MADE_AGAIN):
        captured.execute(transaction)
        captured.await_stream()
    assert streamed(captured, "public.goods") == [FIRST, SECOND]
    assert captured.rejected == []


@pytest.mark.matrix
def test_a_label_that_an_enum_gets_later_changes_nothing_of_older_rows(behind: Behind) -> None:
    captured = behind(
        ("public.felt",),
        "CREATE TABLE felt (id int PRIMARY KEY, state mood, note text)",
        "ALTER TYPE mood ADD VALUE 'glad'",
        "INSERT INTO felt VALUES (1, 'glad', 'line one')",
        "ALTER TABLE felt DROP note, ADD note int",
        "INSERT INTO felt VALUES (2, 'ok', 2)",
    )
    rows = [(row["state"], row["note"]) for row in streamed(captured, "public.felt")]
    assert rows == [("glad", "line one"), ("ok", 2)]


@pytest.mark.matrix
def test_a_name_that_differs_by_case_alone_stops_no_other_table(behind: Behind) -> None:
    captured = behind(
        ("public.twins", "public.other"),
        "CREATE TABLE twins (id int PRIMARY KEY, name text);"
        "CREATE TABLE other (id int PRIMARY KEY)",
    )
    captured.execute('ALTER TABLE twins ADD "Name" text')
    captured.execute("INSERT INTO twins VALUES (1, 'small', 'large')")
    captured.execute("INSERT INTO other VALUES (1)")
    captured.await_stream()
    assert streamed(captured, "public.twins") == [{"id": 1, "name": "small", "Name__2": "large"}]

    # Its own snapshot could not read that table: it is held until its names differ.
    captured.start()
    assert captured.tables() == ["public.other"]
    captured.execute("INSERT INTO other VALUES (2)")
    captured.execute("INSERT INTO twins VALUES (2, 'not', 'read')")
    captured.await_stream()
    assert streamed(captured, "public.other") == [{"id": 1}, {"id": 2}]
    captured.execute('ALTER TABLE twins RENAME "Name" TO title')
    captured.start()
    assert captured.tables() == ["public.twins", "public.other"]
