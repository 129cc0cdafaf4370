"""Groups of a history larger than memory are made of one part of their keys after another."""

from __future__ import annotations

import pytest

from kernel.errors import TooLarge
from projections.run import key_parts
from projections.run.added_groups import AddedOperator
from projections.run.changing_groups import ChangingOperator
from projections.run.dataflow import Dataflow
from projections.sql.operators.tree import scans
from tests.support.oracles.region_world import tree_of
from tests.unit.test_key_parts import FLIGHTS, FROM, MEMORY, ORDER, ROWS, facts

TOTALS = "SUM(distance) AS far, AVG(distance) AS mean"
ADDED = (
    f"CREATE PROJECTION added WITH (key = 'flight') AS SELECT flight, {TOTALS} {FROM} "
    "GROUP BY flight HAVING COUNT(*) > 0"
)
CHANGING = (
    "CREATE PROJECTION changing WITH (key = 'flight, position') AS SELECT flight, position, "
    f"STRING_AGG(carrier, ',') AS carriers, {TOTALS} {FROM} GROUP BY flight, position"
)


@pytest.mark.parametrize(
    ("statement", "kind", "groups"),
    [(ADDED, AddedOperator, FLIGHTS), (CHANGING, ChangingOperator, ROWS)],
    ids=["added", "changing"],
)
def test_p6_groups_larger_than_memory_are_begun(
    statement: str, kind: type[object], groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = begun(statement, kind)
    assert changes == groups
    monkeypatch.setattr(key_parts, "MOST_PARTS", 1)
    with pytest.raises(TooLarge):
        begun(statement, kind)


def begun(statement: str, kind: type[object]) -> int:
    """Return how many rows there are behind a first round over all facts."""
    tree = tree_of(statement)
    dataflow = Dataflow(tree, memory_bytes=MEMORY)
    try:
        assert [*map(type, dataflow._operators)] == [kind]
        for scan in scans(tree):
            columns = [*(each.name for each in scan.columns), *ORDER]
            dataflow.add(scan, [facts().select(columns)])
        return dataflow.round().num_rows
    finally:
        dataflow.close()
