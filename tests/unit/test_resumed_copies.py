"""A copy that was resumed: chunks that were read at different LSNs become one table."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from itertools import permutations
from typing import Any, cast

import pytest

from cdc.copies.copy_plan import CopyPlan, TablePlan, plan_of
from cdc.copies.copy_run import CopyRun
from lake.layout import Lake
from pipeline.position.progress import Progress
from schemas.key_ranges import KeyRange, cut_at
from tests.support.lake.bulk import COLUMNS, KEYS, HandLake, some
from tests.support.lake.folding import AT, SOURCE, TABLE, Done

LOW, MIDDLE, HIGH = cut_at([("4", ""), ("7", "")])
EVERY = KeyRange(low=None, high=None)


def begun(hand: HandLake) -> HandLake:
    """Let the stream run without a copy."""
    hand.ingest._progress.cut("shop").snapshot_done = True
    hand.source.commit(*some(*range(10)))
    hand.epoch()
    return hand


@pytest.fixture
def hand(lake: Lake) -> HandLake:
    return begun(HandLake(lake))


def resumed(hand: HandLake, *between: Done) -> None:
    """Read the low keys, let something happen, read the rest, and install all of it."""
    first = hand.stage_chunk("two", 0, LOW)
    hand.source.commit(*between)
    second = hand.stage_chunk("two", 1, MIDDLE)
    hand.source.commit(Done("u", 1, name="after"), Done("u", 8, name="after"))
    third = hand.stage_chunk("two", 2, HIGH)
    hand.source.commit(Done("u", 2, name="last"), Done("d", 9))
    hand.epoch()
    hand.announce(hand.install("two", (first, second, third)))
    hand.source.commit()
    hand.epoch()


def declined(hand: HandLake) -> dict[str, str]:
    last = hand.manifest.last()
    assert last is not None
    return Progress.from_json(last.progress).declined


@pytest.mark.parametrize(
    "between",
    [
        [Done("u", 2, name="low"), Done("u", 7, name="high")],
        [Done("d", 2), Done("d", 7), Done("c", 3, part="b"), Done("c", 9, part="b")],
        [Done("d", 2), Done("c", 20, name="moved up"), Done("d", 7), Done("c", -1, name="down")],
        [Done("u", 2, name=None, size=1), Done("u", 7, name=None, size=2)],
        [Done("t"), Done("c", 8), Done("c", 0)],
    ],
)
def test_p4_chunks_of_several_lsns_become_the_source_at_the_cut(
    hand: HandLake, between: list[Done]
) -> None:
    hand.break_row((3, "a"))
    resumed(hand, *between)

    assert declined(hand) == {}
    assert hand.state() == hand.source.state


@pytest.mark.parametrize("order", list(permutations([LOW, MIDDLE, HIGH])))
def test_p4_the_order_of_the_chunks_does_not_matter(
    hand: HandLake, order: tuple[KeyRange, ...]
) -> None:
    lsns = {}
    for number, range_ in enumerate((LOW, MIDDLE, HIGH)):
        lsns[range_] = number
    read = {}
    for range_ in order:
        read[lsns[range_]] = hand.stage_chunk("any", lsns[range_], range_)
        hand.source.commit(Done("d", 5), Done("c", 5, name=str(range_)), Done("d", 1))
    hand.epoch()
    hand.announce(hand.install("any", tuple(read[n] for n in range(3))))
    hand.source.commit()
    hand.epoch()

    assert hand.state() == hand.source.state


def test_a_key_that_moved_with_a_value_unsent_is_not_guessed(hand: HandLake) -> None:
    before = hand.state()
    resumed(hand, Done("d", 7), Done("c", -1, name=None))

    assert "moved" in "".join(declined(hand).values())
    assert hand.state().keys() == hand.source.state.keys()
    assert hand.state()[-1, "a"][2] == before[7, "a"][2]


def test_deleted_rows_that_are_kept_need_one_lsn(lake: Lake) -> None:
    hand = begun(HandLake(lake, soft=True))
    resumed(hand, Done("d", 7))

    assert len(declined(hand)) == 1


def test_p9_a_copy_is_as_old_as_the_moment_before_its_first_snapshot(hand: HandLake) -> None:
    """A record that was refused while tables were read is not among what the copy has."""
    table = TablePlan(
        table=TABLE,
        install="read",
        columns=COLUMNS,
        keys=KEYS,
        soft_deletes=False,
        ranges=(EVERY,),
        rows=10,
    )
    plan = CopyPlan(
        run="begun",
        source=SOURCE,
        slots=1,
        since=0,
        releases=False,
        wants=(),
        tables=(table,),
        read_at=AT,
    )
    entry = replace(plan.entry(), at=AT + timedelta(hours=1))
    hand.stage_chunk("read", 0, EVERY)
    run = CopyRun(
        hand.lake,
        cast(Any, None),
        plan_of(entry),
        dsn="",
        salt="",
        readers=1,
        stop=threading.Event(),
    )
    (install,) = run.installs()
    assert install.read_at == AT
    del entry.detail["read_at"]
    assert plan_of(entry).read_at == entry.at, "so old are plans that do not say"
