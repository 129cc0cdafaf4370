"""Bases whose rows are kept in memory: whatever was merged, the rows are those of a MERGE."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import DeltaVersion, Epoch
from lake.datasets import location_of
from lake.tables import Tables
from lake.writer import OP, ArrowWriter, Guard
from pipeline.current import warm_bases as kept_module
from pipeline.current.merging import BaseMerge, MergeHere, MergeKept
from pipeline.current.warm_bases import KeptBases
from tests.support.services.tier import examples

VALUES = {
    "name": pa.string(),
    "amount": pa.decimal128(12, 2),
    "tags": pa.list_(pa.string()),
    "place": pa.struct([("x", pa.int32()), ("y", pa.int32())]),
}
Row = dict[str, object]


def images(rows: Sequence[Row], key: pa.DataType | None = None) -> pa.Table:
    names = [name for name in ("id", *VALUES, OP) if any(name in row for row in rows)]
    types = {"id": key or pa.int64(), OP: pa.string(), **VALUES}
    return pa.Table.from_pylist(list(rows), schema=pa.schema([(n, types[n]) for n in names]))


def row(key: object, name: str | None = "n", op: str = "upsert", **values: object) -> Row:
    amount, place = Decimal("1.50"), {"x": 1, "y": None}
    rest: Row = {"amount": amount, "tags": ["a", None], "place": place, **values}
    return {"id": key, "name": name, **rest, OP: op}


def stored(path: Path | str, *keys: str) -> list[Row]:
    table = Tables().read(str(path))
    assert table is not None
    return table.sort_by([(key, "ascending") for key in keys or ("id",)]).to_pylist()


class Both:
    """Merges the same rows in both ways, into tables of their own."""

    def __init__(self, folder: Path, kept: KeptBases | None = None) -> None:
        self.paths = [str(folder / name) for name in ("kept", "here")]
        self.merges: list[BaseMerge] = [MergeKept(kept), MergeHere()]
        self.epoch = 0

    def start(self, table: pa.Table, **options: str) -> None:
        for path in self.paths:
            write_deltalake(path, table, **options)

    def __call__(self, rows: pa.Table, *keys: str) -> list[Row]:
        """Return the rows of both, which are the same."""
        self.epoch += 1
        guard, keys = Guard("base", Epoch(self.epoch)), keys or ("id",)
        for merge, path in zip(self.merges, self.paths, strict=True):
            done = merge(path, rows, guard, keys)
            assert done.version == DeltaTable(path).version()
            assert done.rows == DeltaTable(path).count()
        assert DeltaTable(self.paths[0]).transaction_version("base") == self.epoch
        one, other = (stored(path, *keys) for path in self.paths)
        assert one == other
        return one


@pytest.fixture
def both(tmp_path: Path) -> Both:
    return Both(tmp_path)


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose rows were replaced as a whole."""
    seen: list[str] = []
    replace = ArrowWriter.replace

    def noted(self: ArrowWriter, table: DeltaTable, *rest: object) -> DeltaVersion:
        seen.append(Path(location_of(table)).name)
        return replace(self, table, *rest)

    monkeypatch.setattr(ArrowWriter, "replace", noted)
    return seen


