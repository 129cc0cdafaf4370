"""A fold in slices gives the rows of a fold at once, whatever is in the transaction."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import failpoints
from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.adoption import commit_staged
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, Task, TasksHere, WrittenFile
from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.staged_files import FilePlace, StagedFiles
from lake.table_columns import CHANGES
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.current import image_stager, key_groups, staged_images
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.newest_images import ImageTask, KeyedImageTask
from pipeline.current.staged_images import ImageStaging
from pipeline.current.tables import CurrentTables
from pipeline.log.large_folds import LogRows, slices, split
from schemas.registry import MemoryRegistry
from tests.support.lake.folding import (
    SOURCE,
    TABLE,
    Done,
    State,
    apply,
    changes,
    registry,
    state_of,
)
from tests.support.services.tier import examples

NAME = current_name(SOURCE, TABLE)
CHANGE = st.builds(
    Done,
    st.sampled_from("cuuud"),
    st.integers(1, 4),
    st.sampled_from("ab"),
    st.sampled_from(["x", "y", None]),
    st.sampled_from([1, 2, None]),
)
DRIVER, EXECUTORS = Executors(), Executors(tasks=TasksHere())
EPOCH = st.lists(st.one_of(*[CHANGE] * 5, st.just(Done("t"))), min_size=1, max_size=12)
WHOLE = st.builds(
    Done,
    st.sampled_from("cuuud"),
    st.integers(1, 3),
    st.just("a"),
    st.sampled_from("xyz"),
    st.integers(1, 99),
)
"""A change that leaves no value alone: executors do without the driver."""
AGAIN = [*(Done("u", 1, name=f"n{i}", size=i) for i in range(8)), Done("c", 2)]
"""The images of one key lie in several slices."""
OF_EXECUTORS = st.one_of(st.lists(WHOLE, min_size=6, max_size=15), EPOCH)


def logged(lake: Lake, tables: Tables, done: Sequence[Done], first: int) -> LogRows:
    """Write changes to a log in two commits, and return them unread."""
    rows, path = changes(done, first=first), lake.path(f"log/changes/{first}")
    half = rows.num_rows // 2
    for number, part in enumerate((rows.slice(half), rows.slice(0, half)), start=1):
        ArrowWriter(tables).append(path, part, Guard("log", Epoch(number)))
    table = tables.open(path)
    assert table is not None
    return LogRows(dataset_of(table), pc.field("table") == TABLE)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows are a slice, and about as many lie in one file by key; six images are few."""
    cut = slices
    monkeypatch.setattr(staged_images, "FEW_ROWS", 6)
    monkeypatch.setattr(image_stager, "SLICE_ROWS", 3)
    monkeypatch.setattr(image_stager, "slices", lambda rows: cut(rows, most=3))


@settings(max_examples=examples(6, matrix=30), deadline=None)
@example([AGAIN], False, EXECUTORS)
@given(
    st.lists(OF_EXECUTORS, min_size=1, max_size=4),
    st.booleans(),
    st.sampled_from([DRIVER, EXECUTORS]),
)
def test_p4_a_fold_in_slices_equals_the_oracle(
    epochs: list[list[Done]], tailed: bool, executors: Executors
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake, tables = Lake.at(Path(folder)), Tables()
        current = CurrentTables(lake, tables, registry(), executors=executors)
        state: State = {}
        first = 1
        for number, done in enumerate(epochs, start=1):
            if tailed and number % 2:
                current.fold(SOURCE, TABLE, changes(done, first=first), Epoch(number))
            else:
                rows = logged(lake, tables, done, first)
                at = current.fold_large(SOURCE, TABLE, rows, Epoch(number))
                again = current.fold_large(SOURCE, TABLE, rows, Epoch(number))
                assert {n: t.version for n, t in at.items()} == {
                    n: t.version for n, t in again.items()
                }
            first += len(done)
            state = apply(state, done)
            assert state_of(Tables().read(lake.path(NAME))) == state
        assert not Path(lake.path("current/_staging/shop.public.items"), "1").exists()
        current.close()


@pytest.mark.matrix
@settings(max_examples=20, deadline=None)
@given(st.lists(OF_EXECUTORS, min_size=1, max_size=3), st.booleans(), st.booleans())
@example(
    [[Done("c", 1), Done("c", 2, size=1)], [Done("u", 1, name=None), Done("d", 2)]], True, True
)
def test_p4_executors_leave_the_rows_that_the_driver_would(
    epochs: list[list[Done]], soft: bool, tails: bool
) -> None:
    """Through a tail or not, and whatever a deleted row keeps."""
    policy = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)
    found = []
    for executors in (DRIVER, EXECUTORS):
        with tempfile.TemporaryDirectory() as folder:
            lake, tables = Lake.at(Path(folder)), Tables()
            current = CurrentTables(
                lake,
                tables,
                registry(),
                soft_deletes=lambda source, table: soft,
                policy=policy if tails else None,
                executors=executors,
            )
            first = 1
            for number, done in enumerate(epochs, start=1):
                rows = logged(lake, tables, done, first)
                at = current.fold_large(SOURCE, TABLE, rows, Epoch(number))
                first += len(done)
            whole = read_whole(lake, Tables(), NAME, at=at) if at else None
            current.settle(SOURCE, TABLE)
            base = Tables().read(lake.path(NAME))
            current.close()
            order = [("id", "ascending"), ("part", "ascending")]
            found.append([t and t.sort_by(order).combine_chunks() for t in (whole, base)])
            assert (whole and state_of(whole)) == (base and state_of(base))
    assert found[0] == found[1]
    for one, other in zip(*found, strict=True):
        assert one is None or one.schema.equals(other.schema)


