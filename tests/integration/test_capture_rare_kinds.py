"""What few people do with a captured table: it equals its source all the same, or it is held.

Prepared transactions, replica identities by an index, types inside of types, and the like. All of
it goes through one connector; the ways of tables that stand still are named with their reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from cdc import ddl
from cdc.connect import ConnectClient
from cdc.database import connected
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import request
from tests.support.services.waiting import until
from tests.support.sources.copying import BANK, BANK_TABLES, Copied
from tests.support.sources.mirroring import Mirror, mirrored

PLAIN = "CREATE TABLE {t} (id int PRIMARY KEY, a int, b text);" + (
    "INSERT INTO {t} SELECT g, g, 'b' || g FROM generate_series(1, 9) g;"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Statements on a table `{t}`, each by itself; `held` is in the reason why it stands still.

    `also` are further tables that are captured, `key` a declared key.
    """

    run: tuple[str, ...]
    made: str = PLAIN
    held: str | None = None
    also: tuple[str, ...] = ()
    key: tuple[str, ...] = ()


def prepared(*statements: str, end: str = "COMMIT") -> Kind:
    """Return a transaction that is prepared, another one that ends before it does, and its end."""
    return Kind(
        made=PLAIN + "CREATE TABLE {t}_2 (id int PRIMARY KEY); INSERT INTO {t}_2 VALUES (0);",
        also=("{t}_2",),
        run=(
            *("BEGIN", *statements, "PREPARE TRANSACTION '{t}'"),
            "INSERT INTO {t}_2 VALUES (1)",
            end + " PREPARED '{t}'",
            "INSERT INTO {t} (id, a) VALUES (901, 2)",
        ),
    )


CODED = (
    "CREATE TABLE {t} (id int PRIMARY KEY, code text NOT NULL, a int, large text);"
    "ALTER TABLE {t} ALTER large SET STORAGE EXTERNAL;"
    "CREATE UNIQUE INDEX {t}_code ON {t} (code);"
    "INSERT INTO {t} SELECT g, 'c' || g, g, repeat('x', 4000) FROM generate_series(1, 9) g;"
)
CHANGED = (
    "UPDATE {t} SET a = a + 1 WHERE id < 4",
    "UPDATE {t} SET id = id + 100 WHERE id = 5",
    "DELETE FROM {t} WHERE id = 6",
)
PARTED = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a int) PARTITION BY RANGE (id);"
    "CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (0) TO (100);"
    "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (100) TO (200);"
    "CREATE TABLE {t}_3 (id int NOT NULL, a int);"
    "INSERT INTO {t} SELECT g, g FROM generate_series(1, 9) g;"
)
UNTOLD = "untold"
"""The last kind: by then there are no event triggers."""
IDENTITY = "its replica identity is neither DEFAULT nor FULL"

