"""The copier is killed with -9 while it copies: what is there stays, the rest is read at a new LSN.

Promises P4 and P5: the tables equal their source, and nothing is seen before all of it is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel import failpoints
from lake.tables import Tables
from pipeline.installs.install_book import Install, InstallBook, install_of, request
from tests.support.sources.copying import (
    BANK,
    BANK_TABLES,
    CHUNK_BYTES,
    Copied,
    Writer,
    await_chunks,
)

ACCOUNTS = 15_000
KILLED = -9


@pytest.fixture
def bank(
    tmp_path: Path, stack: Settings, spark: SparkSession, new_source: Callable[[str], str]
) -> Iterator[Copied]:
    found = Copied(tmp_path, stack, spark, new_source(BANK.format(rows=ACCOUNTS)), BANK_TABLES)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture
def writer(bank: Copied) -> Iterator[Writer]:
    found = Writer(bank.dsn, ACCOUNTS)
    found.start()
    yield found
    found.finish()


@contextmanager
def copier(bank: Copied, failpoint: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Run the copier in a process of its own; kill it in the end, if nothing else did."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.faults.copier_process",
            str(bank.workspace.folder),
            str(CHUNK_BYTES),
        ],
        env={**os.environ, "PENSTOCK_FAILPOINTS": failpoint},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def installs(bank: Copied) -> list[Install]:
    entries = InstallBook(bank.lake, Tables()).entries()
    return [install_of(entry) for entry in entries if entry.kind == "install"]


STEPS = (
    failpoints.SNAPSHOT_AFTER_SLOT,
    f"{failpoints.SNAPSHOT_AFTER_CHUNK}=kill@3",
    failpoints.SNAPSHOT_BEFORE_ANNOUNCE,
    failpoints.SNAPSHOT_AFTER_ANNOUNCE,
)


def test_p4_p5_a_copy_goes_on_where_it_was_killed(bank: Copied, writer: Writer) -> None:
    """It is killed at each step, one copier after the other, before the last one ends it."""
    bank.start()
    for failpoint in STEPS:
        with copier(bank, failpoint) as process:
            assert process.wait(90) == KILLED, failpoint
        if failpoint != failpoints.SNAPSHOT_AFTER_ANNOUNCE:
            bank.epochs.run()
            assert (bank.installed(), bank.cut()) == (0, 0), failpoint

    with copier(bank):
        bank.run_until_installed(2)
    totals = bank.current("public.accounts")
    writer.finish()
    bank.catch_up()

    assert totals is not None
    assert sum(totals["balance"].to_pylist()) == 100 * ACCOUNTS
    assert bank.differing() == []
    (accounts, _) = installs(bank)
    assert len(set(accounts.lsns)) == 2, "chunks from before the second kill were kept"


@pytest.mark.matrix
def test_p4_a_copy_that_is_killed_while_its_table_is_streamed_leaves_the_old_rows(
    bank: Copied, writer: Writer
) -> None:
    bank.start()
    with bank.copying():
        bank.run_until_installed(2)
    request(bank.lake, Tables(), bank.name, ["public.accounts"], reason="a test")
    with copier(bank) as process:
        await_chunks(bank, len(installs(bank)[0].lsns) + 2)
        process.kill()
    bank.catch_up()
    seen = bank.current("public.accounts")
    with copier(bank):
        bank.run_until_installed(3)
    writer.finish()
    bank.catch_up()

    assert seen is not None
    assert sum(seen["balance"].to_pylist()) == 100 * ACCOUNTS
    assert bank.differing() == []