def test_an_error_of_an_executor_is_that_of_the_driver(lake: Lake) -> None:
    """Its class decides whether the table stands still, and the remedy is told to people."""
    tables = Tables()
    raised = []
    for executors in (DRIVER, EXECUTORS):
        current = CurrentTables(lake, tables, MemoryRegistry(), executors=executors)
        rows = logged(lake, tables, [Done("c", 1)], 1)
        with pytest.raises(NotFound) as error:
            current.fold_large(SOURCE, TABLE, rows, Epoch(1))
        raised.append((error.value.message, error.value.remedy))
        current.close()
    assert raised[0] == raised[1]


@pytest.mark.parametrize("moved", ["no key", "some keys", "too many keys"])
def test_what_an_update_left_alone_is_looked_up_by_executors(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    """Unless too many keys are linked, because one became the other."""
    asked: list[int] = []
    gone = image_stager.gone_through

    def noted(*args: Any, **kwargs: Any) -> Any:
        asked.append(len(asked))
        return gone(*args, **kwargs)

    monkeypatch.setattr(image_stager, "gone_through", noted)
    tables = Tables()
    current = CurrentTables(lake, tables, registry(), executors=EXECUTORS)
    first = [Done("c", i, name=f"n{i}", size=i) for i in range(9)] + [Done("d", 3)]
    current.fold_large(SOURCE, TABLE, logged(lake, tables, first, 1), Epoch(1))
    assert not asked
    second = [Done("u", key, name=None, size=-n) for n, key in enumerate([4, 5, *[1] * 8])]
    second += [Done("u", 6, name="x"), Done("u", 6, name=None)]
    expected = apply(apply({}, first), second)
    if moved != "no key":
        for old, new in ((7, 70), (70, 71), (8, 7)):
            second += [Done("d", old), Done("c", new, name=None), Done("u", new, name=None)]
        names = {71: "n7", 7: "n8"}
        expected = apply(expected, [Done("d", key) for key in (7, 8)])
        expected = apply(expected, [Done("c", key, name=name) for key, name in names.items()])
    if moved == "too many keys":
        monkeypatch.setattr(key_groups, "MOST_TOGETHER", 2)
    current.fold_large(SOURCE, TABLE, logged(lake, tables, second, 20), Epoch(2))
    assert bool(asked) == (moved == "too many keys")
    assert state_of(Tables().read(lake.path(NAME))) == expected
    current.close()


def test_only_tables_with_many_rows_are_told_apart(lake: Lake) -> None:
    tables = Tables()
    path = lake.path("log/changes/shop")
    many = changes([Done("c", i) for i in range(20)], first=1)
    rows = many.append_column("epoch_", many["epoch"]).drop_columns(["epoch_", "epoch"])
    rows = rows.append_column("epoch", pc.fill_null(many["epoch"], 7))
    ArrowWriter(tables).append(path, rows, Guard("log", Epoch(1)))
    log = tables.open(path)
    assert log is not None
    everything = pc.field("epoch") >= 1
    where, large = split(log, everything, since=1, most=19)
    assert set(large) == {TABLE}
    assert large[TABLE].read().num_rows == 20
    assert dataset_of(log).to_table(filter=where).num_rows == 0
    assert split(log, everything, since=1, most=20)[1] == {}
    assert split(log, everything, since=8, most=19)[1] == {}


def test_rows_of_a_table_that_keeps_deleted_ones_are_folded_once(lake: Lake) -> None:
    """What a deleted row was the base tells: slice by slice executors would do all for nothing."""
    asked: list[object] = []

    def noted(task: Task, parts: int) -> list[WrittenFile] | None:
        asked.append(type(task))
        return TasksHere()(task, parts)

    for soft in (True, False):
        tables, here = Tables(), Lake.at(Path(lake.root) / str(soft))
        current = CurrentTables(
            here,
            tables,
            registry(),
            soft_deletes=lambda source, table, soft=soft: soft,
            executors=Executors(tasks=noted),
        )
        rows = logged(here, tables, [*(Done("c", i) for i in range(4)), Done("d", 1)], 1)
        current.fold_large(SOURCE, TABLE, rows, Epoch(1))
        assert asked.pop() is (KeyedImageTask if soft else ImageTask)
        assert not asked
        current.close()


def test_p4_few_images_of_many_rows_are_merged_here_through_a_crash(lake: Lake) -> None:
    """A hot table is small, however often its rows change: nothing is handed to Spark."""

    def refused(path: str, staged: str, guard: Guard, keys: object, *, replace: bool) -> Any:
        raise AssertionError("these images are few")

    tables = Tables()
    first = [Done("c", i) for i in range(3)]
    hot = [Done("u", i % 3, name=f"n{i}", size=i) for i in range(6)]
    current = CurrentTables(lake, tables, registry(), large=refused)
    current.fold(SOURCE, TABLE, changes(first, first=1), Epoch(1))
    rows = logged(lake, tables, hot, 10)
    failpoints.arm(failpoints.LARGE_AFTER_MERGE)
    try:
        with pytest.raises(failpoints.Crash):
            current.fold_large(SOURCE, TABLE, rows, Epoch(2))
    finally:
        failpoints.disarm()
        current.close()
    again = CurrentTables(lake, Tables(), registry(), large=refused)
    at = again.fold_large(SOURCE, TABLE, rows, Epoch(2))
    assert at[NAME].version == 2, "each fold is one commit"
    assert state_of(Tables().read(lake.path(NAME))) == apply(apply({}, first), hot)
    again.close()


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("large", [False, True])
def test_p4_a_truncate_that_was_open_while_the_slot_was_made_takes_the_snapshot_away(
    lake: Lake, large: bool, apart: bool, soft: bool
) -> None:
    """Its transaction comes after the snapshot, and the commit before it may have a lower LSN."""
    copied = {"lsn": 100, "commit_order": 100, "snapshot": True, "total_order": 0}
    first, second, truncate = changes([Done("r", 1), Done("r", 2), Done("t")], first=1).to_pylist()
    read = [{**row, **copied} for row in (first, second)]
    truncate |= {"lsn": 120, "commit_order": 90}
    epochs = [read, [truncate]] if apart else [[*read, truncate]]
    tables = Tables()
    current = CurrentTables(lake, tables, registry(), soft_deletes=lambda *_: soft)
    for number, own in enumerate(epochs, start=1):
        rows = pa.Table.from_pylist([{**row, "epoch": number} for row in own], CHANGES)
        if large:
            log = lake.path(f"log/changes/{number}")
            ArrowWriter(tables).append(log, rows, Guard("log", Epoch(1)))
            table = tables.open(log)
            assert table is not None
            whole = LogRows(dataset_of(table), pc.scalar(True))
            current.fold_large(SOURCE, TABLE, whole, Epoch(number))
        else:
            current.fold(SOURCE, TABLE, rows, Epoch(number))
    found = Tables().read(lake.path(NAME))
    current.close()
    left = [] if found is None else found.to_pylist()
    assert [row["_deleted"] for row in left] == ([True, True] if soft else [])


def test_p4_a_snapshot_that_came_in_one_epoch_is_read_in_parts(lake: Lake) -> None:
    """It has no order inside: the row groups of its files part it."""
    copied = {"operation": "r", "lsn": 100, "commit_order": 100, "snapshot": True, "epoch": 1}
    done = [Done("c", i, name=f"n{i}", size=i) for i in range(20)]
    rows = [{**row, **copied, "total_order": 0} for row in changes(done, first=1).to_pylist()]
    later = [{**row, "epoch": 2} for row in changes([Done("d", 3)], first=200).to_pylist()]
    tables, path = Tables(), lake.path("log/changes/shop")
    log = tables.ensure(path, CHANGES, partition_by=["table"])
    files = StagedFiles(log, FilePlace(stem="s", values={"table": TABLE}, group_rows=4))
    for row in [*rows, *later]:
        files.write(pa.Table.from_pylist([row], CHANGES).drop_columns(["table"]))
    commit_staged(log, files.close(), files.schemas, "log", 1, partition_by=["table"])
    whole = LogRows(dataset_of(log), pc.field("table") == TABLE)
    assert [part.count() for part in slices(whole, most=9)] == [8, 8, 4, 1]
    current = CurrentTables(lake, tables, registry())
    current.fold_large(SOURCE, TABLE, whole, Epoch(2))
    assert state_of(Tables().read(lake.path(NAME))) == apply(apply({}, done), [Done("d", 3)])
    current.close()


def test_a_wide_value_that_repeats_itself_is_counted_as_often_as_it_takes_memory(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_images, "FEW_ROWS", 1_000)
    monkeypatch.setattr(staged_images, "FEW_BYTES", 2**20)
    for width, few in ((1_000, True), (100_000, False)):
        staging = ImageStaging(lake, Tables(), NAME, f"of-{width}")
        ids = pa.array(range(100), pa.int64())
        wide = pa.array(["x" * width] * 100)
        images = pa.table({"id": ids, "name": wide, OP: pa.array([UPSERT] * 100)})
        staging.add(images, ("id",))
        staging.add(images, ("id",))
        assert (staging.few() is not None) is few
