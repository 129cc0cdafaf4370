"""What a log says of its files is asked once of each version, and never of another one."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lake import file_actions, handle_answers
from lake.file_actions import actions_of


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    write_deltalake(str(tmp_path), pa.table({"id": [1, 2]}))
    return DeltaTable(str(tmp_path))


def test_a_version_is_asked_once(table: DeltaTable) -> None:
    first = actions_of(table)
    assert actions_of(table) is first
    assert first["num_records"].to_pylist() == [2]


def test_a_handle_that_moved_is_asked_anew(table: DeltaTable) -> None:
    actions_of(table)
    other = DeltaTable(table.table_uri)
    write_deltalake(other, pa.table({"id": [3]}), mode="append")
    assert actions_of(table).num_rows == 1, "the handle has its own version"
    table.update_incremental()
    assert sorted(actions_of(table)["num_records"].to_pylist()) == [1, 2]
    table.load_as_version(0)
    assert actions_of(table).num_rows == 1


def test_nothing_is_kept_of_a_handle_that_is_gone(table: DeltaTable) -> None:
    own = DeltaTable(table.table_uri)
    place = id(own)
    actions_of(own)
    assert place in handle_answers._known
    del own
    gc.collect()
    assert place not in handle_answers._known


def test_of_a_table_with_many_files_nothing_is_kept(
    table: DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_actions, "MOST_FILES", 0)
    assert actions_of(table) is not actions_of(table)
    assert actions_of(table).num_rows == 1
