"""A large transaction is folded beside the epochs: seen whole or not at all, whatever dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import failpoints
from kernel.errors import Unavailable
from lake import child_processes
from lake.child_processes import NICENESS, start_child
from lake.executor_tasks import Tasks, TasksHere
from lake.layers import read_whole
from lake.layout import Lake
from lake.tables import Tables
from lake.task_processes import TaskProcesses
from pipeline.commit import foldable_rows
from pipeline.current import fold_ahead, staged_images
from pipeline.current import tables as current_tables
from pipeline.current.fold_policy import FoldPolicy
from tests.support.lake.bulk import HandLake, some
from tests.support.lake.folding import SOURCE, Done
from tests.support.lake.followed_item import NAME, FollowedItem
from tests.support.services.waiting import until
from tests.support.sources import ddl_rows

MOST = 10
"""More changed rows than that are folded beside."""
LARGE = [Done("u", i, name=f"new {i}", size=-i) for i in range(30)] + [Done("d", 3), Done("c", 50)]
TAILED = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)


@pytest.fixture(params=[None, TAILED], ids=["base", "tail"])
def hand(
    request: pytest.FixtureRequest, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HandLake]:
    monkeypatch.setattr(foldable_rows, "LARGE_ROWS", MOST)
    monkeypatch.setattr(staged_images, "FEW_ROWS", 4)
    hand = HandLake(lake, policy=request.param, beside=MOST)
    hand.copy(*some(*range(40)))
    hand.epoch()
    hand.source.commit(Done("u", 7, name="before"), Done("d", 8))
    hand.epoch()
    yield hand
    failpoints.disarm()
    hand.current.close()
    left = Path(lake.path("current/_staging")).rglob("*.parquet")
    assert not list(left), "staged images are left"


def folded(hand: HandLake) -> None:
    """Make epochs until the cut has come to the source's last transaction."""

    def come() -> bool:
        hand.epoch()
        return hand.cut() == hand.source.lsn

    until(come, "the fold beside is taken in", deadline_s=30)


def test_p5_epochs_go_on_and_see_all_of_a_transaction_or_nothing(hand: HandLake) -> None:
    before, cut = dict(hand.source.state), hand.cut()
    failpoints.arm(failpoints.AHEAD_AFTER_STAGE, "hold")
    large = hand.source.commit(*LARGE)
    hand.epoch()
    last = hand.source.commit(Done("u", 9, name="behind it"))
    for _ in range(2):
        hand.epoch()
        assert (hand.state(), hand.cut()) == (before, cut)
        assert SOURCE in hand.ingest.waiting_for()
    failpoints.disarm()
    until(hand.ingest.undecided, "the fold beside ends", deadline_s=30)
    hand.epoch()
    assert (hand.state(), hand.cut()) == (hand.source.at[large], large)
    folded(hand)
    assert (hand.state(), hand.cut()) == (hand.source.state, last)


