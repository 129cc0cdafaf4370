"""Chunks that were read at different LSNs become one table as of the last."""

from __future__ import annotations

import pytest

from projections.log.layout import Lake
from projections.state.installing import Declined
from schemas.key_ranges import KeyRange, cut_at
from tests.bulk import HandLake, some
from tests.folding import Done

LOW, HIGH = cut_at([("5", "")])


@pytest.fixture
def hand(lake: Lake) -> HandLake:
    found = HandLake(lake)
    found.ingest._progress.cut("shop").snapshot_done = True
    found.source.commit(*some(*range(10)))
    found.epoch()
    return found


def copied(hand: HandLake, *between: Done) -> None:
    """Read the low keys, let something happen, read the high keys, and install both."""
    first = hand.stage_chunk("two", 0, LOW)
    hand.source.commit(*between)
    second = hand.stage_chunk("two", 1, HIGH)
    hand.source.commit(Done("u", 1, name="after"), Done("u", 8, name="after"))
    hand.epoch()
    hand.announce(hand.evened("two", (first, second), [LOW, HIGH]))
    hand.source.commit()
    hand.epoch()


@pytest.mark.parametrize(
    "between",
    [
        [Done("u", 2, name="low"), Done("u", 7, name="high")],
        [Done("d", 2), Done("d", 7), Done("c", 3, part="b"), Done("c", 9, part="b")],
        [Done("d", 2), Done("c", 20, name="moved up"), Done("d", 7), Done("c", -1, name="down")],
        [Done("u", 2, name=None, size=1), Done("u", 7, name=None, size=2)],
    ],
)
def test_p4_each_key_takes_the_changes_after_its_own_chunk(
    hand: HandLake, between: list[Done]
) -> None:
    copied(hand, *between)

    assert hand.state() == hand.source.state


@pytest.mark.parametrize(
    "between",
    [
        [Done("t"), Done("c", 8)],
        [Done("d", 7), Done("c", -1, name=None)],
    ],
)
def test_what_cannot_be_told_apart_is_read_again(hand: HandLake, between: list[Done]) -> None:
    with pytest.raises(Declined):
        copied(hand, *between)


def test_a_crash_in_the_middle_repeats_without_harm(hand: HandLake) -> None:
    first = hand.stage_chunk("two", 0, LOW)
    hand.source.commit(Done("u", 2, name="low"), Done("d", 4))
    second = hand.stage_chunk("two", 1, HIGH)
    hand.epoch()
    once = hand.evened("two", (first, second), [LOW, HIGH])
    hand.restart()
    twice = hand.evened("two", (first, second), [LOW, HIGH])

    assert once == twice
    hand.announce(twice)
    hand.source.commit(Done("u", 4, name="new"))
    hand.epoch()
    assert hand.state() == hand.source.state


def test_ranges_that_were_read_at_one_lsn_need_nothing(hand: HandLake) -> None:
    lsn = hand.stage_chunk("one", 0, KeyRange())
    even = hand.evened("one", (lsn,), [KeyRange()])

    assert even.lsn == lsn
