"""P6 of groups that new facts are added to: rows and what is kept beside them are the rebuild's.

Hidden columns are compared too: what is wrong in them alone is wrong in the next epoch's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal

import pytest
from hypothesis import HealthCheck, given, settings

from kernel.positions import Epoch
from lake.ranges import Condition, Range
from projections.run import exact_totals, key_runs
from projections.run.database import TEXT
from projections.run.exact_totals import exact_total
from projections.run.key_runs import all_rows, changed_rows
from projections.sql.operators.tree import Scan
from projections.sql.plans import adding
from projections.sql.plans.explain import NEW_ROWS_ADDED, TOUCHED_KEYS
from projections.sql.plans.plan import Plan
from projections.sql.rendering.spark_text import SparkText
from tests.property.test_sql_incremental import DuckEngine
from tests.property.test_sql_key_faults import SEEDS, crowd
from tests.support.oracles.sql_arrivals import worlds
from tests.support.oracles.sql_projections import CASES, FROM
from tests.support.oracles.sql_world import (
    Fact,
    Row,
    World,
    WorldEngine,
    canonical,
    kept,
    plain,
    planned,
    stored,
)
from tests.support.services.tier import examples

FAR = 9_007_199_254_740_993
TOTALS = (
    "CREATE PROJECTION totals WITH (key = 'carrier') AS SELECT e.carrier, COUNT(*) AS n, "
    "COUNT(delay) AS known, SUM(delay) AS total, SUM(position) AS places, AVG(delay) AS mean, "
    f"AVG(position + {FAR}) AS far, MIN(delay) AS least, MAX(occurred_at) AS last_at, "
    "MIN(distance) AS nearest, BOOL_AND(delay > 0) AS always, BOOL_OR(delay > 2) AS ever, "
    "SUM(CAST(delay AS DECIMAL(10,2))) AS exact, AVG(CAST(delay AS DECIMAL(10,2))) AS mean_exact, "
    "COUNT(*) FILTER (WHERE delay >= 3) AS late, SUM(delay) * 2 + COUNT(*) AS score, "
    f"flight AS last_flight {FROM} WHERE distance > 0 GROUP BY e.carrier"
)
DISTANCES = (
    "CREATE PROJECTION distances WITH (key = 'carrier') AS "
    "SELECT carrier, SUM(distance) AS far, AVG(distance) AS mean, SUM(distance) * 2 AS twice, "
    f"AVG(CASE WHEN delay > 1 THEN distance END) AS late {FROM} GROUP BY carrier"
)
CHOSEN = (
    "CREATE PROJECTION chosen WITH (key = 'carrier') AS SELECT carrier, COUNT(*) AS n, "
    "MAX_BY(flight, delay) AS worst, MIN_BY(delay, distance) AS near, "
    "MAX_BY(distance, distance * 0) AS last, "
    "MIN_BY(flight, occurred_at) FILTER (WHERE delay > 1) AS first, MAX(delay) AS most "
    f"{FROM} GROUP BY carrier"
)
FURTHER = ("tumble", "cumulate", "plain group")
ADDED = [TOTALS, DISTANCES, CHOSEN, *(CASES[name].statement for name in FURTHER)]
LOOKED_UP = CASES["as of, windowed"]


@pytest.fixture(scope="module")
def small() -> Iterator[DuckEngine]:
    made = DuckEngine(spark=False)
    yield made
    made.close()


def totals(world: World) -> list[Row]:
    groups: dict[str, list[Fact]] = {}
    for fact in world.facts:
        if fact.carrier is not None and fact.distance > 0:
            groups.setdefault(fact.carrier, []).append(fact)
    return [_total(carrier, facts) for carrier, facts in groups.items()]


def _total(carrier: str, facts: list[Fact]) -> Row:
    delays = [fact.delay for fact in facts if fact.delay is not None]
    total = sum(delays) if delays else None
    exact = None if total is None else Decimal(total).quantize(Decimal("0.01"))
    mean = None if exact is None else exact / len(delays)
    places = sum(fact.position for fact in facts)
    return {
        "carrier": carrier,
        "n": len(facts),
        "known": len(delays),
        "total": total,
        "places": places,
        "mean": None if total is None else total / len(delays),
        "far": float(places + FAR * len(facts)) / len(facts),
        "least": min(delays, default=None),
        "last_at": max(fact.time for fact in facts),
        "nearest": min(fact.distance for fact in facts),
        "always": all(delay > 0 for delay in delays) if delays else None,
        "ever": any(delay > 2 for delay in delays) if delays else None,
        "exact": exact,
        "mean_exact": None if mean is None else mean.quantize(Decimal("0.000001"), ROUND_HALF_UP),
        "late": sum(1 for delay in delays if delay >= 3),
        "score": None if total is None else total * 2 + len(facts),
        "last_flight": max(facts, key=lambda fact: (fact.time, fact.position)).flight,
    }


def whole(small: DuckEngine, plan: Plan, world: World) -> list[Row]:
    """All that a table has after a build, but for the epochs."""
    engine = WorldEngine(small, plan, world, TEXT)
    rows = all_rows(engine, plan, Epoch(max(world.epochs))).to_pylist()
    return [plain(row) for row in rows if all(row[name] is not None for name in plan.key)]


def holds(small: DuckEngine, statement: str, world: World) -> bool:
    plan = planned(statement)
    rows = [
        {name: value for name, value in row.items() if name not in ("_epoch", "__op")}
        for row in stored(small, plan, world, TEXT).values()
    ]
    return canonical(rows) == canonical(whole(small, plan, world))


@settings(
    max_examples=examples(5, matrix=60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=worlds())
def test_p6_what_is_added_equals_the_rebuild(small: DuckEngine, world: World) -> None:
    for statement in ADDED:
        assert holds(small, statement, world)
    rows = kept(small, planned(TOTALS), world, TEXT)
    assert canonical(rows) == canonical(totals(world))


def test_what_is_added_reads_no_facts_of_before(
    small: DuckEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    plain_facts = WorldEngine.facts

    def facts(
        engine: WorldEngine, scan: Scan, conditions: Sequence[Condition], **_: object
    ) -> None:
        asked.extend(int(str(c.lower)) for c in conditions if isinstance(c, Range))
        plain_facts(engine, scan, conditions)

    monkeypatch.setattr(WorldEngine, "facts", facts)
    world = crowd(1)
    for statement in ADDED:
        assert planned(statement).cost == NEW_ROWS_ADDED
        stored(small, planned(statement), world, TEXT)
    befores = [0, *world.epochs[:-1]]
    assert asked == [before + 1 for before in befores] * len(ADDED)


def test_what_cannot_be_added_to_is_computed_anew(small: DuckEngine) -> None:
    for select in ("STRING_AGG(flight, ',' ORDER BY delay) AS x", "flight, MODE(delay) AS x"):
        text = f"SELECT carrier, {select} {FROM} GROUP BY carrier"
        made = planned(f"CREATE PROJECTION p WITH (key = 'carrier') AS {text}")
        assert (made.adding, made.cost) == (None, TOUCHED_KEYS)


def test_another_row_that_is_chosen_by_the_same_value_is_seen(
    small: DuckEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(holds(small, CHOSEN, crowd(seed)) for seed in SEEDS)
    extreme = adding.extreme
    monkeypatch.setattr(adding, "extreme", lambda *given: extreme(*given[:-1], order=()))
    adding.added_sql.cache_clear()
    assert not all(holds(small, CHOSEN, crowd(seed)) for seed in SEEDS)
    adding.added_sql.cache_clear()


def test_a_row_that_has_an_epoch_already_does_not_get_it_twice(small: DuckEngine) -> None:
    plan, world = planned(TOTALS), crowd(2)
    last = max(world.epochs)
    table = {
        tuple(row[name] for name in plan.key): row | {"_epoch": last}
        for row in whole(small, plan, world)
    }
    engine = WorldEngine(small, plan, world, TEXT, table)
    changes = changed_rows(engine, plan, Epoch(1), Epoch(last)).to_pylist()
    names = [each.name for each in plan.columns]
    rows = [{name: plain(row)[name] for name in names} for row in changes]
    wanted = [row for row in totals(world) if row["carrier"] in {one["carrier"] for one in rows}]
    assert rows
    assert canonical(rows) == canonical(wanted)


def test_an_epoch_that_is_added_twice_is_seen(
    small: DuckEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = key_runs._came
    monkeypatch.setattr(key_runs, "_came", lambda a, b: came(Epoch(max(a - 1, 0)), b))
    for statement in ADDED:
        assert not all(holds(small, statement, crowd(seed)) for seed in SEEDS)


def test_a_changed_version_after_which_facts_are_added_is_seen(
    small: DuckEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert planned(LOOKED_UP.statement).adding is not None
    assert all(holds(small, LOOKED_UP.statement, crowd(seed)) for seed in SEEDS)
    touched = key_runs._touched
    monkeypatch.setattr(key_runs, "_touched", lambda *given: touched(*given)[:1])
    assert not all(holds(small, LOOKED_UP.statement, crowd(seed)) for seed in SEEDS)


def test_sums_of_doubles_that_were_rounded_on_the_way_are_seen(
    small: DuckEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    distances = (1e16, 1.0, 1.0, -1e16, 0.1)
    facts = tuple(Fact(n, n, "f1", "AA", "JFK", 5, 1, d) for n, d in enumerate(distances, start=1))
    world = World(facts=facts, readings=())
    assert holds(small, DISTANCES, world)
    (row,) = kept(small, planned(DISTANCES), world, TEXT)
    assert row["far"] == 2.1
    monkeypatch.setattr(exact_totals, "exact_parts", lambda values: [exact_total(values)])
    assert not holds(small, DISTANCES, world)


def test_a_part_of_a_sum_may_be_more_than_the_whole(small: DuckEngine) -> None:
    far = 9_000_000_000_000_000_000
    facts = tuple(
        Fact(place, epoch, "f1", "AA", "JFK", minute, 1, 1.0)
        for minute, (place, epoch) in enumerate(((-far, 1), (far, 2), (far, 2)))
    )
    for total in ("SUM(position)", "SUM(position) - 1"):
        text = (
            "CREATE PROJECTION p WITH (key = 'carrier') AS "
            f"SELECT carrier, {total} AS total {FROM} GROUP BY carrier"
        )
        plan = planned(text)
        assert plan.adding is not None
        assert holds(small, text, World(facts=facts, readings=()))
        # DuckDB adds whole numbers wide by itself, Spark does not.
        assert "DECIMAL(20, 0)" in adding.added_sql(plan.adding, SparkText())
