"""Keys by which rows cannot be told apart are refused before anything is captured."""

from __future__ import annotations

import psycopg

from cdc.database import connected
from cdc.scope import scope_of
from cdc.sources import declare

TABLES = """
CREATE TABLE loose (a int, b int NOT NULL);
ALTER TABLE loose REPLICA IDENTITY FULL;
CREATE TABLE late (pos int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED);
ALTER TABLE late REPLICA IDENTITY FULL;
CREATE TABLE tagged (id int NOT NULL, tags text[], PRIMARY KEY (id, tags));
CREATE TABLE sound (id int PRIMARY KEY);
"""


def test_keys_that_tell_no_rows_apart_are_refused(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    names = ("loose", "late", "tagged", "sound")
    source, _ = declare("shop", dsn=postgres_dsn, tables=names, keys={"loose": ("a", "b")})
    with connected(postgres_dsn) as connection:
        checks = scope_of(source, connection, "penstock_test_shop").checks
    failed = {c.subject: (c.required, c.found) for c in checks if not c.ok and not c.advice}
    assert failed == {
        "table public.loose": (
            "NOT NULL for the columns of its declared key",
            "a may be null: rows without a key cannot be told apart",
        ),
        "table public.late": ("a primary key that is not DEFERRABLE", "DEFERRABLE"),
        "table public.tagged": (
            "a key without arrays",
            "tags: rows cannot be told apart by arrays",
        ),
    }


def test_a_table_whose_key_got_an_array_is_held_while_the_others_of_its_source_run_on(
    postgres_dsn: str,
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(TABLES.encode())
    source, _ = declare("shop", dsn=postgres_dsn, tables=("tagged", "sound"))
    with connected(postgres_dsn) as connection:
        scope = scope_of(source, connection, "penstock_test_shop", runs=True)
    assert scope.tables == {"public.sound": ("id",)}
    assert "rows cannot be told apart by arrays" in scope.held["public.tagged"]
