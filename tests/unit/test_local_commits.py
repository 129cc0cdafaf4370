"""Commits of our own to tables on a disk: a version is one writer's, and every engine reads it."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from kernel.errors import LeaseLost, StorageFull
from kernel.positions import Epoch
from lake import local_commits, log_checkpoints
from lake.handles import Handle
from lake.local_commits import Landing, commit_here
from lake.log_lengths import SHORT
from lake.staged_files import StagedFiles
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard

ROWS = pa.table({"id": [1], "name": ["a"]})


def log_of(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "_delta_log").iterdir())


def engine_of(path: Path, version: int) -> str:
    lines = (path / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    info = next(json.loads(line)["commitInfo"] for line in lines if "commitInfo" in line)
    return str(info["engineInfo"])


def checkpoints_of(path: Path) -> list[int]:
    return [int(name[:20]) for name in log_of(path) if ".checkpoint." in name]


def append(path: Path, first: int, last: int) -> None:
    writer = ArrowWriter(Tables())
    for epoch in range(first, last + 1):
        writer.append(str(path), ROWS, Guard("t", Epoch(epoch)))


def test_checkpoints_are_made_as_before_and_every_reader_has_all_rows(tmp_path: Path) -> None:
    for first, last in ((1, 60), (61, 120)):
        append(tmp_path, first, last)
        log_checkpoints.settle()  # Where the machine is slow, one that waits gives way to the next.
    assert {engine_of(tmp_path, v) for v in range(1, 121)} == {"penstock"}
    assert checkpoints_of(tmp_path) == [49, 99], "of the last of fifty commits, as deltalake has it"
    table = DeltaTable(str(tmp_path))
    assert (table.version(), table.transaction_version("t"), table.count()) == (120, 120, 120)
    assert pl.read_delta(str(tmp_path)).height == 120
    assert not [name for name in log_of(tmp_path) if name.endswith((".new", ".tmp"))]


class Held:
    """Checkpoints that stand still, from the one on that has `begun`, until they may go on."""

    def __init__(self) -> None:
        self.begun, self._goes_on = threading.Event(), threading.Event()
        self._made = DeltaTable.create_checkpoint

    def create(self, table: DeltaTable) -> None:
        self.begun.set()
        self._goes_on.wait()
        self._made(table)

    def let_go(self) -> None:
        self._goes_on.set()
        log_checkpoints.settle()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """Hold checkpoints until they are let go."""
    checkpoints = Held()
    monkeypatch.setattr(DeltaTable, "create_checkpoint", lambda table: checkpoints.create(table))
    yield checkpoints
    checkpoints.let_go()


def test_no_commit_waits_for_a_checkpoint(tmp_path: Path, held: Held) -> None:
    append(tmp_path, 1, 52)
    assert DeltaTable(str(tmp_path)).count() == 52
    assert checkpoints_of(tmp_path) == []
    held.let_go()
    assert checkpoints_of(tmp_path) == [49], "of the version that it was due at"


def test_of_a_table_one_checkpoint_waits_however_slow_the_disk_is(
    tmp_path: Path, held: Held
) -> None:
    append(tmp_path / "a", 1, 50)
    assert held.begun.wait(60)
    append(tmp_path / "b", 1, 150)
    append(tmp_path / "a", 51, 150)
    held.let_go()
    assert checkpoints_of(tmp_path / "a") == [49, 149]
    assert checkpoints_of(tmp_path / "b") == [149]


def test_a_process_that_ends_does_not_rest_between_checkpoints(tmp_path: Path) -> None:
    append(tmp_path, 1, 48)
    ends = f"""
