"""A source compared with its tables at one LSN: equal while writers write, else exact by key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from apps.settings import Settings
from cdc.verification.comparison import Comparison
from cdc.verification.continuous import ContinuousCheck
from cdc.verification.healing import heal_reports
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.staging import snapshot_log
from tests.support.sources.mirroring import Mirror, mirrored
from tests.support.sources.writing_shop import KEYS, MOODS, ORDERS, TABLES, Writers


@pytest.fixture
def shop(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, new_source: Callable[[str], str]
) -> Iterator[Mirror]:
    with mirrored(stack, spark, lake, prefix, new_source(TABLES), tuple(KEYS)) as mirror:
        mirror.catch_up()
        yield mirror


def test_p4_tables_are_equal_at_one_lsn_while_writers_write(shop: Mirror) -> None:
    with shop.following(), Writers(shop.dsn, pause_s=0.01) as writers:
        for _ in range(2):
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


@pytest.mark.matrix
def test_a_difference_is_named_by_range_key_and_column(shop: Mirror) -> None:
    path = shop.path(ORDERS)
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


@pytest.mark.matrix
def test_a_table_that_was_broken_by_hand_is_healed_by_the_command(shop: Mirror) -> None:
    path = shop.path(ORDERS)
    DeltaTable(path).delete("id BETWEEN 100 AND 110")
    DeltaTable(path).update(updates={"customer": "'x'"}, predicate="id = 4000")
    lake, tables = shop.lake, Tables()
    comparison = Comparison(lake, tables, shop.registry())
    captured = shop.captured(ORDERS)
    with shop.following():
        reports = comparison.compare(shop.dsn, captured, ranges=20, timeout_s=90)
        assert [report.equal for report in reports] == [False]
        (healed,) = heal_reports(
            lake, tables, comparison, shop.dsn, captured, reports, timeout_s=90
        )
        assert (healed.after, healed.sound) == ("equal", True)
        assert shop.compare()[ORDERS].equal
    with psycopg.connect(shop.dsn) as connection:
        wanted = connection.execute("SELECT id, customer FROM orders ORDER BY 1").fetchall()
    rows = shop.rows(ORDERS).sort_by("id")
    assert list(zip(rows["id"].to_pylist(), rows["customer"].to_pylist(), strict=True)) == wanted
    # The log tells of it: the range's rows, as PostgreSQL printed them.
    log = Tables().read(lake.path(snapshot_log(shop.name, ORDERS)))
    assert log is not None
    assert {"100", "110", "4000"} <= set(log["id"].to_pylist())


@pytest.mark.matrix
def test_a_table_whose_files_are_gone_is_told_and_the_others_are_compared(shop: Mirror) -> None:
    """As when comparing the tables before it took longer than its old versions are kept."""
    for file in Path(shop.path(ORDERS)).rglob("*.parquet"):
        file.unlink()
    with shop.following():
        reports = shop.compare()
    gone = reports.pop(ORDERS)
    assert not gone.equal
    assert gone.held is not None
    assert f"penstock source verify {shop.name} --table {ORDERS}" in gone.held
    assert {table: report.equal for table, report in reports.items()} == dict.fromkeys(
        {*KEYS} - {ORDERS}, True
    )


@pytest.mark.matrix
def test_a_table_that_cannot_be_read_does_not_take_the_verdicts_of_the_others(shop: Mirror) -> None:
    for part in Path(shop.path(ORDERS)).rglob("*.parquet"):
        part.write_bytes(b"PAR1 and nothing that follows from it PAR1")
    with shop.following():
        reports = shop.compare()
    broken = reports.pop(ORDERS)
    assert not broken.equal
    assert broken.held is not None
    assert {table: report.equal for table, report in reports.items()} == dict.fromkeys(
        {*KEYS} - {ORDERS}, True
    )


@pytest.mark.matrix
def test_a_declared_key_that_several_rows_have_is_told_and_not_healed_for_ever(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, new_source: Callable[[str], str]
) -> None:
    dsn = new_source(
        "CREATE TABLE visits (who int NOT NULL, note text);"
        "ALTER TABLE visits REPLICA IDENTITY FULL; INSERT INTO visits VALUES (1, 'a')"
    )
    keys = {"public.visits": ("who",)}
    with mirrored(stack, spark, lake, prefix, dsn, tuple(keys), keys) as visits:
        visits.execute("INSERT INTO visits VALUES (2, 'b'), (3, 'c'), (3, 'd'), (3, 'c')")
        visits.catch_up()
        comparison = Comparison(lake, Tables(), visits.registry())
        wanted = visits.captured()
        with visits.following():
            (report,) = comparison.compare(dsn, wanted, timeout_s=90)
            assert heal_reports(
                lake, Tables(), comparison, dsn, wanted, [report], timeout_s=90
            ) == [report]
            check = ContinuousCheck(comparison, dsn, timeout_s=90)
            step = check.check(wanted[0], check.place(wanted[0], None, None))
    assert (report.rows, report.rows_current, report.differences.healable) == (5, 3, False)
    assert [(each.key, each.what) for each in report.differences.keys] == [
        ({"who": "3"}, "doubled")
    ]
    assert report.cause is not None
    assert report.cause.startswith("1 values of the key who are in several rows of public.visits")
    assert step.suspects == 1
