"""Every kind of change on its whole way: source, connector, log, `current`; row hash for row hash.

All kinds go through one stack and few epochs: first all in one epoch, then cut into several.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from pyspark.sql import SparkSession

from apps.settings import Settings
from lake.layout import Lake
from tests.support.sources.mirroring import Mirror, mirrored

SOURCE = """
CREATE TABLE plain (id int PRIMARY KEY, a int, note text, large text);
ALTER TABLE plain ALTER large SET STORAGE EXTERNAL;
CREATE TABLE full_image (id int PRIMARY KEY, a int, large text);
ALTER TABLE full_image ALTER large SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE pair (low int, high text, a int, PRIMARY KEY (low, high));
CREATE TABLE visit (who int NOT NULL, at timestamp NOT NULL, page text);
ALTER TABLE visit REPLICA IDENTITY FULL;
CREATE TABLE event (id int, at date, a int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE event_2 PARTITION OF event FOR VALUES FROM ('2021-01-01') TO ('2022-01-01');
CREATE TABLE parent (id int PRIMARY KEY, a int);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent, a int);
INSERT INTO plain SELECT g, g, 'n', repeat('x', 4000) FROM generate_series(1, 30) g;
INSERT INTO full_image SELECT g, g, repeat('y', 4000) FROM generate_series(1, 30) g;
INSERT INTO pair SELECT g, 'h' || g, g FROM generate_series(1, 20) g;
INSERT INTO visit SELECT g, '2020-01-01', 'p' || g FROM generate_series(1, 20) g;
INSERT INTO event SELECT g, date '2020-01-01' + g * 30, g FROM generate_series(1, 20) g;
INSERT INTO parent SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO child SELECT g, g, g FROM generate_series(1, 9) g;
"""
NAMES = ("plain", "full_image", "pair", "visit", "event", "parent", "child")
TABLES = tuple(f"public.{name}" for name in NAMES)

KINDS: dict[str, tuple[str, ...]] = {
    "several changes of a key": (
        "UPDATE plain SET a = 100 WHERE id = 1",
        "UPDATE plain SET a = 101 WHERE id = 1",
        "UPDATE plain SET note = NULL WHERE id = 1",
    ),
    "insert, delete, insert": (
        "INSERT INTO plain VALUES (500, 1, 'first', 'l')",
        "DELETE FROM plain WHERE id = 500",
        "INSERT INTO plain VALUES (500, 2, 'second', repeat('z', 3000))",
    ),
    "delete, insert of a stored key": (
        "DELETE FROM plain WHERE id = 2",
        "INSERT INTO plain VALUES (2, -2, NULL, NULL)",
    ),
    "insert and delete": (
        "INSERT INTO pair VALUES (900, 'x', 1)",
        "DELETE FROM pair WHERE low = 900",
    ),
    "a key changed, its large value left alone": ("UPDATE plain SET id = id + 1000 WHERE id = 3",),
    "a key changed twice": (
        "UPDATE plain SET id = 2000 WHERE id = 4",
        "UPDATE plain SET id = 2001, a = 7 WHERE id = 2000",
    ),
    "keys swapped": (
        "UPDATE plain SET id = -5 WHERE id = 5",
        "UPDATE plain SET id = 5 WHERE id = 6",
        "UPDATE plain SET id = 6 WHERE id = -5",
    ),
    "a key changed under full identity": ("UPDATE full_image SET id = id + 100 WHERE id < 4",),
    "half of a composite key": (
        "UPDATE pair SET high = 'other' WHERE low = 1",
        "UPDATE pair SET low = low + 100 WHERE low BETWEEN 2 AND 4",
    ),
    "large values left alone, set and cleared": (
        "UPDATE plain SET a = a + 1 WHERE id BETWEEN 10 AND 20",
        "UPDATE plain SET large = 'short' WHERE id = 11",
        "UPDATE plain SET a = 0 WHERE id IN (11, 12)",
        "UPDATE plain SET large = NULL WHERE id = 13",
        "UPDATE full_image SET a = a + 1",
    ),
    "a declared key": (
        "UPDATE visit SET page = 'q' WHERE who < 5",
        "DELETE FROM visit WHERE who = 6",
        "UPDATE visit SET who = 70 WHERE who = 7",
    ),
    "rows that move between partitions": (
        "UPDATE event SET at = '2021-06-06', a = -1 WHERE id = 1",
        "INSERT INTO event_2 VALUES (77, '2021-07-07', 1)",
        "DELETE FROM event WHERE id = 2",
    ),
    "work rolled back to savepoints": (
        "UPDATE plain SET a = 1 WHERE id = 21",
        "SAVEPOINT one",
        "UPDATE plain SET a = 2 WHERE id = 21",
        "DELETE FROM plain WHERE id = 22",
        "SAVEPOINT two",
        "UPDATE plain SET a = 3 WHERE id = 21",
        "ROLLBACK TO two",
        "ROLLBACK TO one",
        "UPDATE plain SET note = 'kept' WHERE id = 21",
        "SAVEPOINT three",
        "UPDATE plain SET note = 'released' WHERE id = 23",
        "RELEASE three",
    ),
    "work rolled back whole": ("DELETE FROM plain", "TRUNCATE pair", "ROLLBACK"),
    "truncate among rows": (
        "INSERT INTO child VALUES (50, 1, 1)",
        "UPDATE child SET a = 9",
        "TRUNCATE child",
        "INSERT INTO child VALUES (51, 2, 2)",
        "UPDATE child SET a = 3",
    ),
    "truncate of several tables": (
        "TRUNCATE parent, child",
        "INSERT INTO parent VALUES (1, 1)",
    ),
    "truncate by cascade": ("TRUNCATE parent CASCADE", "INSERT INTO parent VALUES (2, 2)"),
    "truncate of a partitioned table": (
        "TRUNCATE event",
        "INSERT INTO event VALUES (1, '2020-05-05', 5), (2, '2021-05-05', 6)",
    ),
    "truncate alone": ("TRUNCATE full_image",),
    "truncate, and rows in a later transaction": ("INSERT INTO full_image VALUES (1, 1, 'again')",),
}


def run(mirror: Mirror, kind: str) -> None:
    """Run one kind as a transaction."""
    with psycopg.connect(mirror.dsn) as connection:
        for statement in KINDS[kind]:
            connection.execute(statement.encode())


def test_p4_every_kind_of_change_arrives(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
) -> None:
    keys = {"public.visit": ("who", "at")}
    with mirrored(stack, spark, lake, prefix, new_source(SOURCE), TABLES, keys) as mirror:
        mirror.catch_up()
        mirror.assert_equal()
        for kind in KINDS:
            run(mirror, kind)
        mirror.catch_up()
        mirror.assert_equal()
        with psycopg.connect(mirror.dsn) as connection:
            # The same again from the first rows, cut into epochs between the kinds.
            connection.execute(f"TRUNCATE {', '.join(NAMES)}".encode())
            connection.execute(SOURCE[SOURCE.index("INSERT") :].encode())
        for number, kind in enumerate(KINDS):
            if number % 6 == 0:
                mirror.catch_up()
            run(mirror, kind)
        mirror.catch_up()
        mirror.assert_equal()
        assert mirror.held() == {}
