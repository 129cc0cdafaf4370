"""How often a base is written again is bounded by what that costs, whatever its size."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.current import tail as tail_module
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.merging import MergedBase, MergeHere
from pipeline.current.tail import TailTables

NAME = "current/shop.public.items"
HOUR_S = 3_600


def folds(base_rows: int, spent_s: float, *, per_s: int, row_bytes: int = 100) -> int:
    """Count the merges of an hour, each of which takes `spent_s`."""
    policy, count, since = FoldPolicy(), 0, 0.0
    for second in range(1, HOUR_S + 1):
        age = second - since
        due = policy.due(
            age_s=age,
            rows=int(age * per_s),
            size=int(age * per_s * row_bytes),
            base_rows=base_rows,
            base_bytes=base_rows * 60,
            spent_s=spent_s,
        )
        if due:
            count, since = count + 1, second + spent_s
    return count


def test_merging_a_large_base_takes_a_share_of_the_time_that_does_not_grow() -> None:
    for base_rows, spent_s in ((2_000_000, 1.0), (10_000_000, 8.0), (100_000_000, 80.0)):
        assert folds(base_rows, spent_s, per_s=1) * spent_s <= 0.05 * HOUR_S
    assert folds(2_000_000, 1.0, per_s=1) >= 50, "what is cheap is done once a minute"


def test_merging_any_base_takes_half_of_the_time_at_most_and_less_the_dearer_it_is() -> None:
    for base_rows in (100_000, 1_500_000):  # Bases that nothing but the cost holds back.
        assert base_rows * 60 <= FoldPolicy().eager_bytes
        for spent_s in (0.5, 1.0, 4.0, 16.0, 60.0):
            share = folds(base_rows, spent_s, per_s=10) * spent_s / HOUR_S
            longest_s = FoldPolicy().longest_rest_s
            assert share <= 1.05 * max(1 / (1 + spent_s), spent_s / (spent_s + longest_s))


def test_a_base_that_is_merged_within_a_second_rests_for_its_freshness_alone() -> None:
    """Else who reads it by path waits for three times what a merge takes."""
    policy = FoldPolicy()
    asked = {"rows": 100, "size": 10_000, "base_rows": 1_000_000, "base_bytes": 60 * 2**20}
    for spent_s in (0.0, 0.3, 0.7, 1.0):
        assert policy.due(age_s=policy.freshness_s, spent_s=spent_s, **asked)
    assert not policy.due(age_s=1.0, spent_s=1.1, **asked)


def test_a_small_base_rests_for_some_minutes_at_most() -> None:
    policy = FoldPolicy()
    asked = {"rows": 100, "size": 10_000, "base_rows": 1_000}
    assert policy.due(age_s=300.0, spent_s=60.0, base_bytes=3 * 2**20, **asked)
    assert not policy.due(age_s=299.0, spent_s=60.0, base_bytes=3 * 2**20, **asked)
    assert not policy.due(age_s=300.0, spent_s=60.0, base_bytes=policy.eager_bytes + 1, **asked)


def test_one_merge_that_met_a_busy_disk_tells_nothing_of_the_next(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, took, asked = [0.0], [0.3, 60.0, 60.0, 0.3], list[float]()

    class Timed(MergeHere):
        def __call__(
            self, path: str, rows: pa.Table, guard: Guard, keys: tuple[str, ...]
        ) -> MergedBase:
            now[0] += took.pop(0)
            return super().__call__(path, rows, guard, keys)

    rows = pa.table({"id": range(10), "value": range(10), OP: [UPSERT] * 10})
    base = rows.drop_columns([OP])
    ArrowWriter(Tables()).append(lake.path(NAME), base, Guard(NAME, Epoch(1)))
    policy = FoldPolicy(freshness_s=1e9, direct_bytes=0)
    tails = TailTables(lake, Tables(), policy)
    tails._here = Timed()
    for epoch in (2, 3, 4, 5):
        tails.add(NAME, rows, ["id"], Epoch(epoch))
        with monkeypatch.context() as patch:
            patch.setattr(tail_module.time, "monotonic", lambda: now[0])
            tails.settle(NAME)
        asked.append(tails._tails[NAME].spent_s)
    tails.close()
    assert asked == pytest.approx([0.3, 0.3, 60.0, 0.3])


def test_what_is_worth_a_merge_waits_for_its_cost_all_the_same() -> None:
    for base_rows, spent_s in ((10_000_000, 8.0), (100_000_000, 80.0)):
        merges = folds(base_rows, spent_s, per_s=2_000)
        at_most_half_full = HOUR_S * 2_000 / (FoldPolicy().most_rows / 2) + 1
        assert merges <= max(at_most_half_full, HOUR_S / (spent_s * (1 + min(20.0, spent_s))))


def test_a_tail_that_grows_fast_is_folded_before_it_is_full() -> None:
    policy = FoldPolicy()
    asked = {"age_s": 1.0, "base_rows": 10**7, "base_bytes": 2**40, "spent_s": 1e6}
    half_rows, half_bytes = policy.most_rows // 2 + 1, policy.most_bytes // 2 + 1
    assert policy.due(rows=half_rows, size=0, **asked)
    assert policy.due(rows=1, size=half_bytes, **asked)
    assert not policy.due(rows=half_rows - 2, size=0, **asked)
    assert not policy.full(half_rows, half_bytes, 10**7)
    assert policy.due(rows=1, size=half_bytes, **{**asked, "base_rows": 10**9})


def test_a_backlog_is_merged_when_a_tail_is_half_full_and_not_for_each_epoch() -> None:
    """A merge of a million rows takes as long as fifty thousand changes on all their way."""
    policy, per_s = FoldPolicy(), 60_000
    merges = folds(1_000_000, 0.7, per_s=per_s)
    assert merges <= HOUR_S * per_s / (policy.most_rows / 2)
    asked = {"base_rows": 1_000_000, "base_bytes": 60 * 2**20, "spent_s": 0.7}
    flood = {"rows": policy.most_rows // 4, "size": 0}
    assert not policy.due(age_s=policy.flood_s / 2 - 0.1, **flood, **asked)
    assert policy.due(age_s=policy.flood_s / 2, **flood, **asked), "no more came"
    assert policy.due(age_s=policy.freshness_s, rows=5_000, size=0, **asked), "no flood"


@pytest.mark.parametrize("per_s", [26_000, 45_000, 120_000])
def test_who_reads_by_path_waits_in_a_flood_for_ten_merges_at_most(per_s: int) -> None:
    """Where a merge takes a tenth of the time it is no burden, whatever comes."""
    policy = FoldPolicy()
    base = {"base_rows": 100_000, "base_bytes": 6 * 2**20, "spent_s": 0.1}
    assert policy.due(age_s=1.01, rows=int(1.01 * per_s), size=0, **base)
    assert not policy.due(age_s=0.9, rows=int(0.9 * per_s), size=0, **base)
    assert folds(100_000, 0.1, per_s=per_s) * 0.1 <= 0.1 * HOUR_S


def test_what_is_written_for_each_change_does_not_grow_with_the_base() -> None:
    """Beyond some size a merge, which writes all of the base, is for a share of its rows."""
    per_s, seconds_a_row = 20_000, 0.4e-6
    changes = per_s * HOUR_S
    for base_rows in (50_000_000, 100_000_000, 250_000_000):
        merges = folds(base_rows, base_rows * seconds_a_row, per_s=per_s, row_bytes=10)
        assert merges * base_rows / changes <= 1 / FoldPolicy().share


class Slow(MergeHere):
    """Merges when it is told to, and counts who gave up on it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.hurried = self.merged = 0

    def __call__(
        self, path: str, rows: pa.Table, guard: Guard, keys: tuple[str, ...]
    ) -> MergedBase:
        self.begun.set()
        assert self.go_on.wait(60)
        self.merged += 1
        return super().__call__(path, rows, guard, keys)

    def hurry(self) -> None:
        self.hurried += 1


