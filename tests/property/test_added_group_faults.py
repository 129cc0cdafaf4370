"""What is wrong with groups that facts are added to is seen: faults of their operator, planted."""

from __future__ import annotations

import random

import pytest

from projections.run import added_groups, exact_totals
from projections.run.added_groups import AddedOperator
from projections.run.dataflow import Dataflow
from projections.run.operator_tables import OperatorTables
from projections.sql.operators.shape import Strategy
from projections.sql.plans.explain import NEW_ROWS_ADDED
from tests.property.test_sql_region_faults import SEEDS, TREMOR, crowd, holds, kept
from tests.support.oracles.region_projections import CASES
from tests.support.oracles.region_world import Kept, tree_of
from tests.support.oracles.sql_projections import FROM
from tests.support.oracles.sql_world import planned

ADDED = (
    "groups",
    "when, groups",
    "cumulating",
    "hopping, then by window",
    "rows that move between groups",
)


@pytest.mark.parametrize("name", ADDED)
def test_what_is_not_kept_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AddedOperator, "keep", lambda self: None)
    assert not all(holds(name, seed) for seed in SEEDS)


@pytest.mark.parametrize("name", ADDED)
def test_what_was_given_out_has_to_be_taken_back(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = OperatorTables.fresh

    def without(self: OperatorTables, what: str, query: str) -> None:
        fresh(self, what, f"SELECT * FROM ({query}) AS q LIMIT 0" if what == "before" else query)

    monkeypatch.setattr(OperatorTables, "fresh", without)
    assert not all(holds(name, seed) for seed in SEEDS)


@pytest.mark.parametrize("name", ["groups", "totals of values that count once"])
def test_values_that_are_not_kept_are_counted_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(holds(name, seed) for seed in SEEDS)
    monkeypatch.setattr(added_groups._Values, "keep", lambda self: None)
    assert not all(holds(name, seed) for seed in SEEDS)


def test_totals_that_were_rounded_on_the_way_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    total = exact_totals.exact_total
    monkeypatch.setattr(exact_totals, "exact_parts", lambda values: [total(values)])
    assert not all(holds("groups", seed) for seed in range(20))


def test_totals_are_taken_back_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Totals that differ each time leave a key with one row; taken back anew they would pile up."""
    total = exact_totals.exact_total
    monkeypatch.setattr(
        exact_totals, "exact_total", lambda values: total(values) + TREMOR * random.random()
    )
    for rows, now in kept("groups", 5):
        assert len(rows) == len(CASES["groups"].oracle(now))


def test_no_row_of_the_input_is_kept() -> None:
    world = crowd(3)
    table = Kept(tree_of(CASES["groups"].statement))
    before = world.until(0)
    for epoch in world.epochs:
        table.epoch(before, before := world.until(epoch))
    connection = table._dataflow._connection
    kept_rows = sum(
        connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0][0]
        for (name,) in connection.execute("SHOW TABLES").fetchall()
        if name.startswith(("given", "had", "in_"))
    )
    table.close()
    # What was given out and taken back in each epoch, and the values of each group.
    values = len({(fact.carrier, fact.flight) for fact in world.facts})
    assert kept_rows <= 2 * len(table.rows) * len(world.epochs) + values
    assert kept_rows < len(world.facts)


@pytest.mark.parametrize(
    ("select", "more"),
    [
        ("COUNT(DISTINCT flight) AS x", ""),
        ("SUM(DISTINCT delay) AS x", ""),
        ("AVG(DISTINCT delay) AS x", ""),
        ("COUNT(*) AS x", "HAVING x > 1"),
    ],
)
def test_groups_of_one_step_that_rows_do_not_tell_have_state(select: str, more: str) -> None:
    text = f"SELECT carrier, {select} {FROM} GROUP BY carrier {more}"
    made = planned(f"CREATE PROJECTION p WITH (key = 'carrier') AS {text}")
    assert (made.strategy, made.cost) == (Strategy.REGIONS, NEW_ROWS_ADDED)
    dataflow = Dataflow(made.tree)
    dataflow.close()
    assert [type(each) for each in dataflow._operators] == [AddedOperator]
    windowed = f"SELECT carrier, window_start, {select} {FROM} GROUP BY carrier, "
    windowed += f"TUMBLE(occurred_at, '1 hour') {more}"
    key = "carrier, window_start"
    made = planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {windowed}")
    assert made.strategy is Strategy.KEYS, "its windows bound what is read"
