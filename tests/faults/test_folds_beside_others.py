"""A fold beside ingest, and what others do meanwhile: about records, upkeep, a run of before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from cdc.upkeep.source_lag import waits_for_nothing
from kernel import failpoints
from kernel.positions import Epoch
from lake.executor_tasks import TasksHere
from lake.layout import Lake, current_name
from lake.table_columns import SNAPSHOT_END
from lake.tables import Tables
from pipeline.commit import foldable_rows, folding
from pipeline.commit.foldable_rows import Foldable, FoldableRows
from pipeline.commit.folds_beside import BESIDE, FoldsBeside, is_large
from pipeline.commit.manifest_rows import Bound, bound_of, bound_row
from pipeline.commit.pending_transactions import MOST_IN_ROW
from pipeline.current import fold_ahead, staged_images
from pipeline.current.fold_ahead import FoldAhead, FoldedAhead
from pipeline.current.tables import CurrentTables
from pipeline.ddl.evolution import Planned
from pipeline.ddl.steps import NOTHING, Retyped
from pipeline.ddl.table_rewrites import rewritten_ahead
from pipeline.installs.install_book import DECODE
from pipeline.log import large_folds
from pipeline.log.large_folds import LogRows
from pipeline.position.cut import Cut
from pipeline.position.transactions import Advance
from pipeline.verification.as_of import StateReader
from tests.support.lake.beside import folds_beside
from tests.support.lake.bulk import ENDS, HandLake, some
from tests.support.lake.folding import AT, SOURCE, TABLE, Done, registry
from tests.support.lake.followed_item import FollowedItem
from tests.support.lake.poisoned import GOODS, ITEMS, PoisonedShop, topic_of
from tests.support.services.waiting import until

MOST = 10
ONE = Advance(transactions=("1",), snapshot=False, from_epoch=1, most_rows=20)


class ShopBeside(PoisonedShop):
    """A source of two tables whose folds go beside the epochs."""

    def restart(self) -> None:
        super().restart()
        current = CurrentTables(self.lake, self.tables, self.registry)
        beside = folds_beside(self.lake, self.registry, current, 1_000)
        self.ingest = self.ingesting(current=current, beside=beside)


def test_p4_a_record_that_is_read_while_its_transaction_waits_is_folded_with_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = ShopBeside(lake)
    shop.commit({ITEMS: some(1), GOODS: some(1)})
    shop.epoch()
    # As if DDL had many rows of a table written anew.
    monkeypatch.setattr(FoldableRows, "rewrites", lambda *_: True)
    shop.commit({ITEMS: some(2), GOODS: some(2, 3)}, spoil={(GOODS, 0)})
    shop.epoch()
    shop.epoch()
    shop.mended = True
    shop.decide(DECODE, topic_of(GOODS))

    def come() -> bool:
        shop.epoch()
        return not shop.ingest.waiting_for()

    until(come, "the cut goes on", deadline_s=30)
    done = shop.epoch()
    assert {table: shop.state(table, done) for table in (ITEMS, GOODS)} == {
        table: shop.expected(table) for table in (ITEMS, GOODS)
    }


def test_new_columns_of_a_table_whose_named_version_the_log_has_forgotten(lake: Lake) -> None:
    made = FollowedItem(lake, beside=MOST)
    made.item.add("size", "int4")
    for key in range(MOST + 5):
        made.item.write("c", key, {2: key})

    def come() -> bool:
        made.epoch()
        return not made.ingest.waiting_for()

    until(come, "rows are taken in", deadline_s=30)
    path = lake.path(current_name("shop", "public.item"))
    DeltaTable(path).alter.set_table_properties({"delta.checkpointInterval": "49"})
    DeltaTable(path).create_checkpoint()
    for commit in sorted(Path(path, "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    made.restart()
    made.item.add("extra", "int4", "7")
    made.epoch()
    assert not made.ingest.stuck()
    until(come, "new columns are taken in", deadline_s=30)
    assert made.current() == made.item.expected()


@pytest.fixture
def hand(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandLake]:
    monkeypatch.setattr(foldable_rows, "LARGE_ROWS", MOST)
    monkeypatch.setattr(staged_images, "FEW_ROWS", 4)
    hand = HandLake(lake, beside=MOST)
    hand.copy(*some(*range(20)))
    hand.epoch()
    yield hand
    failpoints.disarm()
    hand.current.close()


def test_an_attempt_that_is_over_takes_nothing_from_the_next_at_the_same_epoch(
    hand: HandLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hand.folds is not None
    real, next_one = hand.folds._fold, []

    def overtaken(
        source: str, table: str, rows: LogRows, epoch: Epoch, over: Callable[[], bool]
    ) -> FoldedAhead | None:
        looks = 0

        def over_once_staged() -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:
                next_one.append(real(source, table, rows, epoch, over))
            return looks == 2

        assert real(source, table, rows, epoch, over_once_staged) is None
        return cast("FoldedAhead", next_one[0])

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("it was staged and merged beside")

    monkeypatch.setattr(hand.folds, "_fold", overtaken)
    hand.source.commit(*(Done("u", i, name=f"new {i}", size=-i) for i in range(15)))
    hand.epoch()
    until(hand.ingest.undecided, "the fold beside ends", deadline_s=30)
    (made,) = next_one
    assert made is not None
    assert Tables().read(made.staging.path) is not None
    monkeypatch.setattr(fold_ahead.ImageStager, "stage", never)
    hand.epoch()
    assert hand.state() == hand.source.state


def test_who_waits_for_the_cut_is_told_that_it_is_at_work(hand: HandLake) -> None:
    failpoints.arm(failpoints.AHEAD_AFTER_STAGE, "hold")
    hand.source.commit(*some(*range(15), op="u"))
    hand.epoch()
    assert BESIDE in StateReader(hand.lake, Tables(), registry()).waiting_for(SOURCE)


@pytest.mark.parametrize("behind", [False, True])
def test_p4_a_cut_that_may_go_on_does_so_after_a_restart_without_a_record(
    hand: HandLake, behind: bool
) -> None:
    hand.source.commit(*some(*range(15), op="u"))
    hand.epoch()
    if behind:
        hand.source.commit(Done("u", 3, name="behind it"))
        hand.epoch(rows=1, ends=1)
        until(hand.ingest.undecided, "the fold beside ends", deadline_s=30)
        hand.epoch()
        assert hand.cut() < hand.source.lsn
    hand.restart()

    def come() -> bool:
        if hand.ingest.undecided():
            hand.epoch()
        return hand.cut() == hand.source.lsn

    until(come, "the cut goes on", deadline_s=10)
    hand.epoch()
    assert not hand.ingest.undecided()
    assert hand.state() == hand.source.state


@pytest.mark.parametrize("rests", [True, False])
def test_a_cut_behind_which_many_transactions_wait_is_not_at_rest(
    hand: HandLake, rests: bool
) -> None:
    if rests:
        failpoints.arm(failpoints.AHEAD_AFTER_STAGE, "hold")
        hand.source.commit(*some(*range(15), op="u"))
        hand.epoch()
    for number in range(MOST_IN_ROW + 1):
        hand.source.commit(Done("u", number % 20, name=f"behind {number}"))
    last = hand.epoch(rows=None if rests else 0)
    assert last.cuts[SOURCE] < hand.source.lsn
    assert not waits_for_nothing(last, SOURCE)
    hand.restart()
    failpoints.disarm()

    def come() -> bool:
        return waits_for_nothing(hand.epoch(), SOURCE)

    until(come, "the cut goes on", deadline_s=30)
    assert hand.cut() == hand.source.lsn


class Work:
    """Rows of two large tables, and a fold of them that waits for a word."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.folded: list[str] = []
        self.beside = FoldsBeside(cast("FoldableRows", self), cast("FoldAhead", self))

    def read(self, *_: object) -> Foldable:
        plans = {table: (pa.table({"n": [1]}), Planned(evolution=NOTHING)) for table in "ab"}
        return Foldable(plans=plans, large=dict.fromkeys("ab", cast("LogRows", None)))

    def columns(self, *_: object) -> None:
        """No table is there."""

    def __call__(self, source: str, table: str, *_: object) -> None:
        self.folded.append(table)
        self.begun.set()
        assert self.goes_on.wait(30)

    def begin(self, advance: Advance) -> None:
        self.beside.begin(SOURCE, Cut(), advance, (), Epoch(1), None)

    def ended(self) -> None:
        for thread in threading.enumerate():
            if thread.name == f"beside-{SOURCE}":
                thread.join(30)


