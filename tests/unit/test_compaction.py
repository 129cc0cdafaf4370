from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from kernel.errors import LeaseLost
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.upkeep import compaction
from lake.upkeep.compaction import MANY_FILES, Upkeep, compact, due_partitions, vacuum
from lake.writer import ArrowWriter, Guard
from tests.support.services.waiting import until


def test_compaction_keeps_rows_versions_and_guards(lake: Lake) -> None:
    tables = Tables()
    writer = ArrowWriter(tables)
    path = lake.path("log/x")
    for n in range(1, MANY_FILES + 1):
        writer.append(path, pa.table({"epoch": [n]}), Guard("log/x", Epoch(n)))
    assert compact(lake, tables, ["log/x", "log/absent"]) == ["log/x"]
    table = tables.open(path)
    assert table is not None
    assert len(table.file_uris()) == 1
    rows = tables.read(path)
    assert rows is not None
    assert sorted(rows["epoch"].to_pylist()) == list(range(1, MANY_FILES + 1))
    assert table.transaction_version("log/x") == MANY_FILES
    old = tables.read(path, version=3)
    assert old is not None
    assert sorted(old["epoch"].to_pylist()) == [1, 2, 3]
    assert compact(lake, tables, ["log/x"]) == []


def test_a_log_of_many_tables_is_compacted_by_table_and_rests_then(lake: Lake) -> None:
    """Each table has a small file at any time: that is no reason to write all of them again."""
    tables = Tables()
    writer, path, count = ArrowWriter(tables), lake.path("log/x"), MANY_FILES + 4
    names = [f"public.it's {n}" for n in range(count)]

    def epoch(number: int, touched: list[str]) -> None:
        rows = pa.table({"table": touched, "epoch": [number] * len(touched)})
        writer.append(path, rows, Guard("log/x", Epoch(number)), partition_by=["table"])

    epoch(1, names)
    assert compact(lake, tables, ["log/x"]) == []
    for number in range(2, 9):
        epoch(number, names[:2])
    table = tables.open(path)
    assert table is not None
    assert [sorted(names) for names in due_partitions(table).values()] == [names[:2]]
    assert compact(lake, tables, ["log/x"]) == ["log/x"]
    assert compact(lake, tables, ["log/x"]) == []
    table = tables.open(path)
    assert table is not None
    assert len(table.file_uris()) == count
    rows = tables.read(path)
    assert rows is not None
    assert rows.num_rows == count + 2 * 7


def test_a_file_is_written_again_only_when_as_much_has_come_since(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "MANY_FILES", 12)
    tables = Tables()
    writer, path = ArrowWriter(tables), lake.path("log/x")
    chance = random.Random(3)
    written = appended = 0
    for number in range(1, 101):
        rows = pa.table({"epoch": [number], "value": [chance.randbytes(2_000)]})
        writer.append(path, rows, Guard("log/x", Epoch(number)))
        appended += rows.nbytes
        before = set(Path(path).glob("*.parquet"))
        if compact(lake, tables, ["log/x"]):
            written += sum(f.stat().st_size for f in set(Path(path).glob("*.parquet")) - before)
    table = tables.open(path)
    assert table is not None
    assert len(table.file_uris()) < 2 * 12
    assert 0 < written < 4 * appended


def test_files_of_old_versions_go_but_for_what_the_newest_epoch_names(lake: Lake) -> None:
    tables = Tables()
    writer = ArrowWriter(tables)
    path = lake.path("current/x")
    for n in (1, 2, 3, 4):
        writer.overwrite(path, pa.table({"n": [n]}), Guard("current/x", Epoch(n)))
    second = 2
    at = {
        "current/x": TableAt(version=second, as_of_epoch=4),
        "current/absent": TableAt(version=1, as_of_epoch=4),
    }
    assert vacuum(lake, tables, at, retention=timedelta(days=7)) == {}
    removed = vacuum(lake, tables, at, retention=timedelta(0))
    assert removed["current/x"] >= 1
    kept = tables.read(path, version=second)
    newest = tables.read(path)
    assert kept is not None
    assert newest is not None
    assert (kept["n"].to_pylist(), newest["n"].to_pylist()) == ([2], [4])
    with pytest.raises(FileNotFoundError):
        tables.read(path, version=1)