@pytest.mark.parametrize("tasks", [TasksHere(), TaskProcesses(2)], ids=["here", "processes"])
def test_p5_what_was_merged_beside_is_what_its_epoch_commits(
    hand: HandLake, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("it was staged and merged beside")

    hand.tasks = tasks
    hand.restart()
    hand.source.commit(*LARGE)
    hand.epoch()
    until(hand.ingest.undecided, "the fold beside ends", deadline_s=30)
    monkeypatch.setattr(hand.current, "merge_staged", never)
    monkeypatch.setattr(fold_ahead.ImageStager, "stage", never)
    folded(hand)
    assert hand.state() == hand.source.state


@pytest.mark.parametrize(
    "failpoint",
    [
        failpoints.EPOCH_AFTER_LOG,
        failpoints.EPOCH_AFTER_FOLD,
        failpoints.EPOCH_AFTER_MANIFEST,
        failpoints.LARGE_AFTER_MERGE,
    ],
)
@pytest.mark.parametrize(
    "epoch",
    [
        pytest.param("that rests", marks=pytest.mark.matrix),
        pytest.param("amid", marks=pytest.mark.matrix),
        "that takes it in",
    ],
)
def test_p4_a_crash_of_an_epoch_repeats_to_the_same(
    hand: HandLake, failpoint: str, epoch: str
) -> None:
    before = dict(hand.source.state)
    if epoch != "that rests":
        failpoints.arm(failpoints.AHEAD_AFTER_STAGE, "hold")
        hand.source.commit(*LARGE)
        hand.epoch()
        if epoch != "amid":
            failpoints.disarm()
            until(hand.ingest.undecided, "the fold beside ends", deadline_s=30)
        hand.source.commit(Done("u", 9, name="behind it"))
    else:
        hand.source.commit(*LARGE)
    failpoints.arm(failpoint)
    try:
        hand.epoch()
    except failpoints.Crash:
        assert hand.state() in (before, *hand.source.at.values())
        failpoints.disarm()
        hand.recover()
    failpoints.disarm()
    folded(hand)
    assert hand.state() == hand.source.state


def test_p4_a_process_that_ends_amid_a_fold_begins_it_again(hand: HandLake) -> None:
    hand.source.commit(*LARGE)
    failpoints.arm(failpoints.AHEAD_AFTER_MERGE, "hold")
    hand.epoch()
    hand.restart()
    hand.epoch()
    failpoints.disarm()
    folded(hand)
    assert hand.state() == hand.source.state


def test_a_fold_that_fails_beside_is_done_by_its_epoch(
    hand: HandLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: object, **kwargs: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(hand.folds, "_fold", failing)
    hand.source.commit(*LARGE)
    hand.epoch()
    folded(hand)
    assert hand.state() == hand.source.state


def test_a_process_that_is_killed_or_declines_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = TaskProcesses(2)
    assert tasks(len, 3) is None
    started: list[int] = []

    def killed() -> subprocess.Popen[bytes]:
        child = start_child()
        started.append(os.getpriority(os.PRIO_PROCESS, child.pid))
        child.kill()
        return child

    monkeypatch.setattr(child_processes, "start_child", killed)
    with pytest.raises(Unavailable, match="ended"):
        tasks(len, 1)
    assert started == [min(19, os.nice(0) + NICENESS)]
    tasks.close()
    with pytest.raises(Unavailable, match="over"):
        tasks(len, 1)


def test_a_table_that_was_written_meanwhile_is_folded_anew(hand: HandLake) -> None:
    hand.source.commit(*LARGE)
    hand.epoch()
    until(hand.ingest.undecided, "the fold beside ends", deadline_s=30)
    hand.break_row((5, "a"))
    folded(hand)
    assert hand.state() == hand.source.state


def test_a_source_that_is_copied_anew_rests_no_more(hand: HandLake) -> None:
    failpoints.arm(failpoints.AHEAD_AFTER_STAGE, "hold")
    hand.source.commit(*LARGE)
    hand.epoch()
    hand.copy(Done("u", 11, name="copied"))
    hand.epoch()
    failpoints.disarm()
    hand.epoch()
    assert hand.state() == hand.source.state
    assert not hand.ingest.undecided()


class Renewed(FollowedItem):
    """A table of more rows than are brought to new columns in an epoch."""

    def taken_in(self) -> None:
        """Make epochs until none of the cuts waits."""

        def come() -> bool:
            self.epoch()
            return not self.ingest.waiting_for()

        until(come, "what is done beside is taken in", deadline_s=30)


@pytest.fixture(params=[None, TAILED], ids=["base", "tail"])
def renewed(request: pytest.FixtureRequest, lake: Lake) -> Iterator[Renewed]:
    made = Renewed(lake, policy=request.param, beside=MOST)
    made.item.add("size", "int4")
    for key in range(3 * MOST):
        made.item.write("c", key, {2: key})
    made.epoch()
    made.taken_in()
    made.item.write("u", 5, {2: -5})
    made.epoch()
    yield made
    failpoints.disarm()


def columns_of(followed: FollowedItem) -> list[str]:
    last = followed.manifest.last()
    assert last is not None
    rows = read_whole(followed.lake, Tables(), NAME, at=last.tables)
    assert rows is not None
    return list(rows.schema.names)


def test_p5_new_columns_of_many_rows_are_written_beside(
    renewed: Renewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    real = current_tables.put_rewritten
    monkeypatch.setattr(
        current_tables, "put_rewritten", lambda *each: (put.append(each[1]), real(*each))
    )
    failpoints.arm(failpoints.AHEAD_AFTER_REWRITE, "hold")
    renewed.item.add("extra", "int4", "7")
    renewed.item.write("u", 3, {2: 30, 3: 9})
    renewed.epoch()
    renewed.item.write("u", 4, {2: 40, 3: 8})
    renewed.epoch()
    assert columns_of(renewed) == ["id", "size"]
    failpoints.disarm()
    renewed.taken_in()
    assert len(put) == 1
    assert renewed.current() == renewed.item.expected()
    renewed.item.columns[1].name = "width"
    renewed.item.tell()
    renewed.item.write("d", 6)
    renewed.epoch()
    renewed.taken_in()
    assert len(put) == 2
    assert renewed.current() == renewed.item.expected()


@pytest.mark.parametrize(
    "failpoint",
    [
        failpoints.EVOLVE_AFTER_COMMIT,
        failpoints.TAIL_AFTER_APPEND,
        failpoints.EPOCH_AFTER_FOLD,
    ],
)
def test_p4_a_crash_while_new_columns_are_taken_in(renewed: Renewed, failpoint: str) -> None:
    renewed.item.add("extra", "int4", "7")
    renewed.item.write("u", 3, {2: 30, 3: 9})
    renewed.epoch()
    until(renewed.ingest.undecided, "what is beside ends", deadline_s=30)
    failpoints.arm(failpoint)
    try:
        renewed.epoch()
    except failpoints.Crash:
        assert columns_of(renewed) == ["id", "size"]
        renewed.recover()
    failpoints.disarm()
    assert renewed.current() == renewed.item.expected()
    renewed.item.write("u", 4, {2: 40, 3: 8})
    renewed.epoch()
    assert renewed.current() == renewed.item.expected()


def test_new_columns_of_large_files_are_written_beside_however_few_their_rows(lake: Lake) -> None:
    followed = Renewed(lake, beside=1_000, beside_bytes=1)
    followed.item.add("size", "int4")
    for key in range(3):
        followed.item.write("c", key, {2: key})
    followed.epoch()
    failpoints.arm(failpoints.AHEAD_AFTER_REWRITE, "hold")
    try:
        followed.item.add("extra", "int4", "7")
        followed.item.write("u", 1, {3: 9})
        followed.epoch()
        followed.epoch()
        assert columns_of(followed) == ["id", "size"]
        assert ddl_rows.SOURCE in followed.ingest.waiting_for()
    finally:
        failpoints.disarm()
    followed.taken_in()
    assert followed.current() == followed.item.expected()


def test_p4_a_repeated_epoch_rests_as_it_was_bound_to_whatever_is_large_by_now(lake: Lake) -> None:
    followed = Renewed(lake, beside=1_000, beside_bytes=1)
    followed.item.add("size", "int4")
    followed.item.write("c", 1, {2: 1})
    followed.epoch()
    followed.item.add("extra", "int4", "7")
    followed.item.write("u", 1, {3: 9})
    failpoints.arm(failpoints.EPOCH_AFTER_FOLD)
    with pytest.raises(failpoints.Crash):
        followed.epoch()
    failpoints.disarm()
    followed.beside_bytes = 2**40
    followed.recover()
    assert ddl_rows.SOURCE in followed.ingest.waiting_for()
    followed.taken_in()
    assert followed.current() == followed.item.expected()
