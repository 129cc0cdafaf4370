"""Handles of tables are opened anew now and then, and lack no commit."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from kernel.errors import LeaseLost
from kernel.positions import Epoch
from lake import handles
from lake.guarded_commits import mark_of
from lake.handles import LISTED_EVERY_S, MOST_AHEAD, Handle
from lake.layout import Lake, changes_log
from lake.rows import SmallTables
from lake.tables import RENEWED_AFTER, Tables
from lake.writer import ArrowWriter, Guard
from tests.support.lake.folding import Done
from tests.support.lake.poisoned import ITEMS, PoisonedShop

ROWS = pa.table({"n": [1]})
MANY = 2 * RENEWED_AFTER + 3


def fill(tables: Tables, path: str, first: int, last: int) -> int:
    """Append once for each epoch; return how many handles were used."""
    used = []
    for epoch in range(first, last + 1):
        version = ArrowWriter(tables).append(path, ROWS, Guard("it", Epoch(epoch)))
        assert version == epoch
        opened = tables.open(path)
        assert opened is not None
        assert opened.version() == epoch, "it is at the newest version"
        used.append(opened)
        tables.appended(path)
    return len({*map(id, used)})


@pytest.mark.parametrize("owned", [False, True])
def test_a_handle_that_has_seen_many_commits_is_opened_anew(
    tmp_path: Path, owned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "MOST_AHEAD", RENEWED_AFTER)
    path = str(tmp_path / "table")
    tables = Tables(owned=lambda _: owned)
    assert fill(tables, path, 1, MANY) >= 3
    assert fill(tables, path, MANY + 1, MANY + 2) == 1
    assert DeltaTable(path).count() == MANY + 2


def test_on_a_disk_a_handle_stays_that_reads_commits_by_itself(tmp_path: Path) -> None:
    assert fill(Tables(), str(tmp_path / "table"), 1, MANY) == 1
    assert 2 * RENEWED_AFTER < MANY < MOST_AHEAD / 2, "another one would have been opened twice"


def test_a_handle_is_opened_anew_before_its_log_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer says when: deltalake would go through all commits that the handle has read."""
    path, now, tables, listed = str(tmp_path / "table"), [1_000_000.0], Tables(), list[str]()
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(Handle, "_listed_anew", lambda table: listed.append(table.table_uri))
    for epoch in range(1, 121):
        fill(tables, path, epoch, epoch)
        now[0] += 1.0
    assert not listed
    assert DeltaTable(path).count() == 120


def test_nobody_who_opens_a_table_has_its_handle_replaced(tmp_path: Path) -> None:
    """Its writer may be amid a commit with the one before, and a new one would lack that."""
    path = str(tmp_path / "table")
    tables = Tables()
    opened = []
    for epoch in range(1, MANY):
        ArrowWriter(tables).append(path, ROWS, Guard("it", Epoch(epoch)))
        opened.append(tables.open(path))
    assert len({*map(id, opened)}) == 1


def test_a_table_at_rest_is_not_listed_again_and_what_comes_is_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = str(tmp_path / "table"), [1_000_000.0]
    writer, reader, listed = Tables(), Tables(), []
    whole = Handle._listed_anew
    monkeypatch.setattr(time, "time", lambda: now[0])

    def list_anew(table: Handle) -> None:
        listed.append(1)
        whole(table)

    monkeypatch.setattr(Handle, "_listed_anew", list_anew)

    def seen() -> int:
        opened = reader.open(path)
        assert opened is not None
        return int(opened.version())

    fill(writer, path, 1, 2)
    assert seen() == 2
    listed.clear()
    assert [seen() for _ in range(3)] == [2, 2, 2]
    assert not listed
    fill(writer, path, 3, 4)
    listed.clear()
    now[0] += LISTED_EVERY_S / 2
    assert (seen(), len(listed)) == (4, 0), "what came stands in files of known names"
    now[0] -= LISTED_EVERY_S / 2
    for passed_s in (LISTED_EVERY_S, -3_600.0):
        now[0] += passed_s
        listed.clear()
        assert [seen(), seen()] == [4, 4]
        assert len(listed) == 1, "after a while, and when the clock was set, it looks at the log"


