"""History on request, from a real database: what held after each transaction is in it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from lake.layout import Lake
from lake.tables import Tables
from projections.run.captured_tables import CapturedTable, render_tables
from projections.run.catalog import CAPTURE, LIVE, DeployedCatalog, Entry
from projections.run.projection_rounds import Projecting
from schemas.registry import ConfluentRegistry
from tests.support.sources.mirroring import Mirror, mirrored

PEOPLE = "public.people"
TWINS = "public.twins"
State = set[tuple[object, ...]]


@dataclass
class Told:
    """A mirrored table, and its rows after each of its transactions."""

    mirror: Mirror
    begin: Callable[[], Projecting]
    columns: tuple[str, ...] = ("id", "name")
    states: dict[str, State] = field(default_factory=dict)
    projecting: Projecting = field(init=False)

    def __post_init__(self) -> None:
        self.projecting = self.begin()

    def transaction(self, *statements: str) -> str:
        """Run one transaction and note what the table holds after it; return its id."""
        with psycopg.connect(self.mirror.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())
            (number,) = connection.execute("SELECT pg_current_xact_id()::text").fetchone() or ("",)
            rows = connection.execute(f"SELECT * FROM {self._table}".encode()).fetchall()
        self.states[number] = set(rows)
        return str(number)

    def catch_up(self) -> None:
        """Mirror everything, then bring the history up to it."""
        self.mirror.catch_up()
        while self.projecting.step():
            pass

    def lose(self) -> None:
        """Remove the history's folder while the pipeline is down."""
        shutil.rmtree(self._path)
        self.projecting = self.begin()

    @property
    def _table(self) -> str:
        (table,) = self.mirror.source.tables
        return table

    @property
    def _path(self) -> str:
        return self.mirror.epochs.lake.path(f"history/{self.mirror.source.name}.{self._table}")

    def history(self) -> list[dict[str, Any]]:
        table = Tables().read(self._path)
        assert table is not None
        rows: list[dict[str, Any]] = table.to_pylist()
        return sorted(rows, key=lambda row: (row["_seq_hi"], row["_seq_lo"], row[self.columns[0]]))

    def at(self, moment: datetime) -> State:
        """Return what held at a moment, as the history says."""
        return {
            tuple(row[column] for column in self.columns)
            for row in self.history()
            if not row["_deleted"]
            and row["valid_from"] <= moment
            and (row["valid_to"] is None or moment < row["valid_to"])
        }


Tell = Callable[[str, str, str], AbstractContextManager[Told]]


@pytest.fixture
def tell(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, new_source: Callable[[str], str]
) -> Tell:
    """Mirror one table, made by DDL, and keep a history of it by a key."""

    @contextmanager
    def mirroring(table: str, key: str, ddl: str) -> Iterator[Told]:
        with mirrored(stack, spark, lake, prefix, new_source(ddl), (table,)) as mirror:
            text = render_tables({table: CapturedTable(keys=(key,), history=True)})
            name = mirror.source.name
            entry = Entry(kind=CAPTURE, name=name, generation=0, status=LIVE, text=text)
            DeployedCatalog(lake, Tables()).put([entry])
            registry = ConfluentRegistry(stack.required("registry.url"))
            yield Told(mirror, lambda: Projecting(spark, lake, registry, on_run=lambda *_: None))

    return mirroring


@pytest.fixture
def told(tell: Tell) -> Iterator[Told]:
    ddl = (
        "CREATE TABLE people (id bigint PRIMARY KEY, name text);"
        "INSERT INTO people VALUES (1, 'ann'), (2, 'bob')"
    )
    with tell(PEOPLE, "id", ddl) as made:
        yield made


def test_p4_the_history_of_a_captured_table_shows_every_transaction(told: Told) -> None:
    told.catch_up()
    assert {(r["id"], r["name"], r["_transaction"]) for r in told.history()} == {
        (1, "ann", None),
        (2, "bob", None),
    }
    told.transaction("UPDATE people SET id = 7 WHERE id = 1")
    told.transaction("INSERT INTO people VALUES (3, 'cy')", "DELETE FROM people WHERE id = 2")
    told.transaction("DELETE FROM people WHERE id = 3", "INSERT INTO people VALUES (4, 'cy')")
    told.transaction("UPDATE people SET name = 'a'", "UPDATE people SET name = 'b'")
    told.catch_up()
    told.transaction("TRUNCATE people")
    told.catch_up()
    told.transaction("INSERT INTO people VALUES (7, 'again')")
    told.transaction("UPDATE people SET id = id + 10", "UPDATE people SET id = id + 10")
    told.catch_up()
    assert_each_transaction_is_told(told)
    rows = told.history()
    linked = [r for r in rows if r["_previous_key"] or r["_next_key"]]
    assert [(r["id"], r["_previous_key"], r["_next_key"]) for r in linked] == [
        (1, None, '{"id":7}'),
        (7, '{"id":1}', None),
        (7, None, '{"id":17}'),
        (17, '{"id":7}', '{"id":27}'),
        (27, '{"id":17}', None),
    ]
    told.lose()
    told.catch_up()
    assert _facts(told.history()) == _facts(rows)
    renamed = told.transaction(
        "ALTER TABLE people RENAME name TO called", "UPDATE people SET called = 'new'"
    )
    told.catch_up()
    assert [(r["id"], r["called"], r["_transaction"]) for r in told.history()] == [
        *((r["id"], r["name"], r["_transaction"]) for r in rows),
        (27, "new", renamed),
    ]


@pytest.mark.matrix
def test_p4_a_history_keeps_columns_apart_that_differ_by_case_or_are_called_like_its_own(
    tell: Tell,
) -> None:
    ddl = 'CREATE TABLE twins ("Id" bigint PRIMARY KEY, name text, valid_from text, "größe" text)'
    with tell(TWINS, "Id", ddl) as told:
        told.columns = ("Id", "name", "data_valid_from", "größe")
        told.transaction("INSERT INTO twins VALUES (1, 'a', 'b', 'c'), (2, 'd', NULL, 'e')")
        told.catch_up()
        assert_each_transaction_is_told(told)
        # Debezium's own snapshot cannot read such a table: it becomes one while it is streamed.
        told.states.clear()
        told.columns += ("Name__2", "NAME__3", "VALID_FROM__2")
        told.transaction(
            'ALTER TABLE twins ADD "Name" text, ADD "NAME" int, ADD "VALID_FROM" text',
            "INSERT INTO twins VALUES (3, 'f', 'g', 'h', 'i', 4, 'j')",
        )
        told.transaction("""UPDATE twins SET "Name" = 'B', valid_from = 'D' WHERE "Id" = 1""")
        told.transaction("""UPDATE twins SET "NAME" = 4, "VALID_FROM" = name WHERE "Id" = 2""")
        told.transaction('UPDATE twins SET "Id" = 7 WHERE "Id" = 1')
        told.transaction('DELETE FROM twins WHERE "Id" = 2')
        told.catch_up()
        assert_each_transaction_is_told(told)
        told.lose()
        told.catch_up()
        assert_each_transaction_is_told(told)


def assert_each_transaction_is_told(told: Told) -> None:
    """Compare what the history says held after each transaction with what the source had."""
    rows = told.history()
    for number, state in told.states.items():
        moments = {row["valid_from"] for row in rows if row["_transaction"] == number}
        assert len(moments) == 1, number
        assert told.at(moments.pop()) == state, number


def _facts(rows: list[dict[str, Any]]) -> list[object]:
    return [{n: v for n, v in row.items() if n != "_epoch"} for row in rows]
