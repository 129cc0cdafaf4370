"""Lineage by column, as `projection explain` tells it."""

from __future__ import annotations

import pytest

from projections.sql.plans.explain import document, page
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import catalog_from

FLIGHT = {"flight": "STRING", "origin": "STRING", "delay": "INT", "occurred_at": "TIMESTAMP"}
CATALOG = catalog_from(
    {
        "streams": {
            "events.flight": {"columns": FLIGHT, "event_time": "occurred_at"},
            "events.left": {"columns": {"flight": "STRING", "gate": "STRING"}},
        },
        "latests": {
            "a.airport": {"columns": {"origin": "STRING", "town": "STRING"}, "key": ["origin"]}
        },
    }
)


def planned(select: str, key: str) -> Plan:
    text = f"CREATE PROJECTION p WITH (key = '{key}') AS {select}"
    return plan(parse_script(text).projections[0], CATALOG)


@pytest.mark.parametrize(
    ("select", "key", "origins"),
    [
        (
            "SELECT flight, UPPER(origin) AS o, 1 AS one FROM STREAM events.flight WHERE delay > 3",
            "flight",
            {"flight": ["events.flight.flight"], "o": ["events.flight.origin"], "one": []},
        ),
        (
            "SELECT origin, window_start, COUNT(*) AS n, AVG(delay) AS mean FROM STREAM "
            "events.flight GROUP BY origin, TUMBLE(occurred_at, '1 hour')",
            "origin, window_start",
            {
                "origin": ["events.flight.origin"],
                "window_start": ["events.flight.occurred_at"],
                "n": [],
                "mean": ["events.flight.delay"],
            },
        ),
        (
            "SELECT q.flight, q.most + LENGTH(t.town) AS x FROM (SELECT flight, origin, MAX(delay) "
            "AS most FROM STREAM events.flight GROUP BY flight, origin) q JOIN a.airport t ON "
            "t.origin = q.origin",
            "flight",
            {
                "flight": ["events.flight.flight"],
                "x": ["a.airport.town", "events.flight.delay"],
            },
        ),
        (
            "SELECT flight AS f FROM STREAM events.flight UNION ALL "
            "SELECT gate FROM STREAM events.left",
            "f",
            {"f": ["events.flight.flight", "events.left.gate"]},
        ),
        (
            "SELECT flight, SUM(delay) OVER (PARTITION BY origin ORDER BY occurred_at) AS s "
            "FROM STREAM events.flight",
            "flight",
            {"flight": ["events.flight.flight"], "s": ["events.flight.delay"]},
        ),
    ],
)
def test_each_column_is_told_with_what_it_is_computed_from(
    select: str, key: str, origins: dict[str, list[str]]
) -> None:
    found = planned(select, key)
    columns = document(found)["columns"]
    assert isinstance(columns, list)
    assert {each["name"]: each["from"] for each in columns} == origins
    for name, read in origins.items():
        line = next(each for each in page(found).splitlines() if each.startswith(f"    {name}  "))
        assert line.endswith(f"  from {', '.join(read) or 'no column'}")