def test_work_that_is_over_begins_no_table_more() -> None:
    work = Work()
    work.begin(ONE)
    assert work.begun.wait(30)
    work.beside.close()
    work.goes_on.set()
    work.ended()
    assert work.folded == ["a"]


def test_work_that_is_not_waited_for_any_more_is_over() -> None:
    work = Work()
    work.begin(ONE)
    assert work.begun.wait(30)
    assert work.beside.take(SOURCE, ONE, (), None) is None
    work.goes_on.set()
    work.ended()
    assert work.folded == ["a"], "the epoch does it meanwhile"


@pytest.mark.parametrize("more", [{"most_rows": 21}, {"rows": 40}, {"lacks": frozenset("a")}])
def test_what_has_other_rows_of_the_same_transactions_is_not_taken(more: dict[str, Any]) -> None:
    work = Work()
    work.goes_on.set()
    work.begin(ONE)
    work.ended()
    other = replace(ONE, **more)
    assert work.beside.ready(SOURCE)
    assert work.beside.take(SOURCE, other, (), None) is None
    work.begin(ONE)
    work.ended()
    assert work.beside.take(SOURCE, ONE, (), None) is not None


def test_rows_that_files_do_not_tell_alone_are_not_brought_to_new_columns_beside(
    tmp_path: Path,
) -> None:
    path, steps = str(tmp_path / "t"), [Retyped("n", pa.int64())]
    write_deltalake(path, pa.table({"n": pa.array([1], pa.int32())}))
    table = DeltaTable(path)
    assert rewritten_ahead(table, steps, TasksHere()) is not None
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    assert rewritten_ahead(DeltaTable(path), steps, TasksHere()) is None