import time
from lake import log_checkpoints
log_checkpoints._beside._rests_until = time.monotonic() + 3600
log_checkpoints.write_beside({str(tmp_path)!r}, 48)
"""
    subprocess.run([sys.executable, "-c", ends], check=True, timeout=60)
    assert checkpoints_of(tmp_path) == [48]


def test_a_checkpoint_that_fails_is_left_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: DeltaTable) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_checkpoint", fail)
        append(tmp_path, 1, 60)
        log_checkpoints.settle()
    assert "has no checkpoint of version 49: the disk is full" in caplog.text
    append(tmp_path, 61, 101)
    log_checkpoints.settle()
    assert checkpoints_of(tmp_path) == [99]
    assert DeltaTable(str(tmp_path)).count() == 101


@pytest.mark.parametrize(("cleaned", "first"), [("true", 49), ("false", 0)])
def test_what_expired_of_a_log_goes_with_a_checkpoint(
    tmp_path: Path, cleaned: str, first: int
) -> None:
    settings = SHORT | {"delta.enableExpiredLogCleanup": cleaned}
    Tables().ensure(str(tmp_path), ROWS.schema, settings=settings)
    append(tmp_path, 1, 48)
    for name in log_of(tmp_path):
        os.utime(tmp_path / "_delta_log" / name, (0, 0))
    append(tmp_path, 49, 52)
    log_checkpoints.settle()
    commits = [int(name[:20]) for name in log_of(tmp_path) if name.endswith(".json")]
    assert min(commits) == first
    assert DeltaTable(str(tmp_path)).count() == 52


def test_of_writers_at_one_moment_each_has_versions_of_its_own(tmp_path: Path) -> None:
    ArrowWriter(Tables()).append(str(tmp_path), ROWS, Guard("first", Epoch(1)))
    start = threading.Barrier(4)
    failed: list[Exception] = []

    def write(name: str) -> None:
        writer = ArrowWriter(Tables())
        start.wait()
        try:
            for epoch in range(1, 16):
                rows = pa.table({"id": [epoch], "name": [name]})
                writer.append(str(tmp_path), rows, Guard(name, Epoch(epoch)))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    rows = DeltaTable(str(tmp_path)).to_pyarrow_table()
    counted = Counter(zip(rows["name"].to_pylist(), rows["id"].to_pylist(), strict=True))
    assert counted == {**{(n, e): 1 for n in "abcd" for e in range(1, 16)}, ("a", 1): 2}


def test_of_two_under_one_name_one_is_told(tmp_path: Path) -> None:
    path, slow, fast = str(tmp_path), Tables(), ArrowWriter(Tables())
    fast.append(path, ROWS, Guard("t", Epoch(1)))
    with slow.looked_at_once():
        slow.open(path)
        fast.append(path, ROWS, Guard("t", Epoch(2)))
        with pytest.raises(LeaseLost, match="has its epoch 2"):
            ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(2)))
    assert DeltaTable(path).count() == 2


def test_commits_of_others_in_between_are_passed(tmp_path: Path) -> None:
    path, slow, fast = str(tmp_path), Tables(), ArrowWriter(Tables())
    fast.append(path, ROWS, Guard("t", Epoch(1)))
    with slow.looked_at_once():
        slow.open(path)
        for epoch in range(1, 5):
            fast.append(path, ROWS, Guard("another", Epoch(epoch)))
        ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(2)))
    table = DeltaTable(path)
    assert (table.count(), table.transaction_version("t")) == (6, 2)


def test_columns_that_came_in_between_are_kept(tmp_path: Path) -> None:
    path, slow, fast = str(tmp_path), Tables(), ArrowWriter(Tables())
    fast.append(path, ROWS, Guard("t", Epoch(1)))
    more = pa.table({"id": [2], "name": ["b"], "more": [True]})
    with slow.looked_at_once():
        slow.open(path)
        fast.append(path, more, Guard("another", Epoch(1)))
        ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(2)))
    found = DeltaTable(path).to_pyarrow_table().sort_by([("id", "ascending")])
    assert found["more"].to_pylist() == [None, None, True]


def test_a_disk_without_links_is_left_to_deltalake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    writer = ArrowWriter(Tables())
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(1)))
    monkeypatch.setattr(os, "link", refuse)
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(2)))
    change = pa.table({"id": [1], "name": ["b"], OP: [UPSERT]})
    writer.merge(str(tmp_path), change, Guard("t", Epoch(3)), keys=["id"])
    monkeypatch.undo()
    assert engine_of(tmp_path, 2) != "penstock"
    assert DeltaTable(str(tmp_path)).transaction_version("t") == 3
    names = DeltaTable(str(tmp_path)).to_pyarrow_table()["name"].to_pylist()
    assert set(names) == {"b"}
    left = {entry.name for entry in tmp_path.glob("*.parquet")}
    assert len(left) <= 4, "a file that was not committed is taken away"


def test_rows_of_partitions_lie_where_their_value_says(tmp_path: Path) -> None:
    writer = ArrowWriter(Tables())
    for epoch in range(1, 4):
        rows = pa.table({"id": [epoch, 10 * epoch, 7], "name": ["a", "b c/d", "Ö%"]})
        writer.append(str(tmp_path), rows, Guard("t", Epoch(epoch)), partition_by=["name"])
        rows = pa.table({"id": [100 + epoch], "name": ["a"]})
        writer.append(str(tmp_path), rows, Guard("u", Epoch(epoch)), partition_by=["name"])
    table = DeltaTable(str(tmp_path))
    found = table.to_pyarrow_table()
    counted = Counter(zip(found["name"].to_pylist(), found["id"].to_pylist(), strict=True))
    assert counted[("a", 103)] == 1
    assert counted[("b c/d", 20)] == 1
    assert len(found) == 12
    assert engine_of(tmp_path, 2) == "penstock", "one partition, of a plain name"
    rows_of_polars = pl.read_delta(str(tmp_path)).select("name", "id").rows()
    assert Counter(rows_of_polars) == counted


@pytest.mark.parametrize(
    "settings",
    [
        {"delta.enableChangeDataFeed": "true"},
        {"delta.appendOnly": "true"},
        {"delta.checkpointInterval": "1"},
        {},
    ],
)
def test_tables_that_ask_for_more_are_left_to_deltalake(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    table = DeltaTable.create(str(tmp_path), ROWS.schema, configuration=settings)
    assert commit_here(table, 0, [], [], [("t", Epoch(1))], {}) is Landing.NOT_HERE
    assert table.version() == 0


def test_a_log_that_was_cleaned_beyond_a_handle_loses_nothing(tmp_path: Path) -> None:
    path, slow, fast = str(tmp_path), Tables(), ArrowWriter(Tables())
    fast.append(path, ROWS, Guard("t", Epoch(1)))
    with slow.looked_at_once():
        ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(1)))  # It has that.
        for epoch in range(1, 6):
            fast.append(path, ROWS, Guard("another", Epoch(epoch)))
        newest = DeltaTable(path)
        newest.create_checkpoint()
        for version in range(newest.version()):
            (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
        with pytest.raises(LeaseLost):  # Nobody can tell any more who came in between.
            ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(2)))
    assert not (tmp_path / "_delta_log" / f"{2:020}.json").exists()
    assert len([*tmp_path.glob("*.parquet")]) == 6
    ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(2)))
    table = DeltaTable(path)
    assert (table.count(), table.transaction_version("t")) == (7, 2)


def test_a_log_that_is_cleaned_at_the_very_moment_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, slow, fast = str(tmp_path), Tables(), ArrowWriter(Tables())
    fast.append(path, ROWS, Guard("t", Epoch(1)))
    looks: list[int] = []

    def before_it_is_cleaned(_: str) -> int:
        looks.append(0)
        return -1 if len(looks) == 1 else 99

    with slow.looked_at_once():
        ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(1)))  # It has that.
        fast.append(path, ROWS, Guard("another", Epoch(1)))
        newest = DeltaTable(path)
        newest.create_checkpoint()
        for version in range(newest.version() + 1):
            (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
        monkeypatch.setattr(local_commits, "last_checkpoint", before_it_is_cleaned)
        with pytest.raises(LeaseLost):
            ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(2)))
    assert looks
    monkeypatch.undo()
    table = DeltaTable(path)
    assert (table.count(), table.transaction_version("t")) == (2, 1)


def test_another_thread_that_moves_the_handle_makes_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tables = str(tmp_path), Tables()
    ArrowWriter(tables).append(path, ROWS, Guard("t", Epoch(1)))
    close = StagedFiles.close

    def beside(self: StagedFiles) -> list[AddAction]:
        monkeypatch.setattr(StagedFiles, "close", close)
        ArrowWriter(Tables()).append(path, ROWS, Guard("t", Epoch(2)))
        tables.open(path)
        return close(self)

    monkeypatch.setattr(StagedFiles, "close", beside)
    with pytest.raises(LeaseLost):
        ArrowWriter(tables).append(path, ROWS, Guard("t", Epoch(2)))
    assert DeltaTable(path).count() == 2


def test_a_rival_with_the_same_epoch_again_is_told(tmp_path: Path) -> None:
    path, slow, fast = str(tmp_path), Tables(), ArrowWriter(Tables())
    fast.append(path, ROWS, Guard("t", Epoch(1)))
    with slow.looked_at_once():
        slow.open(path)
        fast.append(path, ROWS, Guard("t", Epoch(1), again=True))
        with pytest.raises(LeaseLost):
            ArrowWriter(slow).append(path, ROWS, Guard("t", Epoch(1), again=True))
    assert DeltaTable(path).count() == 2


def test_a_name_that_cannot_be_removed_behind_a_commit_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArrowWriter(Tables())
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(1)))
    unlink = os.unlink

    def refuse(path: str) -> None:
        if str(path).endswith(".new"):
            raise PermissionError("not now")
        unlink(path)

    monkeypatch.setattr(os, "unlink", refuse)
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(2)))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 2


def test_an_answer_that_was_lost_is_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, link = ArrowWriter(Tables()), os.link
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(1)))

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(2)))
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 2


def test_a_full_disk_is_told_as_such_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArrowWriter(Tables())
    writer.append(str(tmp_path), ROWS, Guard("t", Epoch(1)))
    before = {entry.name for entry in tmp_path.iterdir()}

    def full(self: StagedFiles) -> list[AddAction]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StagedFiles, "close", full)
    with pytest.raises(StorageFull, match="No space left") as told:
        writer.append(str(tmp_path), ROWS, Guard("t", Epoch(2)))
    assert "Make room on that disk" in told.value.remedy
    change = pa.table({"id": [1], "name": ["b"], OP: [UPSERT]})
    with pytest.raises(StorageFull, match="No space left"):
        writer.merge(str(tmp_path), change, Guard("t", Epoch(2)), keys=["id"])
    assert {entry.name for entry in tmp_path.iterdir()} == before


def test_a_column_called_like_a_nested_one_has_bounds_of_its_own(tmp_path: Path) -> None:
    rows = pa.table(
        {"a.b": pa.array([5, None], pa.int64()), "a": [{"b": "x"}, None], "z": [[1], None]}
    )
    writer = ArrowWriter(Tables())
    writer.append(str(tmp_path), rows, Guard("t", Epoch(1)))
    writer.append(str(tmp_path), rows, Guard("t", Epoch(2)))
    assert engine_of(tmp_path, 2) == "penstock"
    log = (tmp_path / "_delta_log" / f"{2:020}.json").read_text().splitlines()
    stats = next(json.loads(json.loads(line)["add"]["stats"]) for line in log if '"add"' in line)
    assert stats["minValues"] == {"a.b": 5}
    assert stats["nullCount"] == {"a.b": 1}
    assert pl.scan_delta(str(tmp_path)).filter(pl.col("a.b") == 5).collect().height == 2


def test_long_texts_stand_once_in_a_file_and_their_bounds_are_cut(tmp_path: Path) -> None:
    chance = random.Random(5)
    texts = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9_000)), None]
    rows = pa.table({"id": [1, 2], "text": texts, "raw": [chance.randbytes(9_000), None]})
    writer = ArrowWriter(Tables())
    writer.append(str(tmp_path), rows, Guard("t", Epoch(1)))
    (file,) = tmp_path.glob("*.parquet")
    assert file.stat().st_size < 20_000, "each value once, and not in four places of bounds"
    log = (tmp_path / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    stats = next(json.loads(json.loads(line)["add"]["stats"]) for line in log if '"add"' in line)
    assert stats["minValues"] == {"id": 1, "text": texts[0][:64]}
    assert stats["maxValues"] == {"id": 2, "text": f"{texts[0][:64]}{chr(0x10FFFF)}"}
    assert stats["nullCount"] == {"id": 0, "text": 1}
    found = pl.scan_delta(str(tmp_path)).filter(pl.col("text") == texts[0]).collect()
    assert found["id"].to_list() == [1]


def test_what_is_no_number_is_left_to_deltalake(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "v": [float("nan"), 1.0]})
    writer = ArrowWriter(Tables())
    for epoch in (1, 2):
        writer.append(str(tmp_path), rows, Guard("t", Epoch(epoch)))
    change = pa.table({"id": [3], "v": [float("nan")], OP: [UPSERT]})
    writer.merge(str(tmp_path), change, Guard("t", Epoch(3)), keys=["id"])
    assert {engine_of(tmp_path, version) == "penstock" for version in (1, 2, 3)} == {False}


def test_a_path_that_a_log_would_write_otherwise_is_left_to_deltalake(tmp_path: Path) -> None:
    ArrowWriter(Tables()).append(str(tmp_path), ROWS, Guard("t", Epoch(1)))
    table = DeltaTable(str(tmp_path))
    gone = [{"path": "name=a%20b/part-0.parquet", "size_bytes": 1}]
    assert commit_here(table, table.version(), [], gone, [("t", Epoch(2))], {}) is Landing.NOT_HERE
    assert local_commits._PLAIN_PATH.fullmatch("_gen/3/part-00000-abc.c000.snappy.parquet")


@pytest.mark.parametrize("last", [47, 48], ids=["it has what came since", "it has all"])
def test_a_handle_from_before_a_rest_says_whose_epochs_a_table_has(
    tmp_path: Path, last: int
) -> None:
    """Behind a rest of minutes the next checkpoint takes all that the handle was opened with."""
    Tables().ensure(str(tmp_path), ROWS.schema, settings=SHORT)
    ArrowWriter(Tables()).append(str(tmp_path), ROWS, Guard("other", Epoch(7)))
    append(tmp_path, 1, last)
    handle = Handle(str(tmp_path))
    for name in log_of(tmp_path):
        os.utime(tmp_path / "_delta_log" / name, (0, 0))
    append(tmp_path, last + 1, 52)
    log_checkpoints.settle()
    assert min(int(name[:20]) for name in log_of(tmp_path) if name.endswith(".json")) == 49
    handle.update_incremental()
    assert handle.transaction_version("other") == 7
    assert handle.transaction_version("t") == 52
    assert handle.transaction_version("nobody") is None
    assert handle.version() == 53
