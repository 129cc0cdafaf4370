"""How near to the inputs a slice of the keys is chosen: it is not computed from all rows."""

from __future__ import annotations

import pytest

from projections.sql.operators.tree import Join, Map, Node, Scan, Windowed
from projections.sql.rendering.batch import satisfying, whole
from projections.sql.rendering.duckdb_text import DuckText
from replay.carried_keys import parted, sliceable
from tests.support.oracles.sql_world import planned

FLIGHTS = "STREAM events.flight.departed"
COUNTED = f"(SELECT carrier, COUNT(*) AS n FROM {FLIGHTS} GROUP BY carrier)"


def nodes_of(query: str, key: str) -> list[tuple[type[Node], tuple[str, ...]]]:
    plan = planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}")
    names = sliceable(plan)
    assert names
    return [
        (type(node), tuple(c.name for c in columns)) for node, columns in parted(plan.tree, names)
    ]


@pytest.mark.parametrize(
    ("query", "key", "nodes"),
    [
        pytest.param(
            f"SELECT flight, delay FROM {FLIGHTS}", "flight", [(Scan, ("flight",))], id="newest"
        ),
        pytest.param(
            f"SELECT carrier AS c, SUM(delay) AS d FROM {FLIGHTS} GROUP BY carrier",
            "c",
            [(Scan, ("carrier",))],
            id="a group by another name",
        ),
        pytest.param(
            f"SELECT upper(carrier) AS c, SUM(delay) AS d FROM {FLIGHTS} GROUP BY upper(carrier)",
            "c",
            [(Map, None)],
            id="a group by what is computed",
        ),
        pytest.param(
            f"SELECT carrier, window_start, COUNT(*) AS n FROM {FLIGHTS} "
            "GROUP BY carrier, TUMBLE(occurred_at, '1 day')",
            "carrier, window_start",
            [(Windowed, None)],
            id="windows",
        ),
        pytest.param(
            f"SELECT carrier, window_start, window_end, COUNT(*) AS n FROM {FLIGHTS} "
            "GROUP BY carrier, SESSION(occurred_at, '2 days')",
            "carrier, window_start",
            [(Scan, ("carrier",))],
            id="sessions",
        ),
        pytest.param(
            f"SELECT carrier, began_at, n FROM {FLIGHTS} MATCH_RECOGNIZE (PARTITION BY carrier "
            "ORDER BY occurred_at MEASURES FIRST(a.occurred_at) AS began_at, COUNT(*) AS n "
            "PATTERN (a b+) WITHIN INTERVAL 7 DAYS DEFINE b AS b.delay > PREV(b.delay)) found",
            "carrier, began_at",
            [(Scan, ("carrier",))],
            id="a pattern",
        ),
        pytest.param(
            f"SELECT f.carrier, f.n, m.n AS other FROM {COUNTED} f JOIN {COUNTED} m "
            "ON f.carrier = m.carrier",
            "carrier",
            [(Scan, ("carrier",)), (Scan, ("carrier",))],
            id="both sides of a join that equates the key",
        ),
        pytest.param(
            f"SELECT f.flight, m.n AS other FROM {FLIGHTS} f LEFT JOIN {COUNTED} m "
            "ON f.carrier = m.carrier",
            "flight",
            [(Scan, ("flight",))],
            id="one side of a join that equates something else",
        ),
        pytest.param(
            f"SELECT f.carrier, m.carrier AS other, f.n FROM {COUNTED} f JOIN {COUNTED} m "
            "ON f.n = m.n",
            "carrier, other",
            [(Join, None)],
            id="a key of both sides",
        ),
        pytest.param(
            f"SELECT flight, delay FROM {FLIGHTS} UNION ALL SELECT flight, delay FROM {FLIGHTS}",
            "flight",
            [(Scan, ("flight",)), (Scan, ("flight",))],
            id="all inputs of a union",
        ),
    ],
)
def test_a_condition_on_the_key_is_as_near_to_the_inputs_as_can_be(
    query: str, key: str, nodes: list[tuple[type[Node], tuple[str, ...] | None]]
) -> None:
    found = nodes_of(query, key)
    assert [node for node, _ in found] == [node for node, _ in nodes]
    for (_, columns), (_, wanted) in zip(found, nodes, strict=True):
        assert wanted is None or columns == wanted


def test_rows_of_a_part_are_chosen_where_they_are_read() -> None:
    plan = planned(
        "CREATE PROJECTION p WITH (key = 'carrier') AS "
        f"SELECT carrier, COUNT(*) AS n FROM {FLIGHTS} GROUP BY carrier"
    )
    (node, _), *more = parted(plan.tree, sliceable(plan))
    assert not more
    text = whole(plan.tree, DuckText(), {node: satisfying(node, "this = 1", DuckText())})
    assert isinstance(node, Scan)
    assert text.index("GROUP BY") > text.index("WHERE this = 1") > text.index(node.view)
