"""Keys by which rows cannot be told apart are refused before anything is captured."""

from __future__ import annotations

import psycopg
import pytest

from cdc.database import connected
from cdc.scope import fingerprint, scope_of
from cdc.sources import declare
from kernel.errors import Misconfigured

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
    alone, _ = declare("shop", dsn=postgres_dsn, tables=("tagged",))
    with (
        connected(postgres_dsn) as connection,
        pytest.raises(Misconfigured, match=r"can be captured: public\.tagged: .* by arrays"),
    ):
        scope_of(alone, connection, "penstock_test_shop", runs=True)


def test_a_declared_key_that_may_be_null_by_now_is_noticed_and_holds_its_table(
    postgres_dsn: str,
) -> None:
    names, keys = ("visits", "sound"), {"visits": ("at", "visitor")}
    source, _ = declare("shop", dsn=postgres_dsn, tables=names, keys=keys)
    made = (
        TABLES
        + """
    CREATE TABLE visits (visitor int NOT NULL, at timestamptz NOT NULL, note text NOT NULL);
    ALTER TABLE visits REPLICA IDENTITY FULL;
    """
    )
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(made.encode())
    with connected(postgres_dsn) as connection:
        before = fingerprint(source, connection, "penstock_test_shop")
        connection.execute("ALTER TABLE visits ALTER COLUMN note DROP NOT NULL")
        assert fingerprint(source, connection, "penstock_test_shop") == before
        connection.execute("ALTER TABLE visits ALTER COLUMN visitor DROP NOT NULL")
        assert fingerprint(source, connection, "penstock_test_shop") != before
        scope = scope_of(source, connection, "penstock_test_shop", runs=True)
    assert scope.tables == {"public.sound": ("id",)}
    assert "visitor may be null" in scope.held["public.visits"]
