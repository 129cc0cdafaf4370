"""P6 for rows that are chosen, and for bits that are added to, kept by the groups of one step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from projections.run.database import TEXT
from tests.property.test_sql_incremental import DuckEngine
from tests.support.oracles.choice_projections import CHOSEN
from tests.support.oracles.sql_arrivals import worlds
from tests.support.oracles.sql_world import World, canonical, kept, planned
from tests.support.services.tier import examples


@pytest.fixture(scope="module")
def pipeline_engine() -> Iterator[DuckEngine]:
    """Return the engine that runs in the pipeline's process."""
    made = DuckEngine(spark=False)
    yield made
    made.close()


@pytest.mark.parametrize("name", CHOSEN)
@settings(
    max_examples=examples(8, matrix=60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=worlds())
def test_p6_any_order_of_arrival_chooses_the_same_rows(
    pipeline_engine: DuckEngine, name: str, world: World
) -> None:
    case = CHOSEN[name]
    plan = planned(case.statement)
    assert plan.small
    assert canonical(kept(pipeline_engine, plan, world, TEXT)) == canonical(case.oracle(world))


def test_bits_are_added_to() -> None:
    assert planned(CHOSEN["bits that are added to"].statement).adding is not None
