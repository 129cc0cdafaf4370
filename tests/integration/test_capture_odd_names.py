"""Tables and columns of any name through the whole capture: copied, streamed, read, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from apps.settings import Settings
from tests.support.sources.copying import Copied

SCHEMA = 'od"d /sch`ema'
NAMES = ("a/b", "a_b", 'q"uo`te', "per%cent%2F", "it's über", "-dash", "1digit", "back\\slash")
TABLES = (*(("public", name) for name in NAMES), (SCHEMA, "a/b"))
KEYS = ('i"d`', "größe", "order-id", "committed_at", "_lsn", "__op", "valid_from")
NOTE = "a.b"
COLUMNS = (
    *("a b", "a/b", "a_b", "per%cent", "ü", ".lead", "it's", "$", "back\\slash", "x" * 63, "2nd"),
    *("Name", "valid_to", "data_valid_to", "_deleted", "_epoch", "_operation", "_exact", "_n"),
    *("\u00b5", "\u03bc", "i", "\u0131", "s", "\u017f", "\u03c2", "\u03c3"),
    *("{a;b}", "a=b\n(c)", "."),
    *("__row", "__op_", "_lsn_", "committed_at_", "NAME", "name__2", "_EPOCH", "__ROW", "A B"),
)


def full(table: tuple[str, str]) -> str:
    return ".".join(table)


def key_of(table: tuple[str, str]) -> str:
    return KEYS[TABLES.index(table) % len(KEYS)]


def statement(text: LiteralString, table: tuple[str, str]) -> bytes:
    made = sql.SQL(text).format(
        table=sql.Identifier(*table),
        key=sql.Identifier(key_of(table)),
        note=sql.Identifier(NOTE),
        said=sql.Literal(full(table)),
        columns=sql.SQL(", ").join(
            sql.SQL("{} text DEFAULT {}").format(sql.Identifier(column), sql.Literal(column))
            for column in COLUMNS
        ),
    )
    return made.as_bytes(None)


@pytest.fixture
def odd(
    tmp_path: Path, stack: Settings, spark: SparkSession, new_source: Callable[[str], str]
) -> Iterator[Copied]:
    dsn = new_source(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)).as_string(None))
    each_table(
        dsn,
        "CREATE TABLE {table} ({key} int PRIMARY KEY, {note} text, {columns})",
        "INSERT INTO {table} ({key}, {note}) SELECT i, {said} || i FROM generate_series(1, 3) i",
    )
    found = Copied(tmp_path, stack, spark, dsn, [full(table) for table in TABLES])
    yield found
    found.close()


def each_table(dsn: str, *texts: LiteralString) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table in TABLES:
            for text in texts:
                connection.execute(statement(text, table))


@pytest.mark.matrix
def test_p4_tables_of_any_name_arrive_whole_and_unmixed(odd: Copied) -> None:
    odd.start()
    with odd.copying():
        odd.run_until_installed(len(TABLES))
    each_table(
        odd.dsn,
        "INSERT INTO {table} ({key}, {note}) VALUES (4, {said} || 4)",
        "UPDATE {table} SET {note} = {said} || 'new' WHERE {key} = 1",
        "DELETE FROM {table} WHERE {key} = 2",
    )
    odd.catch_up()
    assert odd.differing() == []
    each_table(
        odd.dsn,
        """
        ALTER TABLE {table} ADD "name" text DEFAULT 'a fourth', ADD "PER%CENT" int[][];
        INSERT INTO {table} ({key}, "name", "PER%CENT") VALUES (5, 'own', '{{{{1}},{{2}}}}');
        UPDATE {table} SET "NAME" = 'changed' WHERE {key} = 4
        """,
    )
    odd.restart()
    each_table(
        odd.dsn,
        """
        ALTER TABLE {table} DROP "Name";
        UPDATE {table} SET "NAME" = 'the first now', "name" = 'the second' WHERE {key} = 5
        """,
    )
    odd.catch_up()
    assert odd.epochs.ingest.held().get(odd.name, {}) == {}
    assert odd.differing() == []
