"""Merges by files give the rows that deltalake's MERGE gives, and stand behind what they read."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import Incompatible, LeaseLost
from kernel.positions import Epoch
from lake import file_merges
from lake.datasets import paths_of
from lake.file_merges import FileMerges
from lake.staged_files import StagedFiles
from lake.table_commits import OPERATION
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, ArrowWriter, Guard
from tests.support.services.tier import examples

MOMENT = pa.timestamp("us", "UTC")
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [None, "", "a", "A", "ä", "é", "e\u0301", "\x00", "z" * 70, "😀"]),
    "number": (pa.int64(), [None, -(2**63), -1, 0, 1, 2**63 - 1]),
    "exact": (pa.decimal128(20, 4), [None, Decimal("0.0000"), Decimal("-1.5000"), Decimal("9")]),
    "day": (pa.date32(), [None, date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)]),
    "moment": (MOMENT, [None, datetime(1970, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, tzinfo=UTC)]),
    "flag": (pa.bool_(), [None, True, False]),
    "bytes": (pa.binary(), [None, b"", b"\x00", b"a"]),
    "double": (pa.float64(), [None, 0.0, 1.5, -1e300]),
}
"""Types of keys, and values in each. Doubles are left to MERGE."""
KINDS = st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2, unique=True)
NEWER = st.sampled_from([None, 0, 1, 2])


def schema_of(kinds: list[str]) -> pa.Schema:
    keys = [(f"k_{kind}", KEYS[kind][0]) for kind in kinds]
    return pa.schema([*keys, ("at", pa.int64()), ("sub", pa.int64()), ("n", pa.int32())])


@st.composite
def changes(draw: st.DrawFn, kinds: list[str]) -> list[dict[str, Any]]:
    """Draw rows of one merge: one of each key."""
    values = st.tuples(*(st.sampled_from(KEYS[kind][1]) for kind in kinds))
    rows: list[dict[str, Any]] = []
    for key in draw(st.lists(values, max_size=6, unique=True)):
        own = {f"k_{kind}": value for kind, value in zip(kinds, key, strict=True)}
        own |= {"at": draw(NEWER), "sub": draw(NEWER), "n": draw(st.integers(0, 9))}
        rows.append({**own, OP: draw(st.sampled_from([UPSERT, UPSERT, DELETE]))})
    return rows


@settings(max_examples=examples(20, matrix=100))
@given(data=st.data(), kinds=KINDS, newer=st.booleans())
def test_merges_by_files_give_what_merge_gives(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kinds: list[str], newer: bool
) -> None:
    shape = schema_of(kinds)
    folder = tmp_path_factory.mktemp("merges")
    both = {
        name: ArrowWriter(Tables(), files=files)
        for name, files in (
            ("files", FileMerges()),
            ("forgetful", FileMerges(held_bytes=0)),
            ("merge", FileMerges(most_bytes=0)),
        )
    }
    merges = [data.draw(changes(kinds)) for _ in range(data.draw(st.integers(1, 5)))]
    for epoch, rows in enumerate(merges, 1):
        made = pa.Table.from_pylist(rows, schema=shape.append(pa.field(OP, pa.string())))
        for name, writer in both.items():
            guard = Guard("t", Epoch(epoch))
            writer.merge(
                str(folder / name),
                made,
                guard,
                keys=[f"k_{kind}" for kind in kinds],
                newer=("at", "sub") if newer else (),
            )
        found = {name: bag(folder / name) for name in both}
        assert found["files"] == found["merge"]
        assert found["forgetful"] == found["merge"]


def bag(path: Path) -> list[str]:
    rows = Tables().read(str(path))
    assert rows is not None
    return sorted(map(repr, rows.to_pylist()))


FIRST = {"id": ["a", "b", None], "n": [1, 2, 3]}
CHANGE = pa.table({"id": ["b", None, "c"], "n": [20, 30, 40], OP: [UPSERT, DELETE, UPSERT]})


class Scene:
    """A table of three rows, and a writer whose files another writer can come before."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "t")
        self.tables = Tables()
        self.writer = ArrowWriter(self.tables)
        self.writer.append(self.path, pa.table(FIRST), Guard("t", Epoch(1)))

    def other(self, app: str, **columns: list[Any]) -> None:
        """Append a row by another process."""
        ArrowWriter(Tables()).append(self.path, pa.table(columns), Guard(app, Epoch(7)))

    def merge(self, epoch: int = 2) -> None:
        # The log was looked at before the other one came.
        with self.tables.looked_at_once():
            self.tables.open(self.path)
            self.other("another", id=["d"], n=[4])
            self.writer.merge(self.path, CHANGE, Guard("t", Epoch(epoch)), keys=["id"])

    def operations(self) -> list[str]:
        table = self.tables.open(self.path)
        assert table is not None
        return [str(each.get(OPERATION, each["operation"])) for each in table.history()]

    def rows(self) -> dict[str | None, int]:
        read = Tables().read(self.path)
        assert read is not None
        return {row["id"]: row["n"] for row in read.to_pylist()}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_commit_of_somebody_else_in_between_leaves_it_to_merge(scene: Scene) -> None:
    scene.merge()
    assert scene.rows() == {"a": 1, "b": 20, "c": 40, "d": 4}
    table = scene.tables.open(scene.path)
    assert table is not None
    assert "num_target_rows_inserted" in str(table.history(1)[0]["operationMetrics"])
    there = {path.name for path in Path(scene.path).glob("*.parquet")}
    assert len(there - paths_of(table)) == 1, "what MERGE replaced, and no file of ours"


