"""DDL while rows are written: followed in its place, or the table held and the others going on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from cdc.connect import ConnectClient
from lake.layout import Lake
from tests.support.sources.mirroring import Mirror, mirrored

SHOP = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE item (
    id bigint PRIMARY KEY, label varchar(20), amount numeric(10, 2), size int, ratio real,
    state mood, secret text
);
ALTER TABLE item ALTER label SET STORAGE EXTERNAL;
INSERT INTO item SELECT g, 'item ' || g, g / 4.0, g, g / 3.0, 'ok', 's'
  FROM generate_series(1, 60) g;
CREATE TABLE other (id int PRIMARY KEY, body text);
ALTER TABLE other ALTER body SET STORAGE EXTERNAL;
CREATE TABLE keyed (id int PRIMARY KEY, at int);
INSERT INTO keyed SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO other SELECT g, repeat('x', 4000) FROM generate_series(1, 20) g;
"""
ITEM, OTHER, KEYED = "public.item", "public.other", "public.keyed"
WHOLE = "public.whole"

Start = Callable[..., Mirror]


@pytest.fixture
def start(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
) -> Iterator[Start]:
    """Mirror tables of a new database, its rows in the lake already."""
    with ExitStack() as after:

        def begin(statements: str, *tables: str) -> Mirror:
            dsn = new_source(statements)
            mirror = after.enter_context(mirrored(stack, spark, lake, prefix, dsn, tables))
            mirror.catch_up()
            return mirror

        yield begin


def writing(dsn: str, stop: threading.Event) -> None:
    """Write rows all the time, with columns that every version of the table has."""
    number = 1000
    with psycopg.connect(dsn) as connection:
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO item (id, size) VALUES (%s, 1)", (number,))
            connection.execute("UPDATE item SET size = size + 1 WHERE id = %s", (number % 60,))
            connection.execute("UPDATE other SET id = id WHERE id = 3")
            connection.commit()


FOLLOWED = (
    "ALTER TABLE item ADD stock int DEFAULT 7, ADD born timestamptz DEFAULT '2020-01-01 01:00+02',"
    " ADD tags text[] DEFAULT '{a,\"b c\"}', ADD note text",
    "ALTER TABLE item RENAME label TO title",
    "ALTER TABLE item RENAME note TO remark",
    "ALTER TABLE item ALTER size TYPE bigint",
    "ALTER TABLE item ALTER amount TYPE numeric(14, 3)",
    "ALTER TABLE item ALTER ratio TYPE double precision",
    "ALTER TABLE item ALTER title TYPE varchar(40)",
    "ALTER TYPE mood ADD VALUE 'happy'",
    "ALTER TABLE item DROP secret",
    "ALTER TABLE item ADD secret text DEFAULT 'again'",
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "ALTER TYPE mood RENAME TO feeling",
)


@pytest.mark.matrix
def test_columns_follow_their_source_while_rows_are_written(start: Start) -> None:
    """Every followed change, alone and within transactions, in one epoch and over several."""
    shop = start(SHOP, ITEM, OTHER, KEYED)
    shop.execute("UPDATE keyed SET at = 0 WHERE id < 4", "DELETE FROM keyed WHERE id = 9")
    # A connector that is far behind sends what came before without its key: the table is held then.
    shop.catch_up()
    shop.execute("ALTER TABLE keyed RENAME id TO number")
    shop.execute("UPDATE keyed SET at = 1 WHERE number < 3", "DELETE FROM keyed WHERE number = 8")
    stop = threading.Event()
    writer = threading.Thread(target=writing, args=(shop.dsn, stop), daemon=True)
    writer.start()
    try:
        for number, statement in enumerate(FOLLOWED):
            rows = f"UPDATE item SET amount = amount + 1 WHERE amount > {number}"
            if statement.startswith("ALTER TYPE mood ADD"):
                shop.execute(statement)
            else:
                # The lock first: rows' locks and then the table's would be a deadlock.
                some = "DELETE FROM item WHERE size = 2"
                shop.execute("LOCK TABLE item", rows, some, statement, rows)
            if number % 4 == 3:
                shop.catch_up()
    finally:
        stop.set()
        writer.join(30)
    shop.execute("UPDATE item SET state = 'happy', title = repeat('t', 30) WHERE id < 9")
    shop.execute("INSERT INTO item (id, amount) VALUES (-1, 0.125), (-2, NULL)")
    shop.catch_up()
    assert shop.held() == {}
    assert [shop.differing(table) for table in (ITEM, OTHER, KEYED)] == [[], [], []]
    columns = set(shop.current(ITEM).column_names)
    assert {"title", "remark", "stock"} <= columns
    assert not {"label", "note", "number"} & columns


