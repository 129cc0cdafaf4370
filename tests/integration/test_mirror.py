"""A mirrored table equals the source's own SELECT, row hash for row hash."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from cdc import capture, removal
from cdc.capture import Access
from cdc.connect import ConnectClient
from cdc.connectors import Placement
from cdc.sources import CONNECTOR, Source, declare
from cdc.verify import source_rows_hash
from projections.log.layout import Lake
from projections.log.tables import Tables
from schemas.row_hash import table_hash
from tests.feeding import Epochs

TABLES = ("public.account", "public.entry", "public.marker")


@dataclass
class Bank:
    """A captured database of accounts and entries, mirrored epoch by epoch."""

    dsn: str
    source: Source
    placement: Placement
    epochs: Epochs

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def catch_up(self) -> None:
        """Run epochs until a row written now, after everything else, is mirrored."""
        mark = uuid.uuid4().hex
        self.execute(f"INSERT INTO marker VALUES ('{mark}')")
        end = time.monotonic() + 120
        while mark not in self.marks():
            assert time.monotonic() < end, self.epochs.ingest.waiting_for()
            self.epochs.run()

    def marks(self) -> list[str]:
        rows = Tables().read(self.epochs.lake.path(f"current/{self.source.name}.public.marker"))
        return [] if rows is None else list(rows["id"].to_pylist())

    def name_of(self, table: str) -> str:
        return f"current/{self.source.name}.{table}"

    def assert_equal(self) -> None:
        for table in TABLES:
            assert table_hash(self.epochs.table(self.name_of(table))) == source_rows_hash(
                self.dsn, table
            ), table


@pytest.fixture
def bank(stack: Settings, spark: SparkSession, lake: Lake, prefix: str) -> Iterator[Bank]:
    name = f"bank{uuid.uuid4().hex[:8]}"
    admin = stack.required("postgres.dsn")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(admin, dbname=name)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            """
            CREATE TABLE account
              (id bigint PRIMARY KEY, owner text, balance numeric(12,2), memo text);
            CREATE TABLE entry (id bigint PRIMARY KEY, account bigint, amount numeric(12,2));
            CREATE TABLE marker (id text PRIMARY KEY);
            ALTER TABLE account ALTER COLUMN memo SET STORAGE EXTERNAL;
            INSERT INTO account SELECT g, 'owner ' || g, 100, repeat('m', 5000)
              FROM generate_series(1, 50) g;
            INSERT INTO entry VALUES (0, 0, 0);
            """
        )
    source, _ = declare(name, dsn=dsn, tables=TABLES, snapshot=CONNECTOR)
    placement = Placement(
        workspace="test",
        topic_prefix=prefix,
        partitions=2,
        registry_url=stack.required("registry.url"),
    )
    router = TopicRouter(
        prefix=prefix, registry_url=stack.required("registry.url"), captures={name: {}}
    )
    epochs = Epochs(spark, lake, router, stack.required("kafka.bootstrap"))
    with ConnectClient(stack.required("connect.url")) as connect:
        capture.ensure(source, Access(dsn=dsn), placement, connect)
        yield Bank(dsn, source, placement, epochs)
        removal.remove(source.name, dsn, placement, connect)


def test_p4_a_current_table_equals_the_sources_select(bank: Bank) -> None:
    bank.catch_up()
    bank.assert_equal()
    assert bank.epochs.table(bank.name_of("public.account")).num_rows == 50

    bank.execute(
        "UPDATE account SET balance = balance - 5 WHERE id <= 10",
        "INSERT INTO entry SELECT g, g, -5 FROM generate_series(1, 10) g",
        "DELETE FROM account WHERE id > 45",
        "UPDATE account SET id = 1000 WHERE id = 11",
    )
    bank.execute("UPDATE account SET memo = repeat('n', 6000) WHERE id = 1")
    bank.execute("UPDATE account SET owner = 'renamed' WHERE id = 1")
    bank.catch_up()
    bank.assert_equal()

    bank.execute("TRUNCATE entry", "INSERT INTO entry VALUES (1, 1, 7)")
    bank.execute("ALTER TABLE account ADD COLUMN opened date")
    bank.execute("INSERT INTO account VALUES (2000, 'new', 0, NULL, '2020-02-02')")
    bank.catch_up()
    bank.assert_equal()
    assert bank.epochs.table(bank.name_of("public.entry")).num_rows == 1


def test_p5_a_banks_total_is_constant_in_every_epoch(bank: Bank) -> None:
    """Money moves between tables in single transactions; no epoch shows half of one."""
    bank.catch_up()
    totals = set()
    for round_ in range(1, 5):
        for transfer in range(1, 6):
            number = round_ * 100 + transfer
            bank.execute(
                f"UPDATE account SET balance = balance - {number} WHERE id = {transfer}",
                f"INSERT INTO entry VALUES ({number}, {transfer}, {number})",
            )
        done = bank.epochs.run()
        versions = {name: done.tables[bank.name_of(name)].version for name in TABLES[:2]}
        rows = {
            name: Tables().read(bank.epochs.lake.path(bank.name_of(name)), version=version)
            for name, version in versions.items()
        }
        balances = sum(rows["public.account"]["balance"].to_pylist())
        totals.add(balances + sum(rows["public.entry"]["amount"].to_pylist()))
    bank.catch_up()
    assert totals == {5000}
    bank.assert_equal()
