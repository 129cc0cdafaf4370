"""Old files of tables whose partitions have blanks, percent signs and letters beyond ASCII."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.layout import Lake
from lake.savepoint_tables import kept_table
from lake.savepoints import SavepointBook
from lake.table_files import live_files, removed_files
from lake.tables import TableAt, Tables
from lake.upkeep.compaction import vacuum
from lake.writer import ArrowWriter, Guard

NAME = "log/changes/shop"
NEVER = timedelta(0)


def files(root: str) -> set[str]:
    """Return the data files on the disk, by path below the table's root."""
    return {str(file.relative_to(root)) for file in Path(root).rglob("*.parquet")}


@pytest.fixture(params=["a b", "100%", "größe", "it's #", "a%20b", "plain"])
def root(lake: Lake, request: pytest.FixtureRequest) -> str:
    """Return a table with a version of two files, and one of the two compacted."""
    root, writer = lake.path(NAME), ArrowWriter(Tables())
    for epoch in (1, 2):
        rows = pa.table({"table": [str(request.param)], "n": [epoch]})
        writer.append(root, rows, Guard(NAME, Epoch(epoch)), partition_by=["table"])
    return root


def test_files_are_named_as_they_lie_on_the_disk(root: str) -> None:
    before = files(root)
    DeltaTable(root).optimize.compact()
    table = DeltaTable(root)
    assert removed_files(table) == before
    assert live_files(table) == files(root) - before


def test_a_vacuum_frees_what_it_says(lake: Lake, root: str) -> None:
    DeltaTable(root).optimize.compact()
    at = {NAME: TableAt(version=DeltaTable(root).version(), as_of_epoch=2)}
    assert vacuum(lake, Tables(), at, retention=NEVER) == {NAME: 2}
    assert files(root) == live_files(DeltaTable(root))


def test_a_savepoint_that_is_dropped_leaves_what_the_log_remembers(lake: Lake, root: str) -> None:
    book = SavepointBook(lake, Tables())
    savepoint = book.take("then", Epoch(2), [kept_table(DeltaTable(root), NAME)])
    DeltaTable(root).optimize.compact()
    before = files(root)
    assert book.drop(savepoint) == 0
    assert files(root) == before
