"""Slices that are chosen at the inputs are together what is computed at once, each row in its own.

Whatever stands between the inputs and the result: joins of all kinds, windows, lists, patterns.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from projections.run.database import TEXT
from projections.run.duckdb_functions import register_called
from projections.run.key_runs import all_sql
from projections.run.spark_hashes import hash_sql, is_hashed, register_hashes
from projections.sql.operators.tree import scans
from projections.sql.plans.plan import InputKind, Plan
from projections.sql.rendering.batch import listed, satisfying
from projections.sql.rendering.certified import uncertified
from replay.carried_keys import parted, sliceable
from replay.driver_slices import _place
from tests.property.test_sql_incremental import DuckEngine
from tests.support.oracles.element_projections import ELEMENTS
from tests.support.oracles.flow_projections import FLOWS
from tests.support.oracles.further_projections import FURTHER
from tests.support.oracles.pattern_projections import PATTERNS
from tests.support.oracles.region_projections import CASES as REGIONS
from tests.support.oracles.sql_projections import CASES as PLAIN
from tests.support.oracles.sql_world import Fact, Reading, World, WorldEngine, canonical, planned

SLICES = 3
_MINUTES = (-40, -1, 0, 9, 10, 15, 20, 21, 39, 40, 59)
WORLD = World(
    facts=tuple(
        Fact(
            position=n,
            epoch=1,
            flight=f"f{n * 5 % 7}",
            carrier=("AA", "UA", "DL", None)[n * 3 % 4],
            origin=("JFK", "LGA")[n // 2 % 2],
            minute=_MINUTES[n * 7 % len(_MINUTES)],
            delay=(None, 0, 1, 3)[n // 3 % 4],
            distance=(0.1, 0.2, 1e16)[n % 3],
        )
        for n in range(24)
    ),
    readings=tuple(
        Reading(n, 1, ("JFK", "LGA")[n % 2], 10 * (n % 5) - 10, (None, 1, 2)[n % 3])
        for n in range(10)
    ),
)
"""Several rows of each key, keys that are not known, versions that follow on each other."""


def is_sliced(plan: Plan) -> bool:
    """Say whether this process computes slices of a plan."""
    kinds = {each.name: each for each in plan.columns}
    names = sliceable(plan)
    hashed = all(is_hashed(kinds[name]) for name in names)
    return bool(names) and hashed and not plan.final and uncertified(plan.tree) is None


PLANS = {
    name: plan
    for name, case in {**PLAIN, **REGIONS, **FURTHER, **PATTERNS, **ELEMENTS, **FLOWS}.items()
    # Rows in memory have no empty maps here.
    if name != "entries" and is_sliced(plan := planned(case.statement))
}


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckEngine]:
    made = DuckEngine(spark=False)
    register_hashes(made._connection)
    yield made
    made.close()


@pytest.mark.parametrize("name", PLANS)
def test_p6_slices_are_the_whole_and_each_row_is_of_its_hash(engine: DuckEngine, name: str) -> None:
    made = PLANS[name]
    register_called(engine._connection, made.tree)
    views = WorldEngine(engine, made, WORLD)
    for scan in scans(made.tree):
        (views.facts if scan.kind is InputKind.STREAM else views.versions)(scan, [])
    kinds = {each.name: each for each in made.columns}
    names = sliceable(made)
    place = hash_sql([kinds[each] for each in names])
    keyed = " AND ".join(f"{TEXT.name(each)} IS NOT NULL" for each in made.key)
    columns = listed(TEXT, [each.name for each in made.columns])

    def rows(text: str, where: str) -> list[str]:
        return canonical(engine.query(f"SELECT {columns} FROM ({text}) AS b WHERE {keyed}{where}"))

    whole = all_sql(TEXT, made)
    for number in range(SLICES):
        apart = {
            node: satisfying(node, f"{_place(each, SLICES)} = {number}", TEXT)
            for node, each in parted(made.tree, names)
        }
        wanted = f" AND (({place} % {SLICES}) + {SLICES}) % {SLICES} = {number}"
        assert rows(all_sql(TEXT, made, apart), "") == rows(whole, wanted)
