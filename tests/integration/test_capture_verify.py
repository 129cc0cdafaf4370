"""A source compared with its tables at one LSN: equal while writers write, else exact by key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from apps.settings import Settings
from projections.log.layout import Lake
from tests.mirroring import Mirror, mirrored

ORDERS, TAGS, MOODS = "public.orders", "public.tags", "public.moods"
TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12, 2), at timestamptz
    DEFAULT '2024-01-01', memo text);
ALTER TABLE orders ALTER memo SET STORAGE EXTERNAL;
CREATE TABLE tags (shop text, tag text, n int, PRIMARY KEY (shop, tag));
CREATE TABLE moods (mood mood PRIMARY KEY, n double precision);
INSERT INTO orders SELECT g, 'customer ' || g % 97, g / 100.0, '2024-01-01', repeat('m', 3000)
  FROM generate_series(1, 200) g;
INSERT INTO orders SELECT g, 'customer ' || g % 97, g / 100.0, '2024-01-01', NULL
  FROM generate_series(201, 5000) g;
INSERT INTO tags SELECT chr(64 + g % 7), chr(200 + g), g FROM generate_series(1, 300) g;
INSERT INTO moods VALUES ('sad', 'NaN'), ('happy', -0.0);
"""
KEYS = {ORDERS: ("id",), TAGS: ("shop", "tag"), MOODS: ("mood",)}


@pytest.fixture
def shop(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, new_source: Callable[[str], str]
) -> Iterator[Mirror]:
    with mirrored(stack, spark, lake, prefix, new_source, TABLES, dict(KEYS)) as mirror:
        mirror.catch_up()
        yield mirror


class Writers:
    """Writes as fast as it can in several connections until told to stop."""

    def __init__(self, dsn: str, *, connections: int = 2) -> None:
        self._dsn = dsn
        self._stop = threading.Event()
        self.commits = 0
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(connections)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            at = 0
            while not self._stop.is_set():
                at += 1
                id_ = (at * 2 + number) % 5200
                with connection.transaction():
                    connection.execute(
                        "INSERT INTO orders VALUES (%s, 'new', %s) ON CONFLICT (id) DO UPDATE"
                        " SET amount = excluded.amount",
                        (id_, at),
                    )
                    connection.execute(
                        "UPDATE tags SET n = n + 1 WHERE shop = %s", (chr(64 + at % 7),)
                    )
                    if at % 5 == 0:
                        connection.execute("DELETE FROM orders WHERE id = %s", ((id_ * 7) % 5200,))
                    if at % 50 == 0:
                        connection.execute("UPDATE orders SET id = -id WHERE id = %s", (id_,))
                self.commits += 1


def test_p4_tables_are_equal_at_one_lsn_while_writers_write(shop: Mirror) -> None:
    with shop.following(), Writers(shop.dsn) as writers:
        for _ in range(4):
            before = writers.commits
            reports = shop.compare(ranges=20)
            assert writers.commits > before
            assert {table: report.equal for table, report in reports.items()} == dict.fromkeys(
                KEYS, True
            ), reports
            assert len({report.lsn for report in reports.values()}) == 1
    assert reports[ORDERS].rows > 4000
    assert reports[ORDERS].ranges > 10
    assert reports[MOODS].rows == 2


def test_a_difference_is_named_by_range_key_and_column(shop: Mirror) -> None:
    path = shop.lake.path(shop.current(ORDERS))
    table = DeltaTable(path)
    table.delete("id = 17")
    table.update(updates={"amount": "9.99", "customer": "'x'"}, predicate="id IN (1000, 3000)")
    extra = pa.table({"id": [99999], "customer": ["nobody"]})
    write_deltalake(
        path,
        extra.cast(pa.schema([("id", pa.int64()), ("customer", pa.string())])),
        mode="append",
        schema_mode="merge",
    )
    with shop.following():
        report = shop.compare(ORDERS, ranges=50)[ORDERS]
    assert not report.equal
    found = report.differences
    assert (found.missing, found.extra, found.differing) == (1, 1, 2)
    assert {(one.key["id"], one.what, one.columns) for one in found.keys} == {
        ("17", "missing", ()),
        ("99999", "extra", ()),
        ("1000", "differs", ("amount", "customer")),
        ("3000", "differs", ("amount", "customer")),
    }
    assert 3 <= len(report.differing_ranges) <= 4
    assert report.cause is not None
    assert "was not written by the pipeline" in report.cause
    assert (report.rows, report.rows_current) == (5000, 5000)