class Never(MergeHere):
    """Stands where ingest would merge by itself."""

    def __call__(
        self, path: str, rows: pa.Table, guard: Guard, keys: tuple[str, ...]
    ) -> MergedBase:
        raise AssertionError("ingest merged by itself")


@pytest.mark.parametrize("by", ["rows", "bytes"])
def test_a_full_tail_waits_for_the_merge_under_way_and_does_not_begin_it_anew(
    lake: Lake, by: str
) -> None:
    bound = {"most_rows": 25} if by == "rows" else {"most_bytes": 25 * 30}
    slow, tables = Slow(), Tables()
    policy = FoldPolicy(freshness_s=0.0, direct_bytes=0, eager_bytes=0, **bound)
    tails = TailTables(lake, tables, policy, beside=slow)
    rows = pa.table({"id": range(10), "value": range(10), OP: [UPSERT] * 10})
    base = rows.drop_columns([OP])
    ArrowWriter(tables).append(lake.path(NAME), base, Guard(NAME, Epoch(1)))
    tails._here = Never()
    for epoch in (2, 3):
        tails.add(NAME, rows, ["id"], Epoch(epoch))
    assert slow.begun.wait(60)
    adding = threading.Thread(target=tails.add, args=(NAME, rows, ["id"], Epoch(4)))
    adding.start()
    slow.go_on.set()
    adding.join(60)
    assert not adding.is_alive()
    assert slow.merged >= 1
    assert slow.hurried == 0
    tails.close()
