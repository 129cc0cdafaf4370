"""A crash at any step of a fold into base and tail, or in slices, repeats to the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.positions import Epoch
from lake.datasets import dataset_of, schema_of
from lake.executor_tasks import Executors, Tasks, TasksHere
from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.tables import TableAt, Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.current import image_stager, tail
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from pipeline.log.large_folds import LogRows, slices
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
from tests.support.services.waiting import until

NAME = current_name(SOURCE, TABLE)
NEVER = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)
FIRST = [Done("c", i, "a", f"n{i}", i) for i in range(20)]
SECOND = [Done("u", i, "a", None, i + 100) for i in range(0, 20, 2)] + [Done("d", 3), Done("d", 4)]
THIRD = [Done("c", 3, "a", "again", 1), Done("u", 5, "a", "five", 5), Done("d", 6)]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


class Folding:
    """Folds epochs into a lake; `restart` begins as a new process would."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.executors = Executors()
        self.at: dict[str, TableAt] = {}
        self.state: State = {}
        self._first = 1
        self.restart()

    def restart(self) -> None:
        self.tables = Tables()
        self.current = CurrentTables(
            self.lake, self.tables, registry(), policy=NEVER, executors=self.executors
        )
        self.current.resume(self.at)

    def take(self, done: Sequence[Done]) -> Callable[[Epoch], None]:
        """Return what folds these changes as one epoch, as often as it is called."""
        frame = changes(done, first=self._first)
        self._first += len(done)
        self.state = apply(self.state, done)

        def fold(epoch: Epoch) -> None:
            self.at |= self.current.moved()
            self.at |= self.current.fold(SOURCE, TABLE, frame, epoch)

        return fold

    def take_large(self, done: Sequence[Done]) -> Callable[[Epoch], None]:
        """Return what folds these changes in slices."""
        path = self.lake.path(f"log/changes/{self._first}")
        rows = changes(done, first=self._first)
        ArrowWriter(self.tables).append(path, rows, Guard("log", Epoch(1)))
        self._first += len(done)
        self.state = apply(self.state, done)

        def fold(epoch: Epoch) -> None:
            table = self.tables.open(path)
            assert table is not None
            large = LogRows(dataset_of(table), pc.field("table") == TABLE)
            self.at |= self.current.fold_large(SOURCE, TABLE, large, epoch)

        return fold

    def by_name(self) -> State:
        return state_of(read_whole(self.lake, Tables(), NAME, at=self.at))

    def by_path(self) -> State:
        return state_of(Tables().read(self.lake.path(NAME)))


@pytest.fixture
def folding(lake: Lake) -> Iterator[Folding]:
    made = Folding(lake)
    made.take(FIRST)(Epoch(1))
    yield made
    made.current.close()


def crash(folding: Folding, failpoint: str, step: Callable[[], None], *, hit: int = 1) -> None:
    failpoints.arm(failpoint, hit=hit)
    with pytest.raises(failpoints.Crash):
        step()
    folding.restart()


def test_p4_a_crash_behind_the_tails_append(folding: Folding) -> None:
    fold = folding.take(SECOND)
    crash(folding, failpoints.TAIL_AFTER_APPEND, lambda: fold(Epoch(2)))
    fold(Epoch(2))
    assert folding.by_name() == folding.state
    folding.take(THIRD)(Epoch(3))
    assert folding.by_name() == folding.state
    folding.current.settle(SOURCE, TABLE)
    assert folding.by_path() == folding.state


def test_p4_a_crash_behind_the_bases_merge(folding: Folding) -> None:
    folding.take(SECOND)(Epoch(2))
    crash(folding, failpoints.TAIL_AFTER_FOLD, lambda: folding.current.settle(SOURCE, TABLE))
    assert folding.by_name() == folding.by_path() == folding.state
    folding.take(THIRD)(Epoch(3))
    assert folding.by_name() == folding.state
    folding.current.settle(SOURCE, TABLE)
    assert folding.by_path() == folding.state


@pytest.mark.parametrize(
    ("failpoint", "hit", "tasks"),
    [
        (failpoints.LARGE_AFTER_SLICE, 1, None),
        (failpoints.LARGE_AFTER_SLICE, 2, None),
        (failpoints.LARGE_AFTER_MERGE, 1, None),
        (failpoints.LARGE_AFTER_SLICE, 1, TasksHere()),
        (failpoints.LARGE_AFTER_MERGE, 1, TasksHere()),
        (failpoints.TAIL_AFTER_APPEND, 1, TasksHere()),
    ],
)
def test_p4_a_crash_while_a_large_transaction_is_folded(
    failpoint: str,
    hit: int,
    tasks: Tasks | None,
    folding: Folding,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = slices
    monkeypatch.setattr(image_stager, "slices", lambda rows: cut(rows, most=4))
    folding.take(SECOND)(Epoch(2))
    before = folding.by_name()
    folding.executors = Executors(tasks=tasks)
    folding.restart()
    fold = folding.take_large(THIRD * 3)
    crash(folding, failpoint, lambda: fold(Epoch(3)), hit=hit)
    assert folding.by_name() == before, "an epoch that is not finished is seen"
    fold(Epoch(3))
    assert folding.by_name() == folding.state
    folding.current.settle(SOURCE, TABLE)
    assert folding.by_path() == folding.state
    assert not list(Path(folding.lake.path("current/_staging")).rglob("*.parquet"))
    folding.take(SECOND)(Epoch(4))
    assert folding.by_name() == folding.state


def test_p4_a_row_that_was_mended_in_the_base_is_what_readers_by_name_see(folding: Folding) -> None:
    folding.take(FIRST)(Epoch(1))
    folding.take(SECOND)(Epoch(2))
    folding.current.settle(SOURCE, TABLE)
    folding.at |= folding.current.moved()
    path = folding.lake.path(NAME)
    mended = pa.table({"id": [2], "part": ["a"], "name": ["mended"], "size": [7], OP: [UPSERT]})
    mended = mended.cast(pa.schema([*schema_of(DeltaTable(path)), (OP, pa.string())]))
    version = ArrowWriter(Tables()).merge(
        path, mended, Guard("install/1", Epoch(2)), keys=("id", "part")
    )
    folding.at[NAME] = TableAt(version=version, as_of_epoch=2)
    folding.state[2, "a"] = (2, "a", "mended", 7)
    assert folding.by_name() == folding.state
    # What comes after that lies over it again.
    folding.take([Done("u", 2, "a", "later", 8)])(Epoch(3))
    assert folding.by_name() == folding.state


def test_a_fold_that_fails_is_tried_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_PAUSES_S", (0.01,))
    eager = FoldPolicy(direct_bytes=-1, freshness_s=0.01)
    current = CurrentTables(lake, Tables(), registry(), policy=eager)
    current.fold(SOURCE, TABLE, changes(FIRST, first=1), Epoch(1))
    merge, failures = ArrowWriter.merge, [OSError("no space left"), RuntimeError("odd")]

    def failing(self: ArrowWriter, *args: Any, **kwargs: Any) -> Any:
        if failures:
            raise failures.pop()
        return merge(self, *args, **kwargs)

    monkeypatch.setattr(ArrowWriter, "merge", failing)
    current.fold(SOURCE, TABLE, changes(SECOND, first=100), Epoch(2))
    wanted = apply(apply({}, FIRST), SECOND)
    try:
        until(lambda: state_of(Tables().read(lake.path(NAME))) == wanted, "the tail is folded")
    finally:
        current.close()
    assert not failures