KINDS: dict[str, Kind] = {
    "prepared": prepared("UPDATE {t} SET a = -a", "DELETE FROM {t} WHERE id = 3"),
    "prepared_undone": prepared("DELETE FROM {t}", end="ROLLBACK"),
    "prepared_ddl": prepared("ALTER TABLE {t} ADD c int DEFAULT 5", "UPDATE {t} SET c = 6, a = 1"),
    "prepared_truncate": prepared("TRUNCATE {t}", "INSERT INTO {t} VALUES (1, 2, 'behind it')"),
    "prepared_large": prepared(
        "INSERT INTO {t} SELECT g, g, repeat('y', 900) FROM generate_series(1000, 9000) g"
    ),
    "prepared_savepoints": prepared(
        "UPDATE {t} SET a = 1",
        "SAVEPOINT one",
        "ALTER TABLE {t} ADD c int DEFAULT 5",
        "UPDATE {t} SET a = 2, c = 3",
        "ROLLBACK TO one",
        "ALTER TABLE {t} ADD c text DEFAULT 'other'",
        "UPDATE {t} SET a = 3 WHERE id > 5",
    ),
    "by_index": Kind(
        made=CODED,
        run=("ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code", *CHANGED),
        held=IDENTITY,
    ),
    "by_index_dropped": Kind(
        made=CODED,
        run=(
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code",
            "DROP INDEX {t}_code",
            "INSERT INTO {t} VALUES (77, 'new', 1)",
        ),
        held=IDENTITY,
    ),
    "by_index_and_back": Kind(
        made=CODED,
        run=(
            "BEGIN",
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code",
            *CHANGED,
            "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
            "COMMIT",
        ),
        held=IDENTITY,
    ),
    "nothing_and_back": Kind(
        made=CODED,
        run=(
            "ALTER TABLE {t} REPLICA IDENTITY NOTHING",
            "INSERT INTO {t} VALUES (77, 'new', 1)",
            "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
            *CHANGED,
        ),
        held=IDENTITY,
    ),
    "full_and_back": Kind(
        made=CODED,
        run=(
            *("ALTER TABLE {t} REPLICA IDENTITY FULL", *CHANGED),
            *("ALTER TABLE {t} REPLICA IDENTITY DEFAULT", "UPDATE {t} SET a = 7, id = id + 1000"),
            *("BEGIN", "UPDATE {t} SET a = 8", "ALTER TABLE {t} REPLICA IDENTITY FULL"),
            *("UPDATE {t} SET a = 9, id = id - 1000", "DELETE FROM {t} WHERE code = 'c2'"),
            *("ALTER TABLE {t} REPLICA IDENTITY DEFAULT", "DELETE FROM {t} WHERE code = 'c3'"),
            "COMMIT",
        ),
    ),
    "declared": Kind(
        made=CODED + "ALTER TABLE {t} REPLICA IDENTITY FULL;",
        key=("code",),
        run=(
            "BEGIN",
            "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
            "DELETE FROM {t} WHERE id = 2",
            "UPDATE {t} SET code = 'other' WHERE id = 3",
            "ALTER TABLE {t} REPLICA IDENTITY FULL",
            "COMMIT",
            "UPDATE {t} SET a = 5",
        ),
        held="",
    ),
    "unlogged": Kind(
        run=(
            "ALTER PUBLICATION {publication} DROP TABLE {t}",
            "ALTER TABLE {t} SET UNLOGGED",
            "DELETE FROM {t} WHERE id = 1",
            "ALTER TABLE {t} SET LOGGED",
            "ALTER PUBLICATION {publication} ADD TABLE {t}",
        ),
        held="it is unlogged now",
    ),
    "unlogged_part": Kind(
        made=PARTED,
        run=("ALTER TABLE {t}_1 SET UNLOGGED", "DELETE FROM {t} WHERE id = 1"),
        held="a partition is unlogged",
    ),
    "part_by_nothing": Kind(
        made=PARTED,
        run=("ALTER TABLE {t}_1 REPLICA IDENTITY NOTHING", "INSERT INTO {t} VALUES (50, 1)"),
        held=IDENTITY,
    ),
    "parts": Kind(
        made=PARTED,
        run=(
            "ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (200) TO (300)",
            "INSERT INTO {t} VALUES (250, 1), (150, 1)",
            "UPDATE {t} SET id = 251 WHERE id = 1",
            "CREATE TABLE {t}_4 PARTITION OF {t} DEFAULT",
            "INSERT INTO {t} VALUES (1250, 1)",
            "ALTER TABLE {t} ADD c int DEFAULT 4",
            "ALTER TABLE {t}_1 REPLICA IDENTITY FULL",
            "UPDATE {t} SET a = a + 1, id = id + 2 WHERE id > 8",
            "DELETE FROM {t} WHERE id IN (2, 152)",
        ),
    ),
    "part_detached": Kind(
        made=PARTED,
        run=("ALTER TABLE {t} DETACH PARTITION {t}_1 CONCURRENTLY", "INSERT INTO {t} VALUES (150)"),
        held="a partition was taken away",
    ),
    "part_with_rows": Kind(
        made=PARTED,
        run=(
            "INSERT INTO {t}_3 VALUES (250)",
            "ALTER TABLE {t} ATTACH PARTITION {t}_3 FOR VALUES FROM (200) TO (300)",
        ),
        held="attached that had rows",
    ),
    "generated": Kind(
        run=(
            "ALTER TABLE {t} ADD twice int GENERATED ALWAYS AS (a * 2) STORED",
            "UPDATE {t} SET a = a + 1",
            "ALTER TABLE {t} ALTER twice SET EXPRESSION AS (a * 3)",
            "INSERT INTO {t} (id, a) VALUES (77, 7)",
            "ALTER TABLE {t} DROP twice",
            "DELETE FROM {t} WHERE id = 3",
        ),
    ),
    "generated_no_more": Kind(
        run=(
            "ALTER TABLE {t} ADD twice int GENERATED ALWAYS AS (a * 2) STORED",
            "ALTER TABLE {t} ALTER twice DROP EXPRESSION",
        ),
        held="column twice was generated",
    ),
    "counted": Kind(
        made="CREATE TABLE {t} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int);"
        "INSERT INTO {t} (a) SELECT g FROM generate_series(1, 9) g;",
        run=(
            "ALTER TABLE {t} ALTER id RESTART WITH 100",
            "INSERT INTO {t} (a) VALUES (1)",
            "TRUNCATE {t} RESTART IDENTITY",
            "INSERT INTO {t} (a) VALUES (2), (3)",
            "ALTER TABLE {t} ALTER id DROP IDENTITY",
            "INSERT INTO {t} VALUES (300, 3)",
        ),
    ),
    "domains": Kind(
        made="CREATE DOMAIN {t}_d AS numeric(8, 2);"
        "CREATE TABLE {t} (id int PRIMARY KEY, d {t}_d, e numeric(8, 2));"
        "INSERT INTO {t} SELECT g, g, g FROM generate_series(1, 9) g;",
        run=(
            "ALTER TABLE {t} ALTER e TYPE {t}_d",
            "ALTER DOMAIN {t}_d SET DEFAULT 7",
            "INSERT INTO {t} (id) VALUES (50)",
            "ALTER TABLE {t} ADD f {t}_d",
            "ALTER DOMAIN {t}_d ADD CHECK (VALUE > -100)",
            "ALTER DOMAIN {t}_d RENAME TO {t}_x",
            "UPDATE {t} SET e = 3 WHERE id < 4",
            "DROP DOMAIN {t}_x CASCADE",
            "UPDATE {t} SET id = id + 100 WHERE id < 4",
            "ALTER TABLE {t} ADD d text DEFAULT 'again'",
            "INSERT INTO {t} (id) VALUES (51)",
        ),
    ),
    "enums": Kind(
        made="CREATE TYPE {t}_m AS ENUM ('sad', 'ok');"
        "CREATE TABLE {t} (id int PRIMARY KEY, m {t}_m);"
        "INSERT INTO {t} SELECT g, 'ok' FROM generate_series(1, 9) g;",
        run=(
            "ALTER TYPE {t}_m ADD VALUE 'glad' BEFORE 'sad'",
            "UPDATE {t} SET m = 'glad' WHERE id < 4",
            "ALTER TYPE {t}_m RENAME VALUE 'ok' TO 'fine'",
            "INSERT INTO {t} VALUES (50, 'fine')",
            "ALTER TYPE {t}_m RENAME VALUE 'glad' TO 'ok'",
            "UPDATE {t} SET m = 'ok' WHERE id = 6",
        ),
    ),
    "enums_inside": Kind(
        made="CREATE TYPE {t}_m AS ENUM ('sad', 'ok'); CREATE TYPE {t}_c AS (m {t}_m, n int);"
        "CREATE TABLE {t} (id int PRIMARY KEY, c {t}_c);"
        "INSERT INTO {t} SELECT g, ('ok', g)::{t}_c FROM generate_series(1, 9) g;",
        run=(
            "ALTER TYPE {t}_m ADD VALUE 'glad'",
            "UPDATE {t} SET c = ('glad', 1) WHERE id < 4",
            "ALTER TYPE {t}_m RENAME VALUE 'ok' TO 'fine'",
            "INSERT INTO {t} VALUES (50, ('fine', 1))",
        ),
        held="are called otherwise",
    ),
    "enums_added_inside": Kind(
        made="CREATE TYPE {t}_m AS ENUM ('sad', 'ok'); CREATE TYPE {t}_c AS (m {t}_m, n int);"
        "CREATE TABLE {t} (id int PRIMARY KEY, c {t}_c[]);"
        "INSERT INTO {t} SELECT g, ARRAY[('ok', g)::{t}_c] FROM generate_series(1, 9) g;",
        run=(
            "ALTER TYPE {t}_m ADD VALUE 'glad'",
            "UPDATE {t} SET c = ARRAY[('glad', 1)::{t}_c] WHERE id < 4",
        ),
    ),
    "enums_as_ends": Kind(
        made="CREATE TYPE {t}_m AS ENUM ('sad', 'ok');"
        "CREATE TYPE {t}_r AS RANGE (subtype = {t}_m);"
        "CREATE TABLE {t} (id int PRIMARY KEY, r {t}_r);"
        "INSERT INTO {t} SELECT g, '[sad,ok]' FROM generate_series(1, 9) g;",
        run=("ALTER TYPE {t}_m RENAME VALUE 'ok' TO 'fine'", "INSERT INTO {t} VALUES (50)"),
        held="are called otherwise",
    ),
    "types_inside": Kind(
        made="CREATE TYPE {t}_i AS (n int); CREATE TYPE {t}_c AS (i {t}_i, n int);"
        "CREATE TABLE {t} (id int PRIMARY KEY, c {t}_c);"
        "INSERT INTO {t} SELECT g, (ROW(g)::{t}_i, g)::{t}_c FROM generate_series(1, 9) g;",
        run=("ALTER TYPE {t}_i ADD ATTRIBUTE more int", "INSERT INTO {t} VALUES (50)"),
        held="a composite type of its columns",
    ),
    "rows_inside": Kind(
        made="CREATE TABLE {t}_of (n int); CREATE TABLE {t} (id int PRIMARY KEY, c {t}_of);"
        "INSERT INTO {t} SELECT g, ROW(g)::{t}_of FROM generate_series(1, 9) g;",
        run=("ALTER TABLE {t}_of ADD more int", "INSERT INTO {t} VALUES (50)"),
        held="a composite type of its columns",
    ),
    "defaults": Kind(
        run=(
            "ALTER TABLE {t} ADD c int DEFAULT 5, ADD d timestamptz DEFAULT now()",
            "UPDATE {t} SET c = 1 WHERE id < 4",
            "ALTER TABLE {t} ALTER c SET DEFAULT 6, ALTER d DROP DEFAULT",
            "INSERT INTO {t} (id) VALUES (50)",
            "BEGIN",
            "ALTER TABLE {t} DROP c",
            "INSERT INTO {t} (id) VALUES (51)",
            "ALTER TABLE {t} ADD c text DEFAULT 'x'",
            "INSERT INTO {t} (id) VALUES (52)",
            "ALTER TABLE {t} DROP c, ADD c bigint DEFAULT 12",
            "COMMIT",
            "UPDATE {t} SET c = 8 WHERE id = 4",
        ),
    ),
    "cascade": Kind(
        made=PLAIN + "CREATE TABLE {t}_2 (id int PRIMARY KEY, p int REFERENCES {t});"
        "CREATE TABLE {t}_3 (id int PRIMARY KEY, p int REFERENCES {t}_2);"
        "INSERT INTO {t}_2 SELECT id, id FROM {t}; INSERT INTO {t}_3 SELECT id, id FROM {t};",
        also=("{t}_2", "{t}_3"),
        run=(
            "BEGIN",
            "INSERT INTO {t} VALUES (40)",
            "SAVEPOINT one",
            "TRUNCATE {t} CASCADE",
            "INSERT INTO {t} VALUES (41)",
            "ROLLBACK TO one",
            "INSERT INTO {t}_3 VALUES (42, 4)",
            "TRUNCATE {t}_2 CASCADE",
            "INSERT INTO {t}_2 VALUES (43, 4)",
            "COMMIT",
            "TRUNCATE {t} CASCADE",
            "INSERT INTO {t} VALUES (44)",
            "INSERT INTO {t}_2 VALUES (45, 44)",
        ),
    ),
    "succeeded": Kind(
        run=(
            "BEGIN",
            "ALTER TABLE {t} RENAME TO {t}_old",
            "CREATE TABLE {t} (LIKE {t}_old INCLUDING ALL)",
            "INSERT INTO {t} VALUES (1, 1, 'new')",
            "COMMIT",
            "UPDATE {t}_old SET a = 0",
        ),
        held="_old now",
    ),
    "swapped": Kind(
        made=PLAIN
        + "CREATE TABLE {t}_2 (id int PRIMARY KEY, c int); INSERT INTO {t}_2 VALUES (1);",
        also=("{t}_2",),
        run=(
            "BEGIN",
            "ALTER TABLE {t} RENAME TO {t}_x",
            "ALTER TABLE {t}_2 RENAME TO {t}",
            "ALTER TABLE {t}_x RENAME TO {t}_2",
            "COMMIT",
            "INSERT INTO {t} VALUES (2, 2)",
            "UPDATE {t}_2 SET a = 0",
        ),
        held="_x now",
    ),
    "schemas": Kind(
        made=PLAIN + "CREATE SCHEMA {t}_s; CREATE TABLE {t}_s.thing (id int PRIMARY KEY);"
        "INSERT INTO {t}_s.thing VALUES (0);",
        also=("{t}_s.thing",),
        run=(
            "INSERT INTO {t}_s.thing VALUES (1)",
            "ALTER SCHEMA {t}_s RENAME TO {t}_r",
            "INSERT INTO {t}_r.thing VALUES (2)",
        ),
        held="_r.thing now",
    ),
    "policed": Kind(
        run=(
            "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
            "CREATE POLICY none ON {t} USING (false)",
            "UPDATE {t} SET a = a + 1",
            "DELETE FROM {t} WHERE id = 1",
            "REVOKE ALL ON {t} FROM PUBLIC",
        ),
    ),
    "keys": Kind(
        run=(
            "ALTER TABLE {t} ALTER id TYPE bigint",
            "INSERT INTO {t} VALUES (5000000000)",
            "UPDATE {t} SET id = -1 WHERE id = 1",
            "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id)",
            "DELETE FROM {t} WHERE id = 2",
            "UPDATE {t} SET a = 5 WHERE id = 3",
        ),
    ),
    "keys_of_others": Kind(
        run=("ALTER TABLE {t} ALTER id TYPE text USING id::text", "INSERT INTO {t} VALUES ('x')"),
        held="",
    ),
    "undone": Kind(
        run=(
            "BEGIN",
            "SAVEPOINT one",
            "ALTER TABLE {t} ADD c int DEFAULT 5, ALTER a TYPE text USING a || '!'",
            "INSERT INTO {t} VALUES (40)",
            "ROLLBACK TO one",
            "INSERT INTO {t} VALUES (41)",
            "SAVEPOINT two",
            "ALTER TABLE {t} RENAME TO {t}_gone",
            "DROP TABLE {t}_gone",
            "ROLLBACK TO two",
            "ALTER TABLE {t} ADD c text DEFAULT 'kept'",
            "UPDATE {t} SET a = 3 WHERE id = 3",
            "COMMIT",
        ),
    ),
    "messages": Kind(
        run=(
            "SELECT pg_logical_emit_message(false, 'penstock.ddl', 'nothing of ours')",
            "SELECT pg_logical_emit_message(false, 'penstock.ddl', '')",
            "SELECT pg_logical_emit_message(true, 'penstock.other', repeat('x', 1000000))",
            "SELECT pg_logical_emit_message(true, 'others', repeat('x', 9000000))",
            "BEGIN",
            "UPDATE {t} SET a = 1",
            "SELECT pg_logical_emit_message(true, 'penstock.ddl', '')",
            "SELECT pg_logical_emit_message(false, 'penstock.x', 'amid')",
            "UPDATE {t} SET a = 2 WHERE id = 2",
            "COMMIT",
        ),
    ),
    "files": Kind(
        run=(
            "VACUUM FULL {t}",
            "UPDATE {t} SET a = 1",
            "CLUSTER {t} USING {t}_pkey",
            "DELETE FROM {t} WHERE id = 4",
            "REINDEX TABLE {t}",
            "BEGIN",
            "UPDATE {t} SET a = 2",
            "CLUSTER {t} USING {t}_pkey",
            "UPDATE {t} SET b = 'behind it'",
            "COMMIT",
        ),
    ),
    UNTOLD: Kind(
        made=CODED,
        run=(
            "ALTER TABLE {t} REPLICA IDENTITY USING INDEX {t}_code",
            "DELETE FROM {t} WHERE id = 2",
            "ALTER TABLE {t} REPLICA IDENTITY DEFAULT",
        ),
        held="its replica identity does not have its key",
    ),
}


