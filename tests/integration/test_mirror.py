"""A mirrored table equals the source's own SELECT, row hash for row hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from lake.layout import Lake
from lake.tables import Tables
from pipeline.executor import Executor
from tests.support.sources.mirroring import Mirror, mirrored

TABLES = ("public.account", "public.entry")
BANK = """
CREATE TABLE account (id bigint PRIMARY KEY, owner text, balance numeric(12,2), memo text);
CREATE TABLE entry (id bigint PRIMARY KEY, account bigint, amount numeric(12,2));
ALTER TABLE account ALTER COLUMN memo SET STORAGE EXTERNAL;
INSERT INTO account SELECT g, 'owner ' || g, 100, repeat('m', 5000) FROM generate_series(1, 50) g;
INSERT INTO entry VALUES (0, 0, 0);
"""


@pytest.fixture
def bank(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
) -> Iterator[Mirror]:
    with mirrored(stack, spark, lake, prefix, new_source(BANK), TABLES) as mirror:
        yield mirror


@pytest.mark.matrix
def test_p4_a_current_table_equals_the_sources_select(bank: Mirror) -> None:
    bank.catch_up()
    bank.assert_equal()
    assert bank.rows("public.account").num_rows == 50

    # Whoever writes an epoch, the next one goes on from there.
    bank.epochs.executor = Executor.SPARK
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

    bank.epochs.executor = Executor.DRIVER
    bank.execute("TRUNCATE entry", "INSERT INTO entry VALUES (1, 1, 7)")
    bank.execute("ALTER TABLE account ADD COLUMN opened date")
    bank.execute("INSERT INTO account VALUES (2000, 'new', 0, NULL, '2020-02-02')")
    bank.catch_up()
    bank.assert_equal()
    assert bank.rows("public.entry").num_rows == 1

    bank.epochs.executor = Executor.SPARK
    bank.execute("TRUNCATE entry", "ALTER TABLE account ADD COLUMN closed date")
    bank.execute("UPDATE account SET closed = '2021-02-02' WHERE id > 40")
    bank.catch_up()
    bank.assert_equal()


def test_p5_a_banks_total_is_constant_in_every_epoch(bank: Mirror) -> None:
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
        versions = {name: done.tables[bank.name_of(name)].version for name in TABLES}
        rows = {
            name: Tables().read(bank.path(name), version=version)
            for name, version in versions.items()
        }
        balances = sum(rows["public.account"]["balance"].to_pylist())
        totals.add(balances + sum(rows["public.entry"]["amount"].to_pylist()))
    bank.catch_up()
    assert totals == {5000}
    bank.assert_equal()
