"""More of what few people do with a captured table: keys, names, partitions, and DDL that is none.

The ways are those of `test_capture_rare_kinds`, through one connector of their own.
"""

from __future__ import annotations

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from lake.layout import Lake
from tests.integration.test_capture_rare_kinds import PARTED, PLAIN, Kind, Rare
from tests.support.sources.mirroring import mirrored

LARGE = (
    "CREATE TABLE {t} (id int PRIMARY KEY, a int, large text);"
    "ALTER TABLE {t} ALTER large SET STORAGE EXTERNAL;"
    "INSERT INTO {t} SELECT g, g, repeat(g::text, 4000) FROM generate_series(1, 9) g;"
)
EXCHANGED = (
    "BEGIN",
    "UPDATE {t} SET id = -1 WHERE id = 1",
    "UPDATE {t} SET id = 1 WHERE id = 2",
    "UPDATE {t} SET id = 2 WHERE id = -1",
    "COMMIT",
    "UPDATE {t} SET id = id + 1000",
)
KINDS: dict[str, Kind] = {
    "columns_swapped": Kind(
        run=(
            "BEGIN",
            "ALTER TABLE {t} ADD c int DEFAULT 5",
            "UPDATE {t} SET c = id * 2 WHERE id < 5",
            "ALTER TABLE {t} RENAME a TO x",
            "ALTER TABLE {t} RENAME c TO a",
            "ALTER TABLE {t} RENAME x TO c",
            "UPDATE {t} SET a = 77 WHERE id = 1",
            "COMMIT",
            "UPDATE {t} SET c = 78 WHERE id = 2",
        ),
    ),
    "key_swapped": Kind(
        run=(
            "BEGIN",
            "UPDATE {t} SET a = id + 100",
            "ALTER TABLE {t} RENAME id TO x",
            "ALTER TABLE {t} RENAME a TO id",
            "ALTER TABLE {t} RENAME x TO a",
            "COMMIT",
            "UPDATE {t} SET b = 'z' WHERE a = 3",
            "DELETE FROM {t} WHERE a = 4",
        ),
    ),
    "another_key": Kind(
        run=(
            "UPDATE {t} SET a = id + 100",
            "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (a)",
            "DELETE FROM {t} WHERE id = 4",
        ),
        held="its primary key was (id) and is (a)",
    ),
    "key_deferred": Kind(
        made=PLAIN + "ALTER TABLE {t} REPLICA IDENTITY FULL;",
        run=(
            "ALTER TABLE {t} DROP CONSTRAINT {t}_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
            "UPDATE {t} SET id = id + 1",
        ),
        held="its primary key is DEFERRABLE: an update may give a row the key of another",
    ),
    "made_anew": Kind(
        run=("BEGIN", "DROP TABLE {t}", "CREATE TABLE {t} (id int PRIMARY KEY)", "COMMIT"),
        held="it was dropped",
    ),
    "same_keys": Kind(
        run=(
            "BEGIN",
            "INSERT INTO {t} VALUES (40)",
            "DELETE FROM {t} WHERE id = 40",
            "INSERT INTO {t} VALUES (40, 1)",
            "UPDATE {t} SET id = 41 WHERE id = 40",
            "DELETE FROM {t} WHERE id IN (1, 41)",
            "INSERT INTO {t} VALUES (1, 5, 'again')",
            "SAVEPOINT s",
            "INSERT INTO {t} VALUES (42, 1)",
            "ROLLBACK TO s",
            "INSERT INTO {t} VALUES (42, 2)",
            "INSERT INTO {t} VALUES (42) ON CONFLICT (id) DO UPDATE SET a = {t}.a + 10",
            "MERGE INTO {t} USING (VALUES (42, 9), (43, 9), (2, 0)) v (id, a) ON {t}.id = v.id"
            " WHEN MATCHED AND v.a = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET a = v.a"
            " WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.a)",
            "COMMIT",
        ),
    ),
    "exchanged": Kind(made=LARGE, run=EXCHANGED),
    "exchanged_whole": Kind(made=LARGE + "ALTER TABLE {t} REPLICA IDENTITY FULL;", run=EXCHANGED),
    "ddl_that_is_none": Kind(
        run=(
            "ALTER TABLE {t} ADD COLUMN IF NOT EXISTS a int",
            "CREATE TABLE IF NOT EXISTS {t} (x int)",
            "COMMENT ON COLUMN {t}.a IS 'y'",
            "CREATE INDEX CONCURRENTLY {t}_i ON {t} (a)",
            "CREATE STATISTICS {t}_st ON a, b FROM {t}",
            "ALTER TABLE {t} SET (fillfactor = 50)",
            "ALTER TABLE {t} ADD CONSTRAINT {t}_c CHECK (a <> 999) NOT VALID",
            "ALTER TABLE {t} VALIDATE CONSTRAINT {t}_c",
            "ALTER TABLE {t} ALTER b SET COMPRESSION pglz, ALTER b SET STORAGE MAIN",
            "ALTER TABLE {t} DISABLE TRIGGER ALL",
            "ALTER TABLE {t} RENAME CONSTRAINT {t}_pkey TO {t}_pk",
            "ALTER TABLE {t} ALTER a SET DEFAULT 3",
            "UPDATE {t} SET a = a",
            "INSERT INTO {t} (id) VALUES (52)",
        ),
    ),
    "of_a_replica": Kind(
        run=(
            "BEGIN",
            "SET LOCAL session_replication_role = replica",
            "INSERT INTO {t} VALUES (50)",
            "ALTER TABLE {t} ADD c int DEFAULT 6",
            "UPDATE {t} SET a = 0 WHERE id = 1",
            "COMMIT",
        ),
    ),
    "of_a_block": Kind(
        run=(
            "DO $$ BEGIN ALTER TABLE {t} ADD c int DEFAULT 6; INSERT INTO {t} VALUES (50);"
            " BEGIN ALTER TABLE {t} DROP c; ALTER TABLE {t} ADD d text;"
            " INSERT INTO {t} (id, d) VALUES (51, 'x'); RAISE EXCEPTION 'undone';"
            " EXCEPTION WHEN others THEN NULL; END;"
            " INSERT INTO {t} (id, c) VALUES (52, 7); END $$",
        ),
    ),
    "parts_of_other_order": Kind(
        made=PARTED
        + "CREATE TABLE {t}_o (x text, a int, id int NOT NULL); ALTER TABLE {t}_o DROP x;",
        run=(
            "ALTER TABLE {t} ATTACH PARTITION {t}_o FOR VALUES FROM (200) TO (300)",
            "INSERT INTO {t} VALUES (250, 7)",
            "UPDATE {t} SET id = 251 WHERE id = 1",
            "UPDATE {t} SET id = 1, a = 8 WHERE id = 250",
            "ALTER TABLE {t} ADD c text DEFAULT 'd'",
            "INSERT INTO {t} VALUES (252, 1, 'c')",
            "DELETE FROM {t} WHERE id = 251",
        ),
    ),
    "keys_of_time": Kind(
        made="CREATE EXTENSION IF NOT EXISTS btree_gist; CREATE TABLE {t}"
        " (id int, at daterange, a int, PRIMARY KEY (id, at WITHOUT OVERLAPS));"
        "INSERT INTO {t} VALUES (1, '[2020-01-01,2021-01-01)', 1), (1, '[2021-01-01,)', 2);",
        run=(
            "UPDATE {t} SET a = 5 WHERE at @> '2020-05-05'::date",
            "UPDATE {t} SET at = '[2021-01-01,2022-01-01)' WHERE a = 2",
            "INSERT INTO {t} VALUES (2, '(,)', 1)",
            "DELETE FROM {t} WHERE a = 5",
        ),
    ),
    "keys_of_rows": Kind(
        made="CREATE TYPE {t}_k AS (a int, b text); CREATE TABLE {t} (k {t}_k PRIMARY KEY, x int);"
        "INSERT INTO {t} VALUES ((1, 'a,\"b'), 1), ((1, NULL), 2);",
        run=(
            "UPDATE {t} SET x = x + 1",
            "UPDATE {t} SET k = (2, '') WHERE x = 2",
            "DELETE FROM {t} WHERE x = 3",
        ),
    ),
}


@pytest.mark.matrix
def test_p4_what_is_unusual_is_followed_or_holds_its_table(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, postgres_dsn: str
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        for name, kind in KINDS.items():
            connection.execute(kind.made.replace("{t}", name).encode())
        names = {name: (f"public.{name}",) for name in KINDS}
        every = [table for tables in names.values() for table in tables]
        with mirrored(stack, spark, lake, prefix, postgres_dsn, every) as mirror:
            mirror.catch_up()
            mirror.assert_equal()
            for name, kind in KINDS.items():
                for statement in kind.run:
                    connection.execute(statement.replace("{t}", name).encode())
            mirror.catch_up()
            rare = Rare(mirror, names)
            found = {name: rare.outcome(name) for name in KINDS}
    expected = {name: [] if kind.held is None else kind.held for name, kind in KINDS.items()}
    assert found == expected
