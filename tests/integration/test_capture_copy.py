"""Tables are copied in bulk beside their stream: whole, at once, and equal to their source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from apps.settings import Settings
from cdc import sources
from lake.datasets import dataset_of
from lake.layout import current_name
from lake.tables import Tables
from pipeline.installs.install_book import STRAND, InstallBook, install_of, request
from pipeline.installs.staging import Staging
from tests.support.sources.copying import BANK, BANK_TABLES, Copied, Writer

ACCOUNTS = 20_000

Make = Callable[..., Copied]


@pytest.fixture
def copied(
    tmp_path: Path, stack: Settings, spark: SparkSession, new_source: Callable[[str], str]
) -> Iterator[Make]:
    made: list[Copied] = []

    def make(statements: str, tables: tuple[str, ...], **options: str) -> Copied:
        found = Copied(tmp_path, stack, spark, new_source(statements), tables, **options)
        made.append(found)
        return found

    yield make
    for each in made:
        each.close()


def test_p4_p5_a_copy_equals_its_source_while_it_is_written_to(copied: Make) -> None:
    bank = copied(BANK.format(rows=ACCOUNTS), BANK_TABLES)
    writer = Writer(bank.dsn, ACCOUNTS)
    writer.start()
    bank.start()
    with bank.copying():
        bank.run_until_installed(2)
    totals = bank.current("public.accounts")
    assert totals is not None
    assert sum(totals["balance"].to_pylist()) == 100 * ACCOUNTS
    writer.finish()
    bank.catch_up()

    assert bank.differing() == []
    entries = InstallBook(bank.lake, Tables()).entries()
    installs = [install_of(entry) for entry in entries if entry.kind == "install"]
    assert [install.table for install in installs] == list(BANK_TABLES)
    assert len(installs[0].lsns) > 4, "there was one chunk only"
    (first,) = {done.epoch for done in bank.epochs.manifest.between(0, 10**9) if done.installs}
    before = bank.epochs.manifest.between(0, first - 1)
    assert all(not done.cuts.get(bank.name) for done in before)


@pytest.mark.parametrize(
    "snapshot", [sources.COPY, pytest.param(sources.CONNECTOR, marks=pytest.mark.matrix)]
)
def test_p10_a_table_is_copied_again_without_readers_seeing_less(
    copied: Make, snapshot: str
) -> None:
    bank = copied(BANK.format(rows=5_000), BANK_TABLES, snapshot=snapshot)
    bank.start()
    with bank.copying():
        bank.catch_up()
        before = bank.installed()
        path = bank.lake.path(current_name(bank.name, "public.accounts"))
        table = DeltaTable(path)
        table.update({"note": "'broken'"}, predicate="id % 2 = 0")
        table.delete("id = 7")
        assert bank.differing(newest=True) == ["public.accounts"]

        writer = Writer(bank.dsn, 5_000)
        writer.start()
        request(bank.lake, Tables(), bank.name, ["public.accounts"], reason="a test")
        bank.run_until_installed(before + 1)
        writer.finish()
    bank.catch_up()

    assert bank.differing() == []
    counts = {
        dataset_of(DeltaTable(path, version=version)).count_rows()
        for version in range(table.version(), DeltaTable(path).version() + 1)
    }
    assert counts == {4_999, 5_000}


@pytest.mark.matrix
def test_p4_a_table_that_cannot_be_copied_stops_no_other(
    copied: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = copied(BANK.format(rows=50), BANK_TABLES)
    broken, (bad, good) = threading.Event(), BANK_TABLES
    stage = Staging.stage

    def failing(self: Staging, chunk: int, lsn: int, blocks: Iterable[pa.Table]) -> int:
        if broken.is_set() and self._name.endswith(bad):
            raise RuntimeError("a planted exception")
        return stage(self, chunk, lsn, blocks)

    monkeypatch.setattr(Staging, "stage", failing)
    broken.set()
    bank.start()
    with bank.copying() as copier:
        bank.run_until_installed(1)
        request(bank.lake, Tables(), bank.name, [good], reason="a test")
        bank.run_until_installed(2)
        assert bank.current(bad) is None
        assert f"{bad} cannot be copied: a planted exception" in copier.states[bank.name]
        broken.clear()
        bank.run_until_installed(3)
    bank.catch_up()

    assert bank.differing() == []


@pytest.mark.matrix
def test_p4_p11_a_table_that_nobody_copies_is_held_until_somebody_does(copied: Make) -> None:
    bank = copied(BANK.format(rows=50), BANK_TABLES)
    fallen = BANK_TABLES[0]
    bank.start()
    with bank.copying():
        bank.run_until_installed(2)
        folded = bank.epochs.ingest._progress.cut(bank.name).copied
        assert folded == {*BANK_TABLES}
        folded.remove(fallen)
        bank.execute("UPDATE accounts SET balance = 7 WHERE id = 1")
        bank.run_until(lambda: bool(bank.epochs.ingest.held().get(bank.name)), "it is held")
        (held,) = bank.epochs.ingest.held()[bank.name].items()
        assert held[0] == fallen
        assert "nobody copies it" in held[1].reason
        request(bank.lake, Tables(), bank.name, [fallen], reason="a test")
        bank.run_until_installed(3)
        assert bank.epochs.ingest.held()[bank.name] == {}
    bank.catch_up()

    assert bank.differing() == []
    strands = [e for e in InstallBook(bank.lake, Tables()).entries() if e.kind == STRAND]
    assert len(strands) == 1


@pytest.mark.matrix
def test_composite_keys_partitions_and_odd_text_are_copied(copied: Make) -> None:
    bank = copied(
        """
        CREATE TABLE visits (day date, who text COLLATE "C", note text, PRIMARY KEY (day, who))
            PARTITION BY RANGE (day);
        CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
        CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM ('2024-02-01') TO ('2024-03-01');
        INSERT INTO visits SELECT '2024-01-01'::date + i % 60, 'w' || i,
               CASE i % 4 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN E'a\\nb,"c"' ELSE '\\.' END
          FROM generate_series(1, 20000) i;
        CREATE TABLE named (name text PRIMARY KEY, v int);
        INSERT INTO named SELECT 'n' || i, i FROM generate_series(1, 500) i;
        CREATE TABLE parent (id int PRIMARY KEY, v int); INSERT INTO parent VALUES (1, 1);
        CREATE TABLE child (more int) INHERITS (parent); INSERT INTO child VALUES (2, 2, 2);
        CREATE TABLE covered (id int, note text, tags int[], PRIMARY KEY (id) INCLUDE (note, tags));
        INSERT INTO covered VALUES (1, 'a', '{}'), (2, NULL, NULL), (3, 'c', '{3}');
        """,
        ("public.visits", "public.named", "public.parent", "public.covered"),
    )
    bank.start()
    with bank.copying():
        bank.run_until_installed(4)
    with psycopg.connect(bank.dsn, autocommit=True) as connection:
        connection.execute("UPDATE covered SET note = 'other' WHERE id < 3")
        connection.execute("DELETE FROM covered WHERE id = 3")
    bank.catch_up()

    assert bank.differing() == ["public.parent"]
    parent = bank.current("public.parent")
    assert parent is not None
    assert parent["id"].to_pylist() == [1]
