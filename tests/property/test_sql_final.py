"""P6 for `emit = 'final'`: whatever order facts come in, the table is theirs and the watermark's.

At every epoch it has the rows that have ended, as they are now: a fact that comes after all
corrects what it concerns. What is wrong with that is planted, and seen.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import ContractViolation
from projections.run.operators import FinalOperator
from projections.sql.rendering.certified import uncertified
from tests.support.oracles.final_projections import FINAL, watermark_us
from tests.support.oracles.region_world import Kept, tree_of
from tests.support.oracles.sql_arrivals import worlds
from tests.support.oracles.sql_world import Fact, World, canonical

SOME = ("cumulating", "sessions", "over a range", "two streams")
LOST = st.sampled_from([None, 1, 2, 3])
_BROKEN = (AssertionError, KeyError, ContractViolation)


@pytest.mark.parametrize("name", FINAL)
@settings(max_examples=3)
@given(world=worlds(), lost=LOST)
def test_p6_final_rows_follow_from_facts_and_watermark(
    name: str, world: World, lost: int | None
) -> None:
    keep(name, world, lost)


@pytest.mark.matrix
@pytest.mark.parametrize("name", FINAL)
@settings(max_examples=40)
@given(world=worlds(), lost=LOST)
def test_p6_final_rows_follow_from_many_arrivals(name: str, world: World, lost: int | None) -> None:
    keep(name, world, lost)


def keep(name: str, world: World, lost: int | None = None) -> None:
    """Keep final rows over the epochs of a world; after the epoch `lost` the state is gone."""
    case = FINAL[name]
    tree = tree_of(case.statement)
    assert uncertified(tree) is None
    kept, before = Kept(tree), world.until(0)
    try:
        for epoch in world.epochs:
            now = world.until(epoch)
            kept.epoch(before, now, watermark_us(now))
            assert canonical([*kept.rows.values()]) == canonical(case.oracle(now))
            if epoch == lost:
                written = kept.written
                kept.forget(now, watermark_us(now))
                assert kept.written == written, "state that is made anew says the same"
            before = now
    finally:
        kept.close()


def passing(seed: int) -> World:
    """Facts that come about in time, so that windows end while more come, and some late ones."""
    draw = random.Random(seed)
    facts = [
        Fact(
            position=position,
            epoch=1 + position // 9,
            flight=draw.choice(["f1", "f2"]),
            carrier="AA",
            origin="JFK",
            minute=position * 5 + draw.choice([0, 0, 0, -35]),
            delay=draw.choice([None, 0, 1, 3]),
            distance=draw.choice([0.1, 0.2, 1e16]),
        )
        for position in range(27)
    ]
    # The newest of the first epoch lies a lateness behind another fact, and the end of a window.
    facts += [replace(facts[0], position=27, minute=30), replace(facts[0], position=28, minute=40)]
    return World(facts=tuple(facts), readings=())


def holds(name: str) -> bool:
    try:
        for seed in (1, 2, 3):
            keep(name, passing(seed), lost=2)
    except _BROKEN:
        return False
    return True


@pytest.mark.parametrize("name", SOME)
def test_late_facts_correct_final_rows(name: str) -> None:
    assert holds(name)


def early(self: FinalOperator, watermark_us: int) -> None:
    _PASS(self, watermark_us + 1)


def overdue(self: FinalOperator, watermark_us: int) -> None:
    _PASS(self, watermark_us - 1)


def held_for_ever(self: FinalOperator) -> None:
    """Forget to take rows that were given out from those that wait."""
    self._tables.fresh("waiting", f"FROM {self._tables.name('held')}")


_PASS, _STEP = FinalOperator.pass_watermark, FinalOperator.step


def test_a_watermark_one_moment_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FinalOperator, "pass_watermark", early)
    assert not holds("over rows")


def test_a_watermark_one_moment_late_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FinalOperator, "pass_watermark", overdue)
    assert not holds("cumulating")


@pytest.mark.parametrize("name", ["sessions", "hopping, then by window"])
def test_a_row_that_is_given_out_twice_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FinalOperator, "keep", held_for_ever)
    assert not holds(name)


@pytest.mark.parametrize("name", SOME)
def test_a_correction_that_is_lost_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[FinalOperator, int] = {}

    def remembered(self: FinalOperator, watermark_us: int) -> None:
        passed[self] = self._watermark_us
        _PASS(self, watermark_us)

    def uncorrected(self: FinalOperator) -> None:
        _STEP(self)
        table = self._tables.name("changed")
        self._tables._connection.execute(f"DELETE FROM {table} WHERE _end <= {passed[self]}")

    monkeypatch.setattr(FinalOperator, "pass_watermark", remembered)
    monkeypatch.setattr(FinalOperator, "step", uncorrected)
    assert not holds(name)
