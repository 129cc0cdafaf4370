"""The records of the disturbed topic, what its queries answer, and how results are judged."""

from __future__ import annotations

import itertools
from collections import Counter

from benchmarks.disturbed.changes import ResultChange, last_rows, shown, unbalanced
from benchmarks.disturbed.disorder import FIRST_MS, Record, disturbed
from benchmarks.disturbed.oracle import answers, compared, needed
from benchmarks.disturbed.sending import Sent

COUNT, PER_S = 4_000, 500.0


def record(number: int, at: int, *, item: str = "a", amount: int = 1) -> Record:
    return Record(number=number, item=item, at=at, amount=amount)


def change(
    key: str, row: tuple[int, ...], *, diff: int = 1, step: int = 1, at: float = 0.0
) -> ResultChange:
    return ResultChange(key=(key,), row=row, diff=diff, step=step, at=at)


def test_records_of_a_seed_are_late_doubled_and_out_of_order() -> None:
    sent = disturbed(1, COUNT, PER_S)
    assert sent == disturbed(1, COUNT, PER_S) != disturbed(2, COUNT, PER_S)
    times = Counter(each.number for each in sent)
    assert len(times) == COUNT
    assert set(times.values()) == {1, 2}
    assert 0.03 < sum(count == 2 for count in times.values()) / COUNT < 0.07
    assert len({each.value() for each in sent}) == COUNT, "a double is the same, byte by byte"
    assert len({each.at for each in sent}) == COUNT
    late = sum(each.at < FIRST_MS + each.number * 2 - 50_000 for each in set(sent))
    assert 0.03 < late / COUNT < 0.07
    numbers = [each.number for each in sent]
    assert sum(a > b for a, b in itertools.pairwise(numbers)) > COUNT / 3


def test_a_double_counts_once_and_the_newest_row_is_that_of_the_latest_event_time() -> None:
    first, second = record(1, 25_000, amount=5), record(2, 9_000, amount=7)
    assert answers([first, second, first]) == {
        "totals": {("a",): (2, 12)},
        "windows": {("a", 20_000): (1, 5), ("a", 0): (1, 7)},
        "newest": {("a",): (1, 5, 25_000)},
    }


def test_a_record_that_was_never_the_newest_has_no_effect_to_wait_for() -> None:
    first, second, third = record(1, 25_000), record(2, 9_000), record(3, 26_000)
    found = needed([first, second, first, third])
    assert found["totals"] == {1: (("a",), 1), 2: (("a",), 2), 3: (("a",), 3)}
    assert found["windows"] == {
        1: (("a", 20_000), 1),
        2: (("a", 0), 1),
        3: (("a", 20_000), 2),
    }
    assert found["newest"] == {1: (("a",), 25_000), 3: (("a",), 26_000)}


def test_rows_are_equal_missing_extra_or_different() -> None:
    found = compared({("a",): (1,), ("b",): (2,), ("x",): (0,)}, {("a",): (1,), ("b",): (3,)})
    assert found == {
        "rows_equal": 1,
        "rows_missing": 0,
        "rows_extra": 1,
        "rows_different": 1,
    }
    assert compared({}, {("a",): (1,)})["rows_missing"] == 1


def test_the_last_step_of_a_key_tells_its_row_in_whatever_order_it_comes() -> None:
    came, went = change("a", (1,)), change("a", (1,), diff=-1, step=2)
    other = change("a", (2,), step=2)
    assert last_rows([came, other, went]) == last_rows([came, went, other]) == {("a",): (2,)}
    assert last_rows([came, went]) == {}


def test_changes_that_come_again_are_no_rows_of_one_reader_and_too_many_of_another() -> None:
    changes = [change("a", (1,)), change("a", (1,), step=2)]
    assert last_rows(changes) == {("a",): (1,)}
    assert unbalanced(changes, {("a",): (1,)}) == 1
    assert unbalanced(changes[:1], {("a",): (1,)}) == 0
    assert unbalanced([], {("a",): (1,)}) == 1


def test_a_record_is_shown_by_the_first_row_that_counts_it() -> None:
    changes = [
        change("a", (2,), at=10.0),
        change("a", (2,), diff=-1, step=2, at=11.0),
        change("a", (4,), step=2, at=12.0),
        change("a", (2,), step=3, at=13.0),
    ]
    asked = {n: (("a",), n) for n in (1, 2, 3, 5)}
    assert shown(changes, asked, 0) == {1: 10.0, 2: 10.0, 3: 12.0}


def test_ages_are_told_of_calm_records_and_of_those_around_the_kill() -> None:
    sent = Sent(
        at={1: 0.0, 2: 10.0, 3: 11.0, 4: 29.0, 5: 40.0},
        began=1.0,
        killed=30.0,
        records=5,
        expected={},
        needed={"totals": {n: (("a",), n) for n in range(1, 6)}},
    )
    assert sent.ages("totals", {1: 9.0, 2: 10.5, 3: 12.0, 4: 36.0}) == {
        "calm_records": 2.0,
        "calm_p50_s": 1.0,
        "calm_p95_s": 1.0,
        "killed_max_s": 7.0,
        "effects_unseen": 1.0,
    }
