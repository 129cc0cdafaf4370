"""A handle takes in commits of rows from their own files, and leaves all else to deltalake."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.positions import Epoch
from lake import handles
from lake.datasets import paths_of
from lake.handles import LISTED_EVERY_S, Handle
from lake.storage import log_file
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard

ROWS = pa.table({"n": [1, 2]})


class Scene:
    """A table, its writer, and a handle that was opened before the writer went on."""

    def __init__(self, path: Path) -> None:
        self.path, self.epoch = str(path), 0
        self.writer = ArrowWriter(Tables())
        self.add()
        self.table = Handle(self.path)

    def add(self, rows: pa.Table = ROWS) -> None:
        self.epoch += 1
        self.writer.append(self.path, rows, Guard("it", Epoch(self.epoch)))

    def look(self) -> tuple[int, int]:
        """Look at the log; return the version of the handle, and of deltalake's own."""
        self.table.update_incremental()
        return self.table.version(), self.table._raw.version()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "t")


def test_commits_of_rows_are_taken_in_without_deltalake(scene: Scene) -> None:
    scene.add()
    scene.add()
    assert scene.look() == (3, 1)
    assert scene.table.transaction_version("it") == 3
    assert scene.table.transaction_version("other") is None
    assert pa.table(scene.table.get_add_actions(flatten=True)).num_rows == 3
    assert scene.table.count() == 6
    assert scene.table._raw.version() == 1


def test_an_operation_of_deltalakes_sees_the_version_that_the_handle_has(scene: Scene) -> None:
    scene.add()
    assert scene.look() == (2, 1)
    scene.add()
    assert len(scene.table.file_uris()) == 2
    assert (scene.table.version(), scene.table._raw.version()) == (2, 2)
    write_deltalake(scene.table, ROWS, mode="append")
    assert scene.table.version() == DeltaTable(scene.path).version() == 4
    scene.add()
    assert scene.look() == (5, 4)


def test_an_operation_that_ends_beyond_what_another_thread_took_in_is_what_counts(
    scene: Scene,
) -> None:
    raw = scene.table._table  # an operation of deltalake's begins
    scene.add()
    assert scene.look() == (2, 1), "another thread looks meanwhile"
    DeltaTable(scene.path).delete()
    raw.update_incremental()  # it ends: behind a commit of somebody else
    newest = DeltaTable(scene.path)
    assert scene.table.version() == newest.version() == 3
    assert pa.table(scene.table.get_add_actions(flatten=True)).num_rows == 0
    assert scene.table.transaction_version("it") == 2
    assert scene.look() == (3, 3)
    assert scene.table.file_uris() == newest.file_uris() == []


def test_now_and_then_deltalake_looks_at_the_whole_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    monkeypatch.setattr(time, "time", lambda: now[0])
    for passed_s in (LISTED_EVERY_S, -3_600.0):
        scene.add()
        now[0] += passed_s
        version = scene.epoch
        assert scene.look() == (version, version), "and so it does when the clock was set"


def test_it_keeps_no_more_than_some_commits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "MOST_AHEAD", 2)
    for looks in ((2, 1), (3, 1), (4, 4), (5, 4)):
        scene.add()
        assert scene.look() == looks


def test_each_file_is_put_into_columns_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[int] = []
    rows_of = handles._rows

    def counted(files: Sequence[handles.File], *more: pa.Schema) -> pa.Table | None:
        put.append(len(files))
        return rows_of(files, *more)

    monkeypatch.setattr(handles, "_rows", counted)
    for looks in range(2, 30):
        scene.add()
        assert scene.look() == (looks, 1)
        told = pa.table(scene.table.get_add_actions(flatten=True))
        assert scene.table.count() == 2 * looks
        assert {*told["path"].to_pylist()} == {*paths_of(DeltaTable(scene.path))}
        assert told["path"].num_chunks <= handles._PIECES
    assert put == [1] * 28