def test_a_row_of_the_same_key_that_came_in_between_is_seen(scene: Scene) -> None:
    with scene.tables.looked_at_once():
        scene.tables.open(scene.path)
        scene.other("another", id=["c"], n=[9])
        scene.writer.merge(scene.path, CHANGE, Guard("t", Epoch(2)), keys=["id"])
    assert scene.rows() == {"a": 1, "b": 20, "c": 40}


def test_a_rival_under_the_same_name_makes_it_fail(scene: Scene) -> None:
    with scene.tables.looked_at_once():
        scene.tables.open(scene.path)
        scene.other("t", id=["c"], n=[9])
        with pytest.raises(LeaseLost):
            scene.writer.merge(scene.path, CHANGE, Guard("t", Epoch(2)), keys=["id"])
    assert scene.rows() == {"a": 1, "b": 2, None: 3, "c": 9}


def test_deletes_of_keys_that_are_not_there_write_no_file(scene: Scene) -> None:
    table = scene.tables.open(scene.path)
    assert table is not None
    before = paths_of(table)
    gone = pa.table({"id": ["aa"], "n": [0], OP: [DELETE]})
    scene.writer.merge(scene.path, gone, Guard("t", Epoch(2)), keys=["id"])
    assert paths_of(table) == before
    assert table.transaction_version("t") == 2


def test_all_rows_can_go_and_come_again(scene: Scene) -> None:
    all_gone = pa.table({**FIRST, OP: [DELETE] * 3})
    scene.writer.merge(scene.path, all_gone, Guard("t", Epoch(2)), keys=["id"])
    assert scene.rows() == {}
    scene.writer.merge(scene.path, CHANGE, Guard("t", Epoch(3)), keys=["id"])
    assert scene.rows() == {"b": 20, "c": 40}


def test_a_compaction_in_between_is_followed(scene: Scene) -> None:
    scene.writer.merge(scene.path, CHANGE, Guard("t", Epoch(2)), keys=["id"])
    scene.other("another", id=["d"], n=[4])
    other = Tables().open(scene.path)
    assert other is not None
    other.optimize.compact()
    again = pa.table({"id": ["a", "d"], "n": [100, 400], OP: [UPSERT, UPSERT]})
    scene.writer.merge(scene.path, again, Guard("t", Epoch(3)), keys=["id"])
    assert scene.rows() == {"a": 100, "b": 20, "c": 40, "d": 400}


def test_columns_that_rows_lack_become_null_and_new_ones_are_added(scene: Scene) -> None:
    rows = pa.table({"id": ["a"], "more": [True], OP: [UPSERT]})
    scene.writer.merge(scene.path, rows, Guard("t", Epoch(2)), keys=["id"])
    read = Tables().read(scene.path)
    assert read is not None
    found = {row["id"]: (row["n"], row["more"]) for row in read.to_pylist()}
    assert found == {"a": (None, True), "b": (2, None), None: (3, None)}


