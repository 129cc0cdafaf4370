"""Typed tables beside copies that were read at several places, and become due one after another."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from lake.layout import Lake
from lake.tables import Tables
from pipeline.history.tables import HistoryTables
from pipeline.installs.install_book import hold
from pipeline.typed.tables import TypedTables
from projections.run.derived_tables import DerivedTables
from schemas.key_ranges import cut_at
from tests.support.lake.bulk import HandLake
from tests.support.lake.folding import SOURCE, TABLE, Done, registry

TYPED = f"typed/{SOURCE}.{TABLE}"


def derived_of(hand: HandLake) -> DerivedTables:
    return DerivedTables(
        hand.lake,
        hand.tables,
        hand.manifest,
        TypedTables(hand.lake, hand.tables, registry()),
        # There are no histories.
        cast("HistoryTables", None),
    )


def bring(derived: DerivedTables, hand: HandLake) -> None:
    last = hand.manifest.last()
    assert last is not None
    brought = derived.bring(derived.at(), last, [])
    assert not brought.held


def facts(hand: HandLake) -> list[tuple[object, ...]]:
    """Return the facts in their order."""
    rows = Tables().read(hand.lake.path(TYPED))
    assert rows is not None
    order = [("_seq_hi", "ascending"), ("_seq_lo", "ascending"), ("id", "ascending")]
    return [(r["_operation"], r["id"], r["name"]) for r in rows.sort_by(order).to_pylist()]


def test_p8_a_copy_that_is_due_later_takes_no_changes_of_other_tables(lake: Lake) -> None:
    hand = HandLake(lake)
    hold(lake, hand.tables, SOURCE)
    hand.source.commit(Done("c", 1, name="copied"))
    hand.announce(hand.stage(releases=True))
    hand.epoch()
    derived = derived_of(hand)
    bring(derived, hand)
    hand.source.commit(Done("u", 1, name="later"))
    hand.announce(hand.stage(table="public.others", releases=True))
    hand.epoch()
    bring(derived, hand)

    assert hand.state() == hand.source.state
    assert facts(hand) == [("r", 1, "copied"), ("u", 1, "later")]


def test_p8_changes_between_the_chunks_of_a_resumed_copy_are_facts(lake: Lake) -> None:
    low, high = cut_at([("5", "")])
    hand = HandLake(lake)
    hold(lake, hand.tables, SOURCE)
    hand.source.commit(Done("c", 1, name="copied"), Done("c", 8, name="copied"))
    first = hand.stage_chunk("two", 0, low)
    hand.source.commit(Done("u", 1, name="between"), Done("u", 8, name="between"))
    second = hand.stage_chunk("two", 1, high)
    hand.source.commit(Done("c", 9, name="after"))
    hand.announce(replace(hand.install("two", (first, second)), releases=True))
    hand.epoch()
    derived = derived_of(hand)
    bring(derived, hand)

    assert hand.state() == hand.source.state
    found = facts(hand)
    newest = {key: name for _, key, name in found}
    assert newest == {1: "between", 8: "between", 9: "after"}


@pytest.mark.parametrize("apart", [True, False])
def test_p8_changes_before_a_slot_was_lost_are_facts(lake: Lake, apart: bool) -> None:
    hand = HandLake(lake)
    hand.copy(Done("c", 1, name="copied"))
    hand.epoch()
    derived = derived_of(hand)
    bring(derived, hand)
    hand.source.commit(Done("u", 1, name="before"))
    hand.epoch()
    if apart:
        bring(derived, hand)
    copied_again(hand, Done("u", 1, name="in the gap"))
    hand.source.commit(Done("u", 1, name="after"))
    hand.epoch()
    bring(derived, hand)

    assert hand.state() == hand.source.state
    assert [name for _, _, name in facts(hand)] == ["copied", "before", "in the gap", "after"]


def copied_again(hand: HandLake, unseen: Done) -> None:
    """Lose the slot, and with it a change; let a copy wait for the next epoch."""
    hold(hand.lake, hand.tables, SOURCE)
    hand.source.commit(unseen)
    hand.source.rows.pop()
    hand.source.ends.pop()
    hand.announce(replace(hand.stage(releases=True), since=hand.source.lsn))