@dataclass
class Rare:
    """One mirror of all tables of the kinds."""

    mirror: Mirror
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self, name: str) -> None:
        """Do what a kind does, each statement by itself."""
        publication = "penstock_test_" + self.mirror.name
        with psycopg.connect(self.mirror.dsn, autocommit=True) as connection:
            for statement in KINDS[name].run:
                text = statement.replace("{t}", name).replace("{publication}", publication)
                connection.execute(text.encode())

    def outcome(self, name: str) -> str | list[str]:
        """Say why one of a kind's tables is held, or what differs in them."""
        held = self.mirror.held()
        for table in self.names[name]:
            if table in held:
                return held[table].reason
        return [f"{t}: {each}" for t in self.names[name] for each in self.mirror.differing(t)]


def tables_of(name: str) -> tuple[str, ...]:
    """Return the tables that are captured of a kind."""
    found = [each.replace("{t}", name) for each in ("{t}", *KINDS[name].also)]
    return tuple(each if "." in each else f"public.{each}" for each in found)


@pytest.mark.matrix
def test_p4_what_is_rarely_done_is_followed_or_holds_its_table(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, postgres_dsn: str
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as making:
        for name, kind in KINDS.items():
            making.execute(kind.made.replace("{t}", name).encode())
    names = {name: tables_of(name) for name in KINDS}
    every = [table for tables in names.values() for table in tables]
    keys = {f"public.{name}": kind.key for name, kind in KINDS.items() if kind.key}
    with mirrored(stack, spark, lake, prefix, postgres_dsn, every, keys) as mirror:
        rare = Rare(mirror, names)
        mirror.catch_up()
        mirror.assert_equal()
        for number, name in enumerate(KINDS):
            if name == UNTOLD:
                with connected(postgres_dsn) as connection:
                    assert ddl.remove(connection)
            rare.run(name)
            if number % 5 == 4:
                mirror.catch_up()
        mirror.catch_up()
        found = {name: rare.outcome(name) for name in KINDS}
    wrong = {
        name: found[name]
        for name, kind in KINDS.items()
        if (found[name] != [] if kind.held is None else kind.held not in found[name])
        or (kind.held is not None and not isinstance(found[name], str))
    }
    assert wrong == {}


@pytest.mark.matrix
def test_p4_a_prepared_transaction_is_not_lost_over_restarts_of_its_connector(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, postgres_dsn: str
) -> None:
    """The connector confirms what committed after it was prepared, and before it was committed."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(PLAIN.replace("{t}", "held_open").encode())
    with (
        mirrored(stack, spark, lake, prefix, postgres_dsn, ["public.held_open"]) as mirror,
        psycopg.connect(postgres_dsn, autocommit=True) as connection,
    ):
        mirror.catch_up()
        for statement in ("BEGIN", "UPDATE held_open SET a = -a", "PREPARE TRANSACTION 'open'"):
            connection.execute(statement.encode())
        name = f"{mirror.placement.workspace}-{mirror.name}"
        with ConnectClient(stack.required("connect.url")) as connect:
            for number in range(3):
                mirror.execute(f"INSERT INTO held_open VALUES ({50 + number})")
                mirror.catch_up()
                connect.stop(name)
                connect.await_status(name, lambda status: status.task is None, timeout_s=120.0)
                connection.execute(b"CHECKPOINT")
                if number == 2:
                    connection.execute(b"COMMIT PREPARED 'open'")
                connect.resume(name)
                connect.await_running(name)
        mirror.catch_up()
        mirror.assert_equal()
        assert mirror.held() == {}


@pytest.mark.matrix
def test_p4_a_copy_waits_for_what_is_prepared_and_loses_none_of_it(
    tmp_path: Path, stack: Settings, spark: SparkSession, postgres_dsn: str
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(BANK.format(rows=500).encode())
        bank = Copied(tmp_path, stack, spark, postgres_dsn, BANK_TABLES)
        try:
            bank.start()
            copies = 0
            with bank.copying():
                for name in ("first", "second"):
                    for statement in (
                        *("BEGIN", "UPDATE accounts SET balance = balance + 1 WHERE id < 100"),
                        "INSERT INTO transfers (to_id) VALUES (7)",
                        f"PREPARE TRANSACTION '{name}'",
                    ):
                        connection.execute(statement.encode())
                    if copies:
                        request(bank.lake, Tables(), bank.name, BANK_TABLES, reason="a test")
                    until(lambda: waits(connection), "a copy waits", deadline_s=60)
                    bank.execute("UPDATE accounts SET balance = -1 WHERE id > 400")
                    connection.execute(f"COMMIT PREPARED '{name}'".encode())
                    copies += 2
                    bank.run_until_installed(copies)
            bank.catch_up()
            assert bank.differing() == []
        finally:
            bank.close()


def waits(connection: psycopg.Connection[tuple[object, ...]]) -> bool:
    """Say whether a slot is being made that waits for what is prepared."""
    query = (
        "SELECT 0 = ANY (pg_blocking_pids(pid)) FROM pg_stat_activity"
        " WHERE backend_type = 'walsender'"
    )
    return (True,) in connection.execute(query.encode()).fetchall()