def test_a_log_that_was_cleaned_meanwhile_is_found_by_the_next_look_at_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = str(tmp_path / "table"), [1_000_000.0]
    writer, reader = Tables(), Tables()
    monkeypatch.setattr(time, "time", lambda: now[0])
    fill(writer, path, 1, 2)
    assert reader.open(path) is not None
    fill(writer, path, 3, 6)
    DeltaTable(path).create_checkpoint()
    for version in range(6):
        (tmp_path / "table" / "_delta_log" / f"{version:020}.json").unlink()
    now[0] += LISTED_EVERY_S
    opened = reader.open(path)
    assert opened is not None
    assert opened.version() == 6


def test_what_an_epoch_appends_to_goes_on_with_new_handles(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "MOST_AHEAD", 3)
    shop = PoisonedShop(lake)
    names = [changes_log("shop"), "epochs", "typed/shop.public.items"]
    found: dict[str, list[DeltaTable | None]] = {name: [] for name in names}
    for number in range(7):
        shop.commit({ITEMS: [Done("c", number)]})
        shop.epoch()
        shop.bring()
        for name in names:
            found[name].append(shop.tables.open(lake.path(name)))
    for name, opened in found.items():
        assert len({*map(id, opened)}) > 1, name
    last = shop.manifest.last()
    assert last is not None
    assert shop.state(ITEMS, last) == shop.expected(ITEMS)
    assert len(shop.typed(ITEMS)) == 7


def test_within_a_block_each_log_is_looked_at_once(tmp_path: Path) -> None:
    path, tables, other = str(tmp_path / "t"), Tables(), Tables()
    rows = pa.table({"n": pa.array([1], pa.int64())})
    ArrowWriter(other).append(path, rows, Guard("a", Epoch(1)))

    def version() -> int:
        handle = tables.open(path)
        assert handle is not None
        return int(handle.version())

    with tables.looked_at_once():
        seen = version()
        ArrowWriter(other).append(path, rows, Guard("a", Epoch(2)))
        assert version() == seen
        tables.changed(path)
        assert version() == seen + 1
        ArrowWriter(other).append(path, rows, Guard("a", Epoch(3)))
        ArrowWriter(tables).append(path, rows, Guard("b", Epoch(1)))
        assert version() == seen + 3
    ArrowWriter(other).append(path, rows, Guard("a", Epoch(4)))
    assert version() == seen + 4


def test_a_commit_under_a_guard_that_another_writer_took_meanwhile_is_refused(
    tmp_path: Path,
) -> None:
    path, tables, other = str(tmp_path / "t"), Tables(), Tables()
    rows = pa.table({"n": pa.array([1], pa.int64())})
    ArrowWriter(tables).append(path, rows, Guard("a", Epoch(1)))
    with tables.looked_at_once():
        tables.open(path)
        ArrowWriter(other).append(path, rows, Guard("a", Epoch(2)))
        with pytest.raises(LeaseLost):
            ArrowWriter(tables).append(path, rows, Guard("a", Epoch(2)))


def test_a_mark_is_that_of_the_handles_version(tmp_path: Path) -> None:
    path, tables = str(tmp_path / "t"), Tables()
    rows = pa.table({"n": pa.array([1], pa.int64())})
    for epoch in (1, 2, 3):
        ArrowWriter(tables).append(path, rows, Guard("a", Epoch(epoch)))
        handle = tables.open(path)
        assert handle is not None
        assert (mark_of(handle, "a"), mark_of(handle, "b")) == (epoch, None)
    old = DeltaTable(path, version=1)
    assert mark_of(old, "a") == 1
    old.update_incremental()
    assert mark_of(old, "a") == 3


@pytest.mark.parametrize("tables", [Tables(), SmallTables()])
def test_of_two_that_make_a_table_at_once_both_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: Tables | SmallTables
) -> None:
    create, path = DeltaTable.create, str(tmp_path / "table")

    def overtaken(*words: Any, **options: Any) -> DeltaTable:
        create(*words, **options)
        raise CommitFailedError("Protocol changed since last commit")

    monkeypatch.setattr(DeltaTable, "create", overtaken)
    assert tables.ensure(path, ROWS.schema).version() == 0


def test_a_table_that_nobody_could_make_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> DeltaTable:
        raise CommitFailedError("no room")

    monkeypatch.setattr(DeltaTable, "create", refused)
    with pytest.raises(CommitFailedError, match="no room"):
        Tables().ensure(str(tmp_path / "table"), ROWS.schema)