def test_a_merge_without_effect_behind_somebody_else_leaves_its_guard(scene: Scene) -> None:
    gone = pa.table({"id": ["bb"], "n": [0], OP: [DELETE]})
    with scene.tables.looked_at_once():
        scene.tables.open(scene.path)
        scene.other("another", id=["d"], n=[4])
        scene.writer.merge(scene.path, gone, Guard("t", Epoch(2)), keys=["id"])
    table = scene.tables.open(scene.path)
    assert table is not None
    assert table.transaction_version("t") == 2


def test_another_thread_that_moves_the_handle_makes_no_row_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = StagedFiles.close

    def beside(self: StagedFiles) -> list[AddAction]:
        monkeypatch.setattr(StagedFiles, "close", close)
        found = close(self)
        scene.other("another", id=["d"], n=[4])
        other = Tables().open(scene.path)
        assert other is not None
        other.optimize.compact()
        scene.tables.open(scene.path)
        return found

    monkeypatch.setattr(StagedFiles, "close", beside)
    scene.writer.merge(scene.path, CHANGE, Guard("t", Epoch(2)), keys=["id"])
    assert scene.rows() == {"a": 1, "b": 20, "c": 40, "d": 4}
    read = Tables().read(scene.path)
    assert read is not None
    assert read.num_rows == 4


def test_keys_that_are_not_unique_are_left_to_merge(scene: Scene) -> None:
    scene.other("another", id=["a"], n=[9])
    twice = pa.table({"id": ["c", "c"], "n": [1, 2], OP: [UPSERT, UPSERT]})
    once = pa.table({"id": ["a"], "n": [7], OP: [UPSERT]})
    told = pa.table({"id": ["a", "a"], "n": [1, 2], OP: [UPSERT, UPSERT]})
    scene.writer.merge(scene.path, once, Guard("t", Epoch(2)), keys=["id"])
    table = scene.tables.open(scene.path)
    assert table is not None
    assert "num_target_rows_updated" in str(table.history(1)[0]["operationMetrics"])
    scene.writer.merge(scene.path, twice, Guard("t", Epoch(3)), keys=["id"])
    assert "num_target_rows_inserted" in str(table.history(1)[0]["operationMetrics"])
    with pytest.raises(Incompatible):
        scene.writer.merge(scene.path, told, Guard("t", Epoch(4)), keys=["id"])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_key_of_zero_that_changes_its_sign_is_one_row(tmp_path: Path, sign: float) -> None:
    """PostgreSQL tells of it as of any changed key: the old one goes, the new one comes."""
    path, writer = str(tmp_path), ArrowWriter(Tables())
    zero, other = 0.0 * sign, -0.0 * sign
    rows = pa.table({"x": [zero, 1.0, float("nan")], "y": [1, 2, 3]})
    writer.append(path, rows, Guard("t", Epoch(1)))
    change = {"x": [other, zero, 1.0], "y": [1, 1, 2], OP: [UPSERT, DELETE, DELETE]}
    writer.merge(path, pa.table(change), Guard("t", Epoch(2)), keys=["x", "y"])
    assert bag(tmp_path) == sorted([f"{{'x': {other}, 'y': 1}}", "{'x': nan, 'y': 3}"])


def test_what_is_large_once_it_is_unpacked_is_left_to_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_merges, "MOST_IN_MEMORY", 1_000_000)
    path, writer = str(tmp_path), ArrowWriter(Tables())
    rows = pa.table({"id": [*range(1_000)], "text": ["x" * 2_000] * 1_000})
    writer.append(path, rows, Guard("t", Epoch(1)))
    change = pa.table({"id": [5], "text": ["y"], OP: [UPSERT]})
    writer.merge(path, change, Guard("t", Epoch(2)), keys=["id"])
    found = Tables().open(path)
    assert found is not None
    assert "num_target_rows_updated" in str(found.history(1)[0]["operationMetrics"])


def test_rows_that_are_held_are_one_piece(tmp_path: Path) -> None:
    path, files = str(tmp_path), FileMerges()
    writer = ArrowWriter(Tables(), files=files)
    writer.append(path, pa.table({"id": [*range(100)]}), Guard("t", Epoch(1)))
    for epoch in range(2, 20):
        change = pa.table({"id": [epoch * 5], OP: [UPSERT]})
        writer.merge(path, change, Guard("t", Epoch(epoch)), keys=["id"])
    (held,) = files._held.values()
    assert held["id"].num_chunks == 1
