"""Bulk reads become tables: at their LSN, once, whole, and with every later change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from lake.layout import Lake
from pipeline.commit.manifest import first_progress
from pipeline.current.fold_policy import FoldPolicy
from pipeline.installs.install_book import HEAL, Install, hold
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done

OTHER = "public.others"
TAILS = FoldPolicy(direct_bytes=0, freshness_s=3600.0)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def hand(lake: Lake) -> HandLake:
    return HandLake(lake)


def begun(hand: HandLake) -> HandLake:
    """Copy ten rows and let the stream begin."""
    hold(hand.lake, hand.tables, SOURCE)
    hand.source.commit(*some(*range(10)))
    install = hand.stage(releases=True)
    hand.source.commit(Done("u", 3, name="after"))
    hand.announce(install)
    hand.epoch()
    assert hand.state() == hand.source.state
    return hand


def test_p5_a_source_that_is_copied_shows_nothing_before_all_of_it_is_there(
    hand: HandLake,
) -> None:
    hold(hand.lake, hand.tables, SOURCE)
    hand.source.commit(*some(1, 2))
    hand.epoch()
    install = hand.stage(releases=True)
    hand.source.commit(Done("u", 1, name="later"), Done("c", 5))
    hand.epoch()

    assert hand.cut() == 0
    assert hand.tables.open(hand.lake.path(NAME)) is None

    hand.announce(install)
    done = hand.epoch()

    assert hand.state() == hand.source.state
    assert hand.cut() == hand.source.lsn
    assert done.installs
    assert DeltaTable(hand.lake.path(NAME)).version() == 0


def test_p5_an_install_waits_until_the_cut_has_reached_it(hand: HandLake) -> None:
    begun(hand)
    hand.source.commit(Done("d", 4))
    hand.announce(hand.stage())
    before = hand.state()
    hand.epoch(ends=0)

    assert hand.state() == before
    assert [done.installs for done in hand.manifest.between(1, 99)] == [()]

    hand.epoch()

    assert hand.state() == hand.source.state


def test_p4_tables_of_one_copy_that_are_due_in_several_epochs_all_go_on(hand: HandLake) -> None:
    hold(hand.lake, hand.tables, SOURCE)
    hand.source.commit(*some(*range(10)))
    early = hand.stage(releases=True)
    hand.source.commit(Done("u", 3, name="between"))
    late = hand.stage(table=OTHER, releases=True)
    hand.announce(early)
    hand.announce(late)
    # The first END alone: the cut comes as far as the first table was read.
    first = hand.epoch(ends=1)
    second = hand.epoch()

    assert [len(done.installs) for done in (first, second)] == [1, 1]
    hand.source.commit(Done("u", 1, name="later"), Done("c", 12))
    done = hand.epoch()

    assert hand.state() == hand.source.state
    assert all(first_progress(done).cut(SOURCE).folds(table) for table in (TABLE, OTHER))


def test_p9_a_message_whose_end_comes_after_the_release_keeps_nothing_waiting(
    hand: HandLake,
) -> None:
    hand.copy(Done("c", 1))
    hand.source.signal()
    hand.epoch(ends=1)
    assert hand.state() == hand.source.state, "the tables are released, the message is there"
    hand.source.commit(Done("u", 1, name="later"))
    hand.epoch()
    assert hand.state() == hand.source.state


def lost(hand: HandLake) -> Install:
    """Lose the slot behind which a copy was just read, and what was done before the next one."""
    begun(hand)
    hand.source.commit(Done("c", 20))
    old = hand.stage(slots=1, releases=True)
    hand.source.commit(Done("d", 4), Done("u", 5, name="never sent"))
    hand._rows, hand._ends = len(hand.source.rows), len(hand.source.ends)
    hold(hand.lake, hand.tables, SOURCE, slots=2)
    return old


def test_p4_a_copy_of_before_a_lost_slot_does_not_take_the_place_of_the_next_one(
    hand: HandLake,
) -> None:
    old = hand.announce(lost(hand))
    new = hand.announce(hand.stage(slots=2, releases=True))
    hand.source.commit(Done("c", 21))
    done = hand.epoch()
    assert hand.state() == hand.source.state
    assert done.installs == new
    assert [*first_progress(done).declined] == [str(number) for number in old]


def test_p4_a_copy_of_before_a_lost_slot_releases_nothing(hand: HandLake) -> None:
    hand.announce(lost(hand))
    before = hand.state()
    hand.source.commit(Done("c", 21))
    done = hand.epoch()
    assert first_progress(done).cut(SOURCE).held
    assert hand.state() == before

    hand.announce(hand.stage(slots=2, releases=True))
    hand.source.commit(Done("u", 21, name="later"))
    hand.epoch()
    assert hand.state() == hand.source.state


def test_p4_a_range_that_was_read_before_a_slot_was_lost_is_not_mended(hand: HandLake) -> None:
    begun(hand)
    hand.source.commit(Done("c", 20))
    hand.announce(hand.stage(kind=HEAL, low=("1", ""), high=("6", "")))
    hand.source.commit(Done("d", 4), Done("u", 5, name="never sent"))
    hand._rows, hand._ends = len(hand.source.rows), len(hand.source.ends)
    hold(hand.lake, hand.tables, SOURCE, slots=2)
    hand.announce(hand.stage(slots=2, releases=True))
    hand.source.commit(Done("c", 21))
    hand.epoch()
    assert hand.state() == hand.source.state


def test_p4_of_two_copies_of_a_table_that_are_due_together_the_later_one_counts(
    hand: HandLake,
) -> None:
    hold(hand.lake, hand.tables, SOURCE)
    hand.source.commit(*some(1, 2))
    first = hand.announce(hand.stage(releases=True))
    hand.source.commit(Done("d", 1))
    second = hand.announce(hand.stage())
    hand.source.commit(Done("c", 3))
    done = hand.epoch()
    assert hand.state() == hand.source.state
    assert done.installs == second
    assert [*first_progress(done).declined] == [str(number) for number in first]


def test_p9_rows_that_kafka_lost_do_not_keep_a_copy_behind_the_next_slot_waiting(
    hand: HandLake,
) -> None:
    begun(hand)
    since = hand.source.commit(Done("c", 20))
    hand.epoch(rows=0)
    hand._rows = len(hand.source.rows)
    hold(hand.lake, hand.tables, SOURCE, slots=2)
    hand.source.commit(Done("c", 21), Done("d", 4))
    hand.epoch()
    hand.announce(hand.stage(slots=2, releases=True, since=since))
    for name in ("asked", "read", "given up"):
        hand.source.commit(Done("u", 21, name=name))
        done = hand.epoch()
    assert hand.state() == hand.source.state
    assert done.pending_from == {SOURCE: done.epoch + 1}


@pytest.mark.parametrize("policy", [None, TAILS])
def test_p4_changes_that_were_folded_before_are_folded_again_over_the_rows(
    lake: Lake, policy: FoldPolicy | None
) -> None:
    hand = begun(HandLake(lake, policy=policy))
    install = hand.stage()
    hand.source.commit(Done("u", 1, name="one"), Done("d", 2), Done("c", 11))
    hand.epoch()
    hand.source.commit(Done("u", 1, name="two"))
    hand.epoch()
    hand.break_row((7, "a"))
    hand.announce(install)
    hand.source.commit(Done("u", 8, name="with the install"))
    hand.epoch()

    assert hand.state() == hand.source.state


def test_p10_a_table_is_swapped_by_one_commit(hand: HandLake) -> None:
    begun(hand)
    install = hand.stage()
    hand.source.commit(Done("u", 1, name="x"), Done("c", 12))
    hand.epoch()
    before = DeltaTable(hand.lake.path(NAME)).version()
    hand.announce(install)
    hand.source.commit(Done("c", 13))
    hand.epoch()

    assert DeltaTable(hand.lake.path(NAME)).version() == before + 1
    assert hand.state() == hand.source.state


def test_a_truncate_after_the_read_empties_what_was_read(hand: HandLake) -> None:
    begun(hand)
    install = hand.stage()
    hand.source.commit(Done("t"), Done("c", 99))
    hand.epoch()
    hand.announce(install)
    hand.source.commit()
    hand.epoch()

    assert hand.state() == hand.source.state == {(99, "a"): (99, "a", "", None)}


def test_values_that_an_update_left_alone_come_from_the_rows_that_were_read(
    hand: HandLake,
) -> None:
    begun(hand)
    hand.break_row((5, "a"))
    install = hand.stage()
    hand.source.commit(Done("u", 5, name=None, size=50))
    hand.epoch()
    hand.announce(install)
    hand.source.commit()
    hand.epoch()

    assert hand.state()[5, "a"] == (5, "a", "n", 50)


def test_a_range_is_mended_and_the_rest_left_alone(hand: HandLake) -> None:
    begun(hand)
    hand.break_row((2, "a"))
    hand.break_row((8, "a"))
    install = hand.stage(kind=HEAL, low=("1", ""), high=("6", ""))
    hand.source.commit(Done("u", 3, name="meanwhile"), Done("d", 4))
    hand.epoch()
    hand.announce(install)
    hand.source.commit(Done("c", 5, part="b"))
    hand.epoch()

    found = hand.state()
    assert found[8, "a"][2] == "broken"
    found[8, "a"] = hand.source.state[8, "a"]
    assert found == hand.source.state


def test_a_table_that_was_never_copied_waits_while_others_go_on(hand: HandLake) -> None:
    begun(hand)
    cut = hand.ingest._progress.cut(SOURCE)

    assert cut.folds(TABLE)
    assert not cut.folds("public.newer")


CRASHES = (
    *failpoints.EPOCH_STEPS,
    failpoints.INSTALL_BEFORE_SWAP,
    failpoints.INSTALL_AFTER_SWAP,
)


# Every failpoint once, and every kind at several of them; the other pairs add no new code.
KINDS = ("first", "again", "range")
PAIRS = [
    pytest.param(failpoint, kind, marks=() if (rank + at) % 3 == 0 else pytest.mark.matrix)
    for rank, failpoint in enumerate(CRASHES)
    for at, kind in enumerate(KINDS)
]


@pytest.mark.parametrize(("failpoint", "kind"), PAIRS)
def test_p1_a_crash_while_installing_repeats_and_ends_in_the_same(
    hand: HandLake, failpoint: str, kind: str
) -> None:
    if kind == "first":
        hold(hand.lake, hand.tables, SOURCE)
        hand.source.commit(*some(*range(10)))
        hand.epoch()
        install = hand.stage(releases=True)
    else:
        begun(hand)
        hand.break_row((2, "a"))
        bounds = {"low": ("1", ""), "high": ("6", "")} if kind == "range" else {}
        install = hand.stage(kind=HEAL, **bounds) if bounds else hand.stage()
    hand.source.commit(Done("u", 3, name=None, size=1), Done("d", 4), Done("c", 20))
    hand.epoch()
    hand.announce(install)
    hand.source.commit(Done("u", 3, name="last"))

    failpoints.arm(failpoint)
    with pytest.raises(failpoints.Crash):
        hand.epoch()
    hand.recover()
    hand.restart()
    hand.source.commit(Done("u", 5, name="end"))
    hand._rows, hand._ends = _offsets(hand)
    hand.epoch()

    assert hand.state() == hand.source.state
    assert hand.manifest.unfinished() is None
    taken = [n for done in hand.manifest.between(0, 100) for n in done.installs]
    assert len(taken) == len(set(taken))


def _offsets(hand: HandLake) -> tuple[int, int]:
    last = hand.manifest.last()
    if last is None:
        return 0, 0
    rows, ends = (last.end[topic]["0"] for topic in (f"{SOURCE}.{TABLE}", f"{SOURCE}.transaction"))
    return rows, ends