@given(st.data())
@settings(max_examples=examples(6, matrix=15))
def test_merges_in_memory_leave_what_merges_of_deltalake_leave(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([pa.int64(), pa.int32(), pa.string()]))
    make: Callable[[int], object] = str if kind == pa.string() else int
    batches = st.dictionaries(
        st.integers(0, 9), st.tuples(st.sampled_from(["upsert", "delete"]), st.text(max_size=3))
    )
    model: dict[object, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        both = Both(Path(folder), KeptBases(data.draw(st.sampled_from([0, 500, 2**20]))))
        both.start(images([row(make(0), "first")], kind).drop_columns([OP]))
        model[make(0)] = "first"
        for batch in data.draw(st.lists(batches, min_size=1, max_size=5)):
            rows = [row(make(key), name, op) for key, (op, name) in batch.items()]
            merged = both(images(rows or [row(make(0))], kind).slice(0, len(rows)))
            for key, (op, name) in batch.items():
                model.pop(make(key), None)
                if op == "upsert":
                    model[make(key)] = name
            assert {found["id"]: found["name"] for found in merged} == model


def test_the_base_is_read_once(
    both: Both, replaced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    real = kept_module.dataset_of
    monkeypatch.setattr(kept_module, "dataset_of", lambda t: read.append(t.version()) or real(t))
    both.start(images([row(number) for number in range(100)]).drop_columns([OP]))
    for number in range(20):
        both(images([row(number, f"new {number}"), row(number + 1, op="delete")]))
    assert replaced == ["kept"] * 20
    assert read == [0]
    monkeypatch.setattr(kept_module, "_MOST_CHUNKS", 3)
    for number in range(6):
        both(images([row(number, "newest")]))
    assert len(read) > 2, "a base of many pieces is read anew, in few"
    assert both(images([row(0, "last")]))[0]["name"] == "last"


def test_what_somebody_else_commits_is_not_undone(both: Both, replaced: list[str]) -> None:
    """A row that was taken away by hand stays away; one that came in stays in."""
    both.start(images([row(number) for number in range(9)]).drop_columns([OP]))
    both(images([row(1, "one")]))
    for path in both.paths:
        DeltaTable(path).delete("id = 5")
        write_deltalake(path, images([row(77, "by hand")]).drop_columns([OP]), mode="append")
    found = both(images([row(2, "two")]))
    assert [item["id"] for item in found] == [0, 1, 2, 3, 4, 6, 7, 8, 77]
    assert len(replaced) == 2


def test_what_somebody_else_appends_amid_a_merge_is_there_after_the_next(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    both.start(images([row(1)]).drop_columns([OP]))
    replace, path = ArrowWriter.replace, both.paths[0]

    def late(self: ArrowWriter, table: DeltaTable, *rest: object) -> DeltaVersion:
        monkeypatch.setattr(ArrowWriter, "replace", replace)
        write_deltalake(path, images([row(77)]).drop_columns([OP]), mode="append")
        return replace(self, table, *rest)

    monkeypatch.setattr(ArrowWriter, "replace", late)
    merge = both.merges[0]
    assert merge(path, images([row(2)]), Guard("base", Epoch(1)), ["id"]).rows == 3
    assert merge(path, images([row(3)]), Guard("base", Epoch(2)), ["id"]).rows == 4
    assert [item["id"] for item in stored(path)] == [1, 2, 3, 77]


def test_rows_without_a_column_make_it_null(both: Both, replaced: list[str]) -> None:
    both.start(images([row(1), row(2)]).drop_columns([OP]))
    assert both(images([{"id": 1, "name": "x", OP: "upsert"}]))[0]["amount"] is None
    assert replaced


def test_a_key_may_have_several_columns(both: Both, replaced: list[str]) -> None:
    both.start(images([row(1, "a"), row(1, "b"), row(2, "a"), row(2, None)]).drop_columns([OP]))
    changed = [row(1, "a", amount=None), row(2, "a", op="delete"), row(2, "new")]
    found = both(images(changed), "id", "name")
    assert [(r["id"], r["name"]) for r in found] == [(1, "a"), (1, "b"), (2, "new"), (2, None)]
    assert replaced == ["kept"]


def test_what_does_not_suit_is_merged_by_deltalake(
    tmp_path: Path, replaced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = images([row(1, "a"), row(2, "b")]).drop_columns([OP])
    cases: dict[str, tuple[pa.Table, tuple[str, ...], dict[str, str]]] = {
        "a decimal key": (images([row(7, amount=Decimal("9.00"))]), ("amount",), {}),
        "a null in the key": (images([row(3, None)]), ("name",), {}),
        "a new column": (images([row(1)]).append_column("more", pa.array([1])), ("id",), {}),
        "another type": (images([row(1)], pa.int32()), ("id",), {}),
        "partitions": (images([row(1, "z")]), ("id",), {"partition_by": "name"}),
        "no rows": (images([row(1)]).slice(0, 0), ("id",), {}),
        "a base that becomes empty": (
            images([row(1, op="delete"), row(2, op="delete")]),
            ("id",),
            {},
        ),
    }
    for name, (rows, keys, options) in cases.items():
        both = Both(tmp_path / name)
        both.start(base.slice(0, 1) if name == "a decimal key" else base, **options)
        both(rows, *keys)
        assert replaced == [], name
    monkeypatch.setattr(kept_module, "MOST_FILE_BYTES", 10)
    both = Both(tmp_path / "large")
    both.start(base)
    both(images([row(1, "large")]))
    assert replaced == []


def test_a_base_that_is_too_large_in_memory_is_left_to_deltalake(
    tmp_path: Path, replaced: list[str]
) -> None:
    both = Both(tmp_path, KeptBases(most_bytes=100_000))
    both.start(images([row(1)]).drop_columns([OP]))
    both(images([row(2, "x" * 10)]))
    assert len(replaced) == 1
    both(images([row(number, "x" * 10_000) for number in range(3, 20)]))
    assert len(replaced) == 2
    both(images([row(2, "again")]))
    assert len(replaced) == 2, "it has outgrown the bound"
    again = KeptBases(most_bytes=100_000)
    table = DeltaTable(both.paths[0])
    assert again.merged(both.paths[0], table, images([row(2)]), ["id"]) is None


def test_bases_used_longest_ago_are_forgotten(tmp_path: Path) -> None:
    kept = KeptBases(most_bytes=30_000)
    rows = pa.table({"id": range(1000)})
    for name in "abcd":
        kept.keep(name, 0, rows)
    kept.keep("c", 1, rows)
    assert list(kept._kept) == ["b", "d", "c"]
    kept.forget("d")
    kept.keep("large", 0, pa.table({"id": range(5000)}))
    assert list(kept._kept) == ["b", "c"], "what has no room itself drives nobody out"


def test_the_same_epoch_twice_changes_nothing(both: Both) -> None:
    both.start(images([row(1)]).drop_columns([OP]))
    both(images([row(2)]))
    both.epoch -= 1
    assert [item["id"] for item in both(images([row(3)]))] == [1, 2]


def test_what_a_merge_here_made_is_known_without_a_look_at_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = Both(tmp_path)
    both.start(images([row(1), row(2)]).drop_columns([OP]))
    both(images([row(1, "a")]))
    merge, path = both.merges[0], both.paths[0]
    assert isinstance(merge, MergeKept)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTable, "transaction_version", None)
        table = DeltaTable(path)
        assert merge.reached(path, table, Guard("base", Epoch(1)))
        assert not merge.reached(path, table, Guard("base", Epoch(2)))
    # Another writer's version is looked at.
    ArrowWriter(Tables()).append(path, images([row(3)]).drop_columns([OP]), Guard("base", Epoch(7)))
    assert merge.reached(path, DeltaTable(path), Guard("base", Epoch(7)))
