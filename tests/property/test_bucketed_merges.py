"""A large merge by buckets: the rows of any other merge, and never more than a bucket in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel.errors import LeaseLost
from kernel.positions import DeltaVersion, Epoch
from lake import file_batches
from lake.executor_tasks import Task, TasksHere, WrittenFile
from lake.layers import marked
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, ArrowWriter, Guard
from pipeline.current import bucketed_merge
from pipeline.current.bucketed_merge import BucketedMerge, BucketTask
from pipeline.current.key_files import Hashes, KeyFiles
from pipeline.current.staged_images import ArrowStagedMerge
from tests.support.services.tier import examples

IDS, NAMES = st.integers(0, 12), st.sampled_from(["", "a", "b", "größe", "\x00"])
ROWS = st.dictionaries(st.tuples(IDS, NAMES), st.integers(0, 99), max_size=20)
IMAGES = st.dictionaries(
    st.tuples(IDS, NAMES), st.one_of(st.none(), st.integers(0, 99)), min_size=1, max_size=20
)
KEYS = ["id", "name"]


class Refused:
    """Stands where another merge would take over."""

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        raise AssertionError(f"{path} suits the buckets")


def rows_of(found: dict[tuple[int, str], int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([number for number, _ in found], pa.int64()),
            "name": pa.array([name for _, name in found], pa.string()),
            "value": pa.array(found.values(), pa.int64()),
        }
    )


def images_of(found: dict[tuple[int, str], int | None]) -> pa.Table:
    ops = [DELETE if value is None else UPSERT for value in found.values()]
    rows = rows_of({key: value or 0 for key, value in found.items()})
    return rows.append_column(OP, pa.array(ops, pa.string()))


def stage(tables: Tables, path: str, parts: Sequence[pa.Table], keys: Sequence[str]) -> None:
    for number, part in enumerate(parts, start=1):
        guard = Guard("staging", Epoch(number))
        ArrowWriter(tables).append(path, marked(part, keys, number), guard)


def stored(path: str) -> list[tuple[object, ...]]:
    rows = Tables().read(path)
    assert rows is not None
    return sorted(tuple(row[name] for name in ("id", "name", "value")) for row in rows.to_pylist())


@settings(
    max_examples=examples(8, matrix=25),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(ROWS, min_size=1, max_size=2),
    st.lists(IMAGES, min_size=1, max_size=3),
    st.integers(1, 3),
    st.booleans(),
)
def test_p4_a_merge_by_buckets_leaves_the_rows_of_a_merge_in_memory(
    base: list[dict[tuple[int, str], int]],
    images: list[dict[tuple[int, str], int | None]],
    parts: int,
    replace: bool,
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucketed_merge, "BUCKET_ROWS", 3)
        patch.setattr(bucketed_merge, "FILE_ROWS", 5)
        tables, staged = Tables(), f"{folder}/staged"
        stage(tables, staged, [images_of(each) for each in images], KEYS)
        ways = {
            "buckets": BucketedMerge(tables, TasksHere(), otherwise=Refused(), parts=parts),
            "memory": ArrowStagedMerge(tables),
        }
        left = {}
        for name, merge in ways.items():
            path, known = f"{folder}/{name}", set[tuple[int, str]]()
            for number, rows in enumerate(base, start=1):
                own = {key: value for key, value in rows.items() if key not in known}
                known |= own.keys()
                ArrowWriter(tables).append(path, rows_of(own), Guard(name, Epoch(number)))
            merge(path, staged, Guard(name, Epoch(9)), KEYS, replace=replace)
            left[name] = stored(path)
            table = Tables().open(path)
            assert table is not None
            assert table.transaction_version(name) == 9
        assert left["buckets"] == left["memory"]


def wide(first: int, last: int, op: str | None = None) -> pa.Table:
    ids = pa.array(range(first, last), pa.int64())
    rows = pa.table({"id": ids, "name": ids.cast(pa.string()), "value": ids})
    return rows if op is None else rows.append_column(OP, pa.array([op] * len(ids), pa.string()))


class Held:
    """Counts the rows and bytes of each bucket that is read back, and of each step into it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self.buckets: list[int] = []
        self.steps: list[int] = []
        merged, add = BucketTask._merged, KeyFiles.add

        def counted(
            task: BucketTask, base: pa.Table | None, images: pa.Table | None
        ) -> pa.Table | None:
            both = [rows for rows in (base, images) if rows is not None]
            self.rows.append(sum(rows.num_rows for rows in both))
            self.buckets.append(sum(rows.nbytes for rows in both))
            return merged(task, base, images)

        def added(files: KeyFiles, rows: pa.Table, hashes: Hashes) -> None:
            self.steps.append(rows.nbytes)
            add(files, rows, hashes)

        def whole(tables: Tables, path: str, **asked: object) -> pa.Table:
            raise AssertionError(f"{path} is read whole")

        patch.setattr(BucketTask, "_merged", counted)
        patch.setattr(KeyFiles, "add", added)
        patch.setattr(Tables, "read", whole)


def test_a_merge_holds_one_bucket_and_never_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    for number in range(4):
        rows = wide(2_000 * number, 2_000 * (number + 1))
        ArrowWriter(tables).append(path, rows, Guard("t", Epoch(1 + number)))
    stage(tables, staged, [wide(n, n + 1_000, UPSERT) for n in range(0, 8_000, 1_000)], ["id"])
    monkeypatch.setattr(bucketed_merge, "BUCKET_ROWS", 500)
    with monkeypatch.context() as patch:
        held = Held(patch)
        merge = BucketedMerge(tables, TasksHere(), otherwise=Refused(), parts=2)
        merge(path, staged, Guard("t", Epoch(9)), ["id"], replace=False)
    assert sum(held.rows) == 16_000, "each row of both sides is read back once"
    assert max(held.rows) <= 500
    assert len(stored(path)) == 8_000


