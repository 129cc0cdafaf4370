"""Every operator has its planted faults: which there are, and those of joins that are left."""

from __future__ import annotations

import pytest

from projections.run.key_parts import KeyPart
from projections.run.operators import JoinOperator
from projections.sql.operators.tree import (
    Final,
    Grouped,
    Join,
    JoinKind,
    Match,
    Newest,
    Node,
    Over,
    Sessions,
    walk,
)
from projections.sql.plans.adding import known_of_facts
from projections.sql.plans.changing_groups import changing_of
from tests.property import test_sql_final, test_sql_table_faults
from tests.property.test_sql_region_faults import BY_PAIRS, BY_REGION, CASES, SEEDS, SUMS, holds
from tests.support.oracles.final_projections import FINAL
from tests.support.oracles.region_world import tree_of

REGIONS = {
    "groups",
    "newest",
    "over a span of time",
    "over a partition",
    "sessions",
    "match within a time",
    "match in a partition",
}
"""The regions that `projections.run.regions` knows."""
RECOMPUTED_ANEW = {"groups", "over a span of time", "over a partition", "sessions"}
"""Of those, whose query computes: the newest row and a match are rows, or measures of some."""


def region_named(node: Node) -> str | None:
    match node:
        case Grouped() if known_of_facts(node) is None and changing_of(node) is None:
            return "groups"
        case Newest() if not node.unique:
            return "newest"
        case Over():
            return "over a span of time" if node.reach is not None else "over a partition"
        case Sessions():
            return "sessions"
        case Match():
            return "match within a time" if node.within_us is not None else "match in a partition"
    return None


def regions_of(*names: str) -> set[str]:
    trees = (tree_of(CASES[name].statement) for name in names)
    return {found for tree in trees for node in walk(tree) if (found := region_named(node))}


def test_every_operator_has_its_planted_faults() -> None:
    assert regions_of(*BY_REGION) == REGIONS, "a region too small, a need too short"
    assert regions_of(*SUMS) >= RECOMPUTED_ANEW, "taken back as remembered"
    joins = [node for name in BY_PAIRS for node in walk(tree_of(CASES[name].statement))]
    assert {node.kind for node in joins if isinstance(node, Join)} == {*JoinKind}
    finals = [node for name in test_sql_final.SOME for node in walk(tree_of(FINAL[name].statement))]
    assert any(isinstance(node, Final) for node in finals)
    assert test_sql_table_faults.PAIRED, "tables and other projections"


def now_for_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what left rows gave as if they had met the right rows that there are now."""
    joined = JoinOperator._joined

    def anew(self: JoinOperator, left: str, right: str, part: KeyPart, *, sign: str = "") -> str:
        return joined(self, left, "right_now" if sign else right, part, sign=sign)

    monkeypatch.setattr(JoinOperator, "_joined", anew)


@pytest.mark.parametrize("name", BY_PAIRS)
def test_pairs_that_are_taken_back_as_they_are_now_are_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_for_before(monkeypatch)
    assert not all(holds(name, seed) for seed in SEEDS)