@pytest.mark.matrix
def test_a_renamed_key_of_full_identity_holds_its_table_alone(
    start: Start, stack: Settings
) -> None:
    """With FULL identity the WAL does not say which columns are the key: the live name is newer."""
    full = """
    CREATE TABLE whole (id int PRIMARY KEY, at int);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    INSERT INTO whole SELECT g, g FROM generate_series(1, 5) g;
    """
    shop = start(SHOP + full, KEYED, WHOLE)
    name = f"{shop.placement.workspace}-{shop.name}"
    with ConnectClient(stack.required("connect.url")) as connect:
        connect.stop(name)
        connect.await_status(name, lambda status: status.task is None, timeout_s=30.0)
        shop.execute("UPDATE whole SET at = 10 WHERE id = 1", "DELETE FROM whole WHERE id = 2")
        shop.execute("ALTER TABLE whole RENAME id TO number")
        shop.execute("UPDATE whole SET at = 11 WHERE number = 3")
        shop.execute("UPDATE keyed SET at = 1", "ALTER TABLE keyed RENAME id TO number")
        shop.execute("UPDATE keyed SET at = 2 WHERE number = 1")
        connect.resume(name)
        connect.await_running(name)
    shop.catch_up()
    held = shop.held()
    assert set(held) == {WHOLE}
    assert "without its key" in held[WHOLE].reason
    assert shop.differing(KEYED) == []


HELD = {
    "held_using": "ALTER TABLE held_using ALTER a TYPE text USING a || '!'",
    "held_same": "ALTER TABLE held_same ALTER a TYPE int USING a + 1",
    "held_each": "ALTER TABLE held_each ADD u uuid DEFAULT gen_random_uuid()",
    "held_type": "ALTER TABLE held_type ALTER b TYPE date USING b::date",
    "held_name": "ALTER TABLE held_name RENAME TO elsewhere",
    "held_drop": "DROP TABLE held_drop",
    "held_key": "ALTER TABLE held_key DROP CONSTRAINT held_key_pkey, ADD PRIMARY KEY (a)",
}
REASONS = {
    "held_using": "computed anew",
    "held_same": "computed anew",
    "held_each": "a value of its own in the new column u",
    "held_type": "computed anew",
    "held_name": "public.elsewhere",
    "held_drop": "dropped",
    "held_key": "its primary key was (id) and is (a)",
}
EVENTS = """
CREATE TABLE event (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE event_1 PARTITION OF event FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
CREATE TABLE event_2 (id int NOT NULL, at date NOT NULL);
INSERT INTO event VALUES (1, '2020-02-02');
INSERT INTO event_2 VALUES (2, '2021-02-02');
"""


@pytest.mark.matrix
def test_what_cannot_be_followed_holds_its_table_alone(start: Start) -> None:
    """Each kind by name, with the difference; other tables and later epochs go on."""
    tables = "".join(
        f"CREATE TABLE {name} (id int PRIMARY KEY, a int, b text);"
        f"INSERT INTO {name} SELECT g, g, '2020-02-02' FROM generate_series(1, 5) g;"
        for name in HELD
    )
    shop = start(SHOP + tables + EVENTS, ITEM, "public.event", *(f"public.{n}" for n in HELD))
    before = {name: shop.current(f"public.{name}").num_rows for name in HELD}
    at = shop.epochs.ingest.last
    assert at is not None
    for name, statement in HELD.items():
        shop.execute(f"UPDATE {name} SET a = a + 10 WHERE id = 1", statement)
    shop.execute("ALTER TABLE event ADD c int DEFAULT 4")
    shop.execute(
        "CREATE TABLE event_3 PARTITION OF event FOR VALUES FROM ('2022-01-01') TO ('2023-01-01')",
        "INSERT INTO event VALUES (3, '2022-02-02', 9)",
    )
    shop.execute("ALTER TABLE held_type ADD later int", "UPDATE item SET size = 0")
    shop.catch_up()
    assert shop.differing(ITEM) == []
    assert shop.differing("public.event") == []
    held = shop.held()
    assert set(held) == {f"public.{name}" for name in HELD}
    for name, reason in REASONS.items():
        assert reason in held[f"public.{name}"].reason, name
        assert shop.current(f"public.{name}").num_rows == before[name]
    assert held["public.held_using"].diff == ("a integer -> a text",)
    assert held["public.held_each"].diff == ("nothing -> u uuid",)
    done = shop.epochs.ingest.last
    assert done is not None
    assert done.tables[shop.name_of(ITEM)].as_of_epoch == done.epoch
    # Held tables say honestly as of when they are.
    assert done.tables[shop.name_of("public.held_using")].as_of_epoch <= at.epoch
    shop.execute(
        "ALTER TABLE event_2 ADD c int",
        "ALTER TABLE event ATTACH PARTITION event_2"
        " FOR VALUES FROM ('2021-01-01') TO ('2022-01-01')",
    )
    shop.catch_up()
    assert "attached that had rows" in shop.held()["public.event"].reason