@pytest.mark.parametrize("kept", [{}, {"soft": True}], ids=["plain", "soft"])
def test_p5_few_wide_rows_of_a_transaction_are_folded_beside_and_never_all_at_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, kept: dict[str, bool]
) -> None:
    most, sizes = 200_000, list[int]()
    monkeypatch.setattr(large_folds, "LARGE_BYTES", most)
    monkeypatch.setattr(large_folds, "SLICE_BYTES", most)
    monkeypatch.setattr(foldable_rows, "LARGE_BYTES", most)
    monkeypatch.setattr(staged_images, "FEW_BYTES", most)
    read, of = LogRows.read, FoldableRows.of

    def counted(rows: LogRows) -> pa.Table:
        found = read(rows)
        sizes.append(found.nbytes)
        return found

    def counted_of(rows: FoldableRows, *args: Any) -> tuple[dict[str, pa.Table], Any]:
        small, large = of(rows, *args)
        sizes.extend(own.nbytes for own in small.values())
        return small, large

    monkeypatch.setattr(LogRows, "read", counted)
    monkeypatch.setattr(FoldableRows, "of", counted_of)
    hand = HandLake(lake, beside=10**6, row_bytes=most, **kept)
    hand.copy(*some(*range(100)))
    hand.epoch()
    before = hand.state()
    hand.source.commit(*(Done("u", i, name=f"{i:04} " * 1_280, size=i) for i in range(100)))
    for rows in (40, 40, 20):
        hand.epoch(rows=rows, ends=0 if rows > 20 else None)
    assert (hand.state(), hand.ingest.waiting_for()) == (before, {SOURCE: BESIDE})

    def come() -> bool:
        hand.epoch()
        return hand.cut() == hand.source.lsn

    until(come, "the fold beside is taken in", deadline_s=30)
    assert hand.state() == hand.source.state
    assert max(sizes) <= 1.5 * most
    hand.current.close()


def test_p4_an_epoch_that_was_bound_without_a_bound_of_bytes_is_repeated_as_it_was() -> None:
    bound = Bound(epoch=Epoch(1), run_id="r", batch_id=0, start={}, end={}, most_rows=5)
    advance = replace(ONE, most_rows=1, most_bytes=2**40)
    assert not is_large(advance, bound_of(bound_row(bound)))
    bounded = replace(bound, most_row_bytes=2**30)
    assert is_large(advance, bound_of(bound_row(bounded)))


def test_p4_transactions_that_wait_are_folded_some_at_a_time_and_each_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "MOST_TRANSACTIONS", 3)
    hand = HandLake(lake)
    hand.copy(*some(*range(5)))
    hand.epoch()
    for number in range(8):
        hand.source.commit(Done("u", number % 5, name=f"name {number}", size=number))
    cuts = [hand.cut()]
    hand.epoch()
    while hand.ingest.undecided():
        cuts.append(hand.cut())
        assert hand.state() == hand.source.at[hand.cut()]
        hand.restart()
        hand.epoch()
    ends = sorted(hand.source.at)
    assert [ends.index(cut) for cut in (*cuts, hand.cut())] == [1, 4, 7, 9]
    assert hand.state() == hand.source.state
    hand.current.close()


def test_an_epoch_that_was_bound_without_a_bound_of_transactions_is_repeated_as_it_was() -> None:
    bound = Bound(epoch=Epoch(1), run_id="r", batch_id=0, start={}, end={})
    for most in (None, 3):
        again = bound_of(bound_row(replace(bound, most_transactions=most)))
        assert again.most_transactions == most
        copied = replace(ONE, snapshot=True)
        assert is_large(copied, replace(again, most_rows=5)) == (most is not None)
        assert is_large(ONE, replace(again, most_rows=5))


def test_p4_a_snapshot_of_the_connector_keeps_no_others_waiting(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foldable_rows, "LARGE_ROWS", MOST)
    monkeypatch.setattr(staged_images, "FEW_ROWS", 4)
    hand = HandLake(lake, beside=MOST)
    lsn = hand.source.commit(*some(*range(20)))
    copied = {"operation": "r", "transaction_id": None, "snapshot": True, "total_order": 0}
    for row in hand.source.rows:
        row |= copied | {"lsn": lsn, "commit_order": lsn}
    told = {"kind": SNAPSHOT_END, "topic": ENDS, "partition": 0, "source": SOURCE}
    told["recorded_at"] = AT
    hand.source.ends[:] = [
        {**told, "offset": 0, "table": TABLE, "counts": '{"rows": 20}'},
        {**told, "offset": 1, "table": None, "counts": '{"rows": 0}'},
    ]
    hand.epoch()
    assert hand.ingest.waiting_for() == {SOURCE: BESIDE}
    hand.source.commit(Done("u", 3, name="behind it"), Done("d", 4))

    def come() -> bool:
        hand.epoch()
        return hand.cut() == hand.source.lsn

    until(come, "the fold beside is taken in", deadline_s=30)
    assert hand.state() == hand.source.state
    hand.restart()
    hand.epoch()
    assert hand.state() == hand.source.state
    hand.current.close()