def test_upkeep_compacts_a_log_that_grows_meanwhile(lake: Lake) -> None:
    tables = Tables()
    writer = ArrowWriter(tables)
    path, name = lake.path("log/x"), "log/x"
    upkeep = Upkeep(lake, retention=timedelta(days=7))
    found: list[str] = []
    n = 0

    def compacted() -> bool:
        nonlocal n
        for _ in range(MANY_FILES // 2):
            n += 1
            writer.append(path, pa.table({"epoch": [n]}), Guard(name, Epoch(n)))
        upkeep.committed({name: TableAt(version=n, as_of_epoch=n)})
        found.extend(upkeep.look())
        return bool(found)

    until(compacted, "the log is compacted")
    upkeep.close()
    rows = tables.read(path)
    assert rows is not None
    assert sorted(rows["epoch"].to_pylist()) == list(range(1, n + 1))


def test_what_no_epoch_names_is_compacted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MANY_FILES", 7)
    writer = ArrowWriter(Tables())
    names = ["catalog", "quarantine/records", "verifications"]
    for name in names:
        for n in range(1, 8):
            writer.append(lake.path(name), pa.table({"n": [n]}), Guard(name, Epoch(n)))
    upkeep = Upkeep(lake, retention=timedelta(days=7))
    assert sorted(upkeep.look()) == names


def test_tables_that_no_epoch_names_are_kept_small_too(lake: Lake) -> None:
    writer = ArrowWriter(Tables())
    for name in ("epochs", "history/x", "current/x"):
        for n in (1, 2, 3):
            rows, guard = pa.table({"n": [n]}), Guard(name, Epoch(n))
            writer.overwrite(lake.path(name), rows, guard)
    upkeep = Upkeep(lake, retention=timedelta(0), derived=lambda: ["history/x", "history/absent"])
    upkeep._at = {"current/x": TableAt(version=2, as_of_epoch=2)}
    kept = upkeep._kept()
    assert {name: at.version for name, at in kept.items()} == {
        "current/x": 2,
        "epochs": 3,
        "history/x": 3,
    }
    removed = vacuum(lake, Tables(), kept, retention=timedelta(0))
    assert removed["epochs"] == removed["history/x"] == 2


def test_what_generations_leave_is_a_work_and_a_trouble_of_its_own(lake: Lake) -> None:
    """Where it fails, it is tried again alone."""

    def fails() -> None:
        raise LeaseLost("others were faster")

    pruned = []
    upkeep = Upkeep(
        lake, retention=timedelta(days=7), prune=lambda: pruned.append(1), leftovers=fails
    )
    upkeep._vacuum()
    assert upkeep.troubles == {}
    upkeep.committed({})
    until(lambda: "leftovers" in upkeep.troubles, "what generations left was looked at")
    upkeep.close()
    assert upkeep.troubles == {"leftovers": "others were faster"}
    assert len(pruned) == 2


def test_what_was_removed_before_a_rest_goes_at_the_start(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log soon tells of it no more."""
    monkeypatch.setattr(compaction, "_REST_S", 0.01)
    name = "current/x"
    path, writer = lake.path(name), ArrowWriter(Tables())
    for n in (1, 2, 3):
        writer.overwrite(path, pa.table({"n": [n]}), Guard(name, Epoch(n)))
    upkeep = Upkeep(lake, retention=timedelta(0))
    upkeep.committed({name: TableAt(version=3, as_of_epoch=3)})
    until(lambda: len(list(Path(path).glob("*.parquet"))) == 1, "old files are gone")
    upkeep.close()