def test_a_file_that_comes_again_is_there_once(scene: Scene) -> None:
    scene.add()
    scene.add()
    log = Path(log_file(scene.path, 3))
    (added,) = (line for line in log.read_text().splitlines() if '"add"' in line)
    for version, said in ((4, {"n": 5}), (5, {"n": 7})):
        again = json.loads(added)
        stats = json.loads(again["add"]["stats"]) | {"maxValues": said}
        again["add"] |= {"stats": json.dumps(stats), "dataChange": False}
        Path(log_file(scene.path, version)).write_text(json.dumps(again))
        assert scene.look() == (version, 1)
        told = pa.table(scene.table.get_add_actions(flatten=True))
        assert sorted(told["max.n"].to_pylist()) == [2, 2, said["n"]]
    removed = {"path": again["add"]["path"], "dataChange": True, "deletionTimestamp": 1}
    Path(log_file(scene.path, 6)).write_text(json.dumps({"remove": removed}))
    assert scene.look() == (6, 1)
    assert scene.table.count() == 4


def test_files_of_a_large_table_are_told_by_deltalake(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handles, "MOST_FILES", 0)
    scene.add()
    assert scene.look() == (2, 1)
    assert pa.table(scene.table.get_add_actions(flatten=True)).num_rows == 2
    assert scene.table._raw.version() == 2


@pytest.mark.parametrize(
    "said",
    [
        {"add": {"deletionVector": {"storageType": "u"}}},
        {"add": {"path": "n=a%20b/x.parquet"}},
        {"domainMetadata": {"domain": "d", "configuration": "", "removed": False}},
    ],
)
def test_what_is_not_about_plain_files_is_left_to_deltalake(
    scene: Scene, said: dict[str, dict[str, object]]
) -> None:
    scene.add()
    place = Path(log_file(scene.path, 2))
    lines = []
    for line in place.read_text().splitlines():
        ((kind, own),) = json.loads(line).items()
        lines.append({kind: own | (said.get(kind, {}))})
    lines += [{kind: own} for kind, own in said.items() if kind != "add"]
    place.write_text("\n".join(map(json.dumps, lines)))
    before = handles._Ahead(version=1)
    assert before.after(place.read_bytes()) is None


@pytest.mark.parametrize("bounds", [None, {"n": "many", "exact": "many"}, {"exact": "1.5"}])
def test_odd_bounds_are_what_deltalake_says_of_them(
    tmp_path: Path, bounds: dict[str, str] | None
) -> None:
    rows = ROWS.append_column("exact", pa.array([1, 2], pa.decimal128(10, 2)))
    path = str(tmp_path / "t")
    write_deltalake(path, rows)
    table = Handle(path)
    write_deltalake(path, rows, mode="append")
    place = Path(log_file(path, 1))
    actions = [json.loads(line) for line in place.read_text().splitlines()]
    for added in (each["add"] for each in actions if "add" in each):
        said = json.loads(added["stats"])
        added["stats"] = json.dumps(said | {"minValues": bounds})
    place.write_text("\n".join(map(json.dumps, actions)))
    table.update_incremental()

    def told(it: DeltaTable) -> list[str]:
        return sorted(map(str, pa.table(it.get_add_actions(flatten=True)).to_pylist()))

    assert told(table) == told(DeltaTable(path))


def test_columns_and_settings_are_read_by_deltalake(scene: Scene) -> None:
    scene.add(pa.table({"n": [1], "m": [2]}))
    versions = scene.look()
    assert versions[0] == versions[1] == DeltaTable(scene.path).version()
    assert [each.name for each in scene.table.schema().fields] == ["n", "m"]
    scene.table.alter.set_table_properties({"delta.appendOnly": "false"})
    scene.add()
    scene.look()
    assert scene.table.metadata().configuration["delta.appendOnly"] == "false"


@pytest.mark.parametrize("content", [b"", b"{", b"[]\n", b'{"add": 1}\n', b'{"add": {}}\n'])
def test_a_commit_that_cannot_be_read_is_deltalakes_to_tell(scene: Scene, content: bytes) -> None:
    Path(log_file(scene.path, 2)).write_bytes(content)
    try:
        by_deltalake = DeltaTable(scene.path).version()
    except Exception as error:
        with pytest.raises(type(error)):
            scene.look()
    else:
        assert scene.look() == (by_deltalake, by_deltalake)
