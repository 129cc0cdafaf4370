"""Rows that the connector's own snapshot reads of tables that others inherit from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from apps.settings import Settings
from schemas.records import Operation
from tests.support.sources.capturing import Captured, prepare

FAMILY = """
CREATE TABLE animal (id int PRIMARY KEY, name text, secret text);
CREATE TABLE dog (legs int, PRIMARY KEY (id)) INHERITS (animal);
CREATE TABLE puppy (weeks int) INHERITS (dog);
CREATE TABLE "it's a ""table" (id int PRIMARY KEY);
CREATE TABLE "its child" () INHERITS ("it's a ""table");
CREATE TABLE visits (id int PRIMARY KEY, "the day" date) PARTITION BY RANGE (id);
CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (1) TO (5) PARTITION BY RANGE (id);
CREATE TABLE visits_11 PARTITION OF visits_1 FOR VALUES FROM (1) TO (3);
CREATE TABLE visits_12 PARTITION OF visits_1 FOR VALUES FROM (3) TO (5);
CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM (5) TO (9);
INSERT INTO animal VALUES (1, 'animal 1', 's'), (2, 'animal 2', NULL);
INSERT INTO dog VALUES (1, 'dog 1', 's', 4), (3, 'dog 3', 's', 3);
INSERT INTO puppy VALUES (1, 'puppy 1', 's', 4, 7);
INSERT INTO "it's a ""table" VALUES (1); INSERT INTO "its child" VALUES (1), (2);
INSERT INTO visits SELECT g, '2024-01-01' FROM generate_series(1, 8) g;
"""


@contextmanager
def capturing(stack: Settings, dsn: str, *tables: str) -> Iterator[Captured]:
    found = prepare(stack, dsn, tables, {})
    try:
        found.start()
        found.await_snapshot()
        yield found
    finally:
        found.remove()


def test_a_snapshot_of_the_connector_reads_a_tables_own_rows(
    stack: Settings, new_source: Callable[[str], str]
) -> None:
    """Rows of tables that inherit came as their parent's, under keys that the parent has, too."""
    odd = "public.it's a \"table"
    tables = ("public.animal", "public.dog", "public.visits", odd)
    with capturing(stack, new_source(FAMILY), *tables) as family:
        read = {table: len(family.of(table, Operation.READ)) for table in tables}
        assert read == {"public.animal": 2, "public.dog": 2, "public.visits": 8, odd: 1}
        names = family.current("public.animal").sort_by("id")["name"].to_pylist()
        assert names == ["animal 1", "animal 2"]
        family.execute(
            "UPDATE animal SET name = name || '!'", "INSERT INTO puppy VALUES (5, 'p', 's', 4, 1)"
        )
        family.await_stream()
        assert {c.table for _, c in family.changes if not c.snapshot} == {
            "public.animal",
            "public.dog",
        }
        names = family.current("public.animal").sort_by("id")["name"].to_pylist()
        assert names == ["animal 1!", "animal 2!"]
