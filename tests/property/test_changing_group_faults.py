"""What is wrong with groups of rows that come and go is seen: faults of theirs, planted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeGuard

import pytest

from projections.run import changing_groups, exact_totals, operator_tables
from projections.run.changing_groups import ChangingOperator, _ValueBag
from projections.run.dataflow import Dataflow
from projections.run.operator_tables import OperatorTables
from projections.run.operators import RecomputedOperator
from projections.sql.operators import pruning
from projections.sql.operators.shape import Strategy
from projections.sql.operators.tree import Call, Grouped, Map, Newest, Node
from projections.sql.plans.explain import MERGED, NEW_ROWS_AND_VALUES, TOUCHED_KEYS
from tests.property.test_sql_region_faults import SEEDS, TREMOR, crowd, find_nothing, holds, kept
from tests.support.oracles.changing_projections import CHANGING, PLACED
from tests.support.oracles.region_world import Kept, tree_of
from tests.support.oracles.sql_projections import FROM
from tests.support.oracles.sql_world import planned

MOVING = ("totals of rows that move", "different rows of a join", "rows that move between groups")
OF_VALUES = (
    "values of rows that move",
    "ends of rows that move",
    "values in ascending order",
    "totals beyond all numbers",
)


@pytest.mark.parametrize("name", [*MOVING, "values in ascending order"])
def test_groups_that_are_not_kept_are_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangingOperator, "keep", lambda self: None)
    assert not all(holds(name, seed) for seed in SEEDS)


@pytest.mark.parametrize("name", OF_VALUES)
def test_values_that_are_not_kept_are_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ValueBag, "keep", lambda self: None)
    assert not all(holds(name, seed) for seed in SEEDS)


@pytest.mark.parametrize("name", MOVING)
def test_what_went_is_taken_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    less = changing_groups._less
    monkeypatch.setattr(changing_groups, "_less", lambda call: less(call).removeprefix("-"))
    assert not all(holds(name, seed) for seed in SEEDS)


def test_doubles_that_went_are_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    less = changing_groups._less

    def kept_on(call: Call) -> str:
        return less(call).replace("-one", "one")

    monkeypatch.setattr(changing_groups, "_less", kept_on)
    assert not all(holds("totals of rows that move", seed) for seed in SEEDS)


def test_a_sum_of_no_value_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing_groups, "SOME", "true OR {} > 0")
    assert not all(holds("totals of rows that move", seed) for seed in range(40))


def test_an_end_that_went_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "ends of rows that move"
    at_an_end = _ValueBag._at_an_end
    monkeypatch.setattr(_ValueBag, "_at_an_end", lambda self: f"{at_an_end(self)} LIMIT 0")
    assert not all(holds(name, seed) for seed in SEEDS)


@pytest.mark.parametrize("name", MOVING)
def test_what_was_given_out_is_taken_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = OperatorTables.fresh

    def without(self: OperatorTables, what: str, query: str) -> None:
        fresh(self, what, f"SELECT * FROM ({query}) AS q LIMIT 0" if what == "before" else query)

    monkeypatch.setattr(OperatorTables, "fresh", without)
    assert not all(holds(name, seed) for seed in SEEDS)


def test_totals_of_rows_that_move_are_taken_back_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Totals that differ each time leave a key with one row; taken back anew they would pile up."""
    total = exact_totals.exact_total
    monkeypatch.setattr(
        exact_totals, "exact_total", lambda values: total(values) + TREMOR * random.random()
    )
    name = "totals of rows that move"
    for rows, now in kept(name, 5):
        assert len(rows) == len(CHANGING[name].oracle(now))


def test_totals_of_doubles_that_were_rounded_on_the_way_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = exact_totals.exact_total
    monkeypatch.setattr(exact_totals, "exact_parts", lambda values: [total(values)])
    assert not all(holds("totals of rows that move", seed) for seed in range(20))


@pytest.mark.parametrize("name", ["values of rows that move", "rows that move between groups"])
def test_what_is_not_found_by_its_keys_is_missed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 4)
    assert all(holds(name, seed) for seed in SEEDS)
    find_nothing(monkeypatch)
    assert not all(holds(name, seed) for seed in SEEDS)


def test_a_value_is_kept_once_with_how_often_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_tables, "SMALL_ROWS", 0)
    world, table = crowd(3), Kept(tree_of(CHANGING["values of rows that move"].statement))
    # All at once, so that what is kept has just been put together.
    table.epoch(world.until(0), world)
    (tables,) = (each._tables for each in table._dataflow._operators if is_changing(each))
    rows = table._dataflow._connection.execute(f"FROM {tables.name('bag0')}").fetchall()
    table.close()
    assert len(rows) == len({row[:2] for row in rows})
    assert sum(row[2] for row in rows) == sum(1 for f in world.facts if f.delay is not None)


def test_a_place_that_is_asked_for_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(holds("newest of groups", seed) for seed in SEEDS)
    monkeypatch.setattr(pruning, "with_places", unplaced)
    assert not all(holds("newest of groups", seed) for seed in SEEDS)


def unplaced(node: Node) -> Node:
    match node:
        case Grouped():
            return replace(node, placed=False)
        case Newest() | Map():
            return replace(node, input=unplaced(node.input))
        case _:
            return node


@pytest.mark.parametrize(
    "select",
    [
        "STRING_AGG(flight, ',') AS x",
        "PERCENTILE(delay, 0.9) AS x",
        "MODE(flight) AS x, COUNT(*) AS n",
        "SUM(DISTINCT distance) AS x",
        "STDDEV(distance) AS x",
    ],
)
def test_groups_of_one_step_are_kept_by_their_values(select: str) -> None:
    made = planned(
        f"CREATE PROJECTION p WITH (key = 'carrier') AS SELECT carrier, {select} {FROM} "
        "GROUP BY carrier"
    )
    assert (made.strategy, made.cost) == (Strategy.REGIONS, NEW_ROWS_AND_VALUES)
    assert MERGED in made.notes
    dataflow = Dataflow(made.tree)
    dataflow.close()
    assert [*map(type, dataflow._operators)] == [ChangingOperator]


@pytest.mark.parametrize(
    "select",
    [
        "STRING_AGG(flight, ',' ORDER BY delay) AS x",
        "STRING_AGG(flight, ',') AS x, flight AS last",
    ],
)
def test_what_asks_when_a_value_came_is_computed_from_all_rows(select: str) -> None:
    made = planned(
        f"CREATE PROJECTION p WITH (key = 'carrier') AS SELECT carrier, {select} {FROM} "
        "GROUP BY carrier"
    )
    assert (made.strategy, made.cost) == (Strategy.KEYS, TOUCHED_KEYS)
    dataflow = Dataflow(tree_of(PLACED["count windows, with their last"].statement))
    dataflow.close()
    assert not any(map(is_changing, dataflow._operators))
    assert any(isinstance(each, RecomputedOperator) for each in dataflow._operators)


def is_changing(operator: object) -> TypeGuard[ChangingOperator]:
    return isinstance(operator, ChangingOperator)
