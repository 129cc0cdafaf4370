"""P6 for every operator of the plan tree: kept epoch by epoch, it is the one batch's answer.

Facts come shuffled, late, split into epochs, and the state is lost in between. The oracles are
plain Python over all facts at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from projections.run import key_parts, operator_tables, sorted_runs
from projections.run.dataflow import Dataflow
from projections.run.operators import JoinOperator, RecomputedOperator
from projections.sql.rendering.certified import uncertified
from tests.support.oracles.asked_projections import ASKED
from tests.support.oracles.changing_projections import CHANGING, PLACED
from tests.support.oracles.choice_projections import CHOSEN, RANKED
from tests.support.oracles.element_projections import ELEMENTS, KEPT_BY_KEYS
from tests.support.oracles.flow_projections import FLOWS
from tests.support.oracles.further_projections import FURTHER
from tests.support.oracles.pattern_projections import PATTERNS
from tests.support.oracles.range_projections import RANGES
from tests.support.oracles.region_projections import CASES as REGIONS
from tests.support.oracles.region_world import Kept, tree_of
from tests.support.oracles.spelled_projections import SPELLED
from tests.support.oracles.sql_arrivals import worlds
from tests.support.oracles.sql_world import Fact, World, canonical
from tests.support.oracles.unequal_projections import UNEQUAL
from tests.support.oracles.written_projections import WRITTEN
from tests.support.services.tier import examples


@pytest.fixture(autouse=True, scope="module")
def compacted_often() -> Iterator[None]:
    """Drop what came and went in small tables too, and sort what is more than a few rows.

    A round of more than a few rows computes one part of the keys after another.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(operator_tables, "SMALL_ROWS", 1)
        patched.setattr(operator_tables, "RUN_ROWS", 4)
        patched.setattr(key_parts, "PART_ROWS", 3)
        patched.setattr(sorted_runs, "MOST_RUNS", 2)
        yield


STEPS = {**REGIONS, **FURTHER, **PATTERNS, **ELEMENTS, **FLOWS}
CASES = {**STEPS, **CHOSEN, **RANKED, **UNEQUAL, **RANGES, **SPELLED, **WRITTEN, **ASKED}
CASES |= {**CHANGING, **PLACED}
LOST = st.sampled_from([None, 1, 2, 3])


@pytest.mark.parametrize("name", [name for name in CASES if name not in KEPT_BY_KEYS])
@settings(max_examples=examples(2, matrix=4))
@given(world=worlds(), lost=LOST)
def test_p6_any_order_of_arrival_gives_the_batch(name: str, world: World, lost: int | None) -> None:
    keep(name, world, lost)


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=40)
@given(world=worlds(), lost=LOST)
def test_p6_many_orders_of_arrival_give_the_batch(
    name: str, world: World, lost: int | None
) -> None:
    keep(name, world, lost)


@pytest.mark.parametrize("name", ["in", "not in"])
def test_what_is_among_the_values_already_touches_no_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = JoinOperator._find

    def finding(self: JoinOperator, what: str, side: str, came: Sequence[str]) -> None:
        find(self, what, side, came)
        assert what != "left_near" or self._tables.empty(what)

    facts = [
        Fact(place, 1 + place // 4, "f2", carrier, "JFK", place, delay, 1.0)
        for place, (carrier, delay) in enumerate([("AA", 3), ("UA", 0), (None, 1), ("UA", 1)] * 2)
    ]
    world = World(facts=tuple(facts), readings=())
    kept = Kept(tree_of(CASES[name].statement))
    kept.epoch(world.until(0), world.until(1))
    monkeypatch.setattr(JoinOperator, "_find", finding)
    kept.epoch(world.until(1), world)
    kept.close()
    assert canonical([*kept.rows.values()]) == canonical(CASES[name].oracle(world))


def test_groups_of_exists_may_be_numbers_of_its_columns() -> None:
    facts = [
        Fact(place, 1, "f2", carrier, origin, place, 0, 1.0)
        for place, (carrier, origin) in enumerate(
            [("AA", "JFK"), ("AA", "LGA"), ("UA", "JFK"), ("UA", "JFK")]
        )
    ]
    world = World(facts=tuple(facts), readings=())
    keep("exists of groups by a number", world, None)


def test_groups_that_only_have_to_be_there_are_not_computed() -> None:
    dataflow = Dataflow(tree_of(CASES["not in"].statement))
    dataflow.close()
    kinds = [type(each) for each in dataflow._operators]
    assert kinds == [JoinOperator] * 3 + [RecomputedOperator], "the last one is of the key"


def keep(name: str, world: World, lost: int | None) -> None:
    """Keep a projection over the epochs of a world; after the epoch `lost` its state is gone."""
    case = CASES[name]
    tree = tree_of(case.statement)
    assert uncertified(tree) is None
    kept = Kept(tree)
    try:
        before = world.until(0)
        for epoch in world.epochs:
            now = world.until(epoch)
            kept.epoch(before, now)
            assert canonical([*kept.rows.values()]) == canonical(case.oracle(now))
            if epoch == lost:
                written = kept.written
                kept.forget(now)
                assert kept.written == written, "state that is made anew says the same"
            before = now
    finally:
        kept.close()