def packed(first: int, last: int) -> pa.Table:
    """Return rows of 2 kB each that take a few bytes in a file."""
    rows = wide(first, last)
    return rows.append_column("note", pa.array(["x" * 2_000] * rows.num_rows, pa.string()))


def test_a_merge_of_wide_rows_that_pack_well_holds_no_more_bytes_than_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    ArrowWriter(tables).append(path, packed(0, 3_000), Guard("t", Epoch(1)))
    images = packed(0, 3_000).append_column(OP, pa.array([UPSERT] * 3_000, pa.string()))
    stage(tables, staged, [images], ["id"])
    monkeypatch.setattr(bucketed_merge, "BUCKET_BYTES", 400_000)
    monkeypatch.setattr(file_batches, "BATCH_BYTES", 100_000)
    with monkeypatch.context() as patch:
        held = Held(patch)
        merge = BucketedMerge(tables, TasksHere(), otherwise=Refused(), parts=2)
        merge(path, staged, Guard("t", Epoch(9)), ["id"], replace=False)
    assert sum(held.buckets) > 2 * 3_000 * 2_000
    assert max(held.buckets) <= 400_000
    assert max(held.steps) <= 100_000
    assert len(stored(path)) == 3_000


def test_what_is_too_large_for_all_buckets_is_merged_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    ArrowWriter(tables).append(path, packed(0, 10), Guard("t", Epoch(1)))
    images = packed(5, 15).append_column(OP, pa.array([UPSERT] * 10, pa.string()))
    stage(tables, staged, [images], ["id"])
    for most in (1_000, 3_000):  # Less than a row, and less than both rows of a key.
        monkeypatch.setattr(bucketed_merge, "BUCKET_BYTES", most)
        merge = BucketedMerge(tables, TasksHere(), otherwise=Refused(), parts=2)
        with pytest.raises(AssertionError, match="suits the buckets"):
            merge(path, staged, Guard("t", Epoch(9)), ["id"], replace=False)
    assert len(stored(path)) == 10


def test_files_without_a_changed_key_stay_as_they_are(tmp_path: Path) -> None:
    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    for number in range(3):
        rows = wide(100 * number, 100 * (number + 1))
        ArrowWriter(tables).append(path, rows, Guard("t", Epoch(1 + number)))
    table = tables.open(path)
    assert table is not None
    before = set(table.file_uris())
    stage(tables, staged, [wide(110, 120, DELETE), wide(900, 910, UPSERT)], ["id"])
    merge = BucketedMerge(tables, TasksHere(), otherwise=Refused())
    merge(path, staged, Guard("t", Epoch(9)), ["id"], replace=False)
    assert len(before & set(table.file_uris())) == 2
    assert len(stored(path)) == 300


def test_bounds_of_a_nested_field_are_not_taken_for_those_of_a_key(tmp_path: Path) -> None:
    def rows(ids: Sequence[int], nested: int) -> pa.Table:
        return pa.table(
            {
                "a.b": pa.array(ids, pa.int64()),
                "a": pa.array([{"b": nested}] * len(ids), pa.struct([("b", pa.int64())])),
            }
        )

    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    ArrowWriter(tables).append(path, rows([1, 2], 500), Guard("t", Epoch(1)))
    stage(tables, staged, [rows([2, 3], 900).append_column(OP, pa.array([UPSERT] * 2))], ["a.b"])
    merge = BucketedMerge(tables, TasksHere(), otherwise=Refused())
    merge(path, staged, Guard("t", Epoch(9)), ["a.b"], replace=False)
    found = Tables().read(path)
    assert found is not None
    assert sorted((row["a.b"], row["a"]["b"]) for row in found.to_pylist()) == [
        (1, 500),
        (2, 900),
        (3, 900),
    ]


def test_what_does_not_suit_the_buckets_is_merged_otherwise(tmp_path: Path) -> None:
    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    seen: list[str] = []

    class Otherwise(ArrowStagedMerge):
        def __call__(
            self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
        ) -> DeltaVersion:
            seen.append(path)
            return super().__call__(path, staged, guard, keys, replace=replace)

    rows = pa.table({"at": pa.array([0.0, 1.0]), "value": pa.array([1, 2], pa.int64())})
    ArrowWriter(tables).append(path, rows, Guard("t", Epoch(1)))
    new = pa.table({"at": pa.array([-0.0]), "value": pa.array([3], pa.int64()), OP: [UPSERT]})
    stage(tables, staged, [new], ["at"])
    merge = BucketedMerge(tables, TasksHere(), otherwise=Otherwise(tables))
    merge(path, staged, Guard("t", Epoch(2)), ["at"], replace=False)
    assert seen == [path]


class Overtaken:
    """Has the parts done while another writer commits to the table."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, task: Task, parts: int) -> list[WrittenFile] | None:
        found = TasksHere()(task, parts)
        ArrowWriter(Tables()).append(self._path, wide(500, 510), Guard("t", Epoch(8)))
        return found


def test_a_merge_that_another_writer_overtook_is_refused(tmp_path: Path) -> None:
    tables, path, staged = Tables(), f"{tmp_path}/t", f"{tmp_path}/s"
    ArrowWriter(tables).append(path, wide(0, 10), Guard("t", Epoch(1)))
    stage(tables, staged, [wide(5, 15, UPSERT)], ["id"])
    merge = BucketedMerge(tables, Overtaken(path), otherwise=Refused())
    with pytest.raises(LeaseLost):
        merge(path, staged, Guard("t", Epoch(9)), ["id"], replace=False)
    assert len(stored(path)) == 20
