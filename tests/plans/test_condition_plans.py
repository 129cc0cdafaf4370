"""A condition is a step into an index, even when one tag has every event of the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import psycopg
import pytest

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.postgres.commit import PLANNING
from eventstore.postgres.matching import BUDGET_BEFORE, GAVE_UP, probes_of
from eventstore.postgres.queries import query
from eventstore.store import AppendRequest
from kernel.positions import Position
from tests.support.store.postgres import Cluster, database

EVENTS = 100_000
PAGES = 60
"""What a probe may touch: a few index levels, in a store whose index on tags has thousands."""

FILL = f"""
INSERT INTO es.categories VALUES ('order'), ('cart'), ('club');
ALTER TABLE es.events DISABLE TRIGGER USER;
INSERT INTO es.events (position, store_id, id, stream, version, category, type, schema_id, data,
                       tags, occurred_at, recorded_at)
    SELECT n, store_id, gen_random_uuid(), 'order-' || n, 0, 'order',
           CASE WHEN n = 5 THEN 'rare' ELSE 'placed' END, 1, '\\x00',
           ARRAY['all', 'half:' || n % 2, 'one:' || n], now(), now()
        FROM generate_series(1, {EVENTS}) AS n, es.store;
INSERT INTO es.tags (tag, position, category, type)
    SELECT tag, position, category, type FROM es.events, unnest(tags) AS tag;
"""


Connect = Callable[[str], psycopg.Connection[Any]]


@pytest.fixture(scope="module")
def stores(postgres_cluster: Cluster) -> Iterator[Connect]:
    """Make each large store once, whatever the order of tests: a fixture with parameters is made
    again each time that another one was used in between."""
    with ExitStack() as after:

        @cache
        def store(known: str) -> psycopg.Connection[Any]:
            dsn = after.enter_context(database(postgres_cluster))
            connection = after.enter_context(
                psycopg.Connection.connect(
                    dsn, autocommit=True, cursor_factory=psycopg.ClientCursor
                )
            )
            connection.execute("ALTER TABLE es.tags SET (autovacuum_enabled = off)")
            connection.execute("ALTER TABLE es.events SET (autovacuum_enabled = off)")
            connection.execute(FILL.encode())
            if known == "analysed":
                connection.execute("VACUUM ANALYZE es.tags, es.events")
            connection.execute(PLANNING.encode())
            return connection

        yield store


@pytest.fixture(params=["analysed", "never analysed"])
def connection(request: pytest.FixtureRequest, stores: Connect) -> psycopg.Connection[Any]:
    """A large store, with the writer's settings; the planner knows its size or has no idea."""
    return stores(request.param)


def asking(types: tuple[str, ...], tags: tuple[str, ...], after: int) -> Condition:
    query = Query(items=(QueryItem(types=types, tags=tags),))
    return Condition(query=query, after=Position(after))


CASES: list[tuple[tuple[str, ...], tuple[str, ...], int, int | None]] = [
    ((), ("all",), EVENTS - 1, EVENTS),
    ((), ("all",), EVENTS, None),
    ((), ("all",), 0, EVENTS),
    ((), ("one:7",), 0, 7),
    ((), ("absent",), 0, None),
    (("placed",), ("all",), 0, EVENTS),
    (("rare",), ("all",), 0, 5),
    (("rare",), ("all",), 5, None),
    (("order.rare",), ("all",), 0, 5),
    (("absent",), ("all",), 0, None),
    ((), ("all", "one:9"), 0, 9),
    ((), ("one:9", "all"), 9, None),
    ((), ("all", "half:1"), 0, EVENTS - 1),
    ((), ("one:8", "half:1"), 0, None),
    (("rare",), ("all", "half:1"), 0, 5),
    (("rare",), (), 0, 5),
    (("order.rare",), (), 5, None),
    (("cart.rare",), (), 0, None),
    (("cart.rare",), ("all", "half:1"), 0, None),
    (("cart.placed",), (), EVENTS - 10, None),
    (("placed",), (), EVENTS, None),
]


def test_a_condition_touches_a_few_pages(connection: psycopg.Connection[Any]) -> None:
    for types, tags, after, newest in CASES:
        condition = asking(types, tags, after)
        probes = probes_of([AppendRequest(appends=(), condition=condition)])
        assert probes is not None
        text = query("match_conditions").as_bytes()
        # Plans of functions are made on first use: what a writer does all day is what counts.
        values = {"walks": probes.json.decode(), "budget": BUDGET_BEFORE}
        rows = connection.execute(text, values).fetchall()
        assert probes.matched(rows) == {condition: newest}, (types, tags, after)
        explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text
        (plan,) = connection.execute(explain, values).fetchone() or ({},)
        top = plan[0]["Plan"]
        touched = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        assert touched <= PAGES, (types, tags, after, json.dumps(plan, indent=1))
        assert '"Seq Scan"' not in json.dumps(plan), (types, tags, after)


@pytest.mark.parametrize(
    ("types", "tags"),
    [((), ("half:0", "half:1")), (("cart.placed",), ()), (("cart.placed",), ("all",))],
    ids=["tags that never meet", "type of another category", "the same with a tag"],
)
def test_what_nearly_matches_everywhere_is_given_up(
    connection: psycopg.Connection[Any], types: tuple[str, ...], tags: tuple[str, ...]
) -> None:
    probes = probes_of([AppendRequest(appends=(), condition=asking(types, tags, 0))])
    assert probes is not None
    rows = connection.execute(
        query("match_conditions").as_bytes(),
        {"walks": probes.json.decode(), "budget": BUDGET_BEFORE},
    ).fetchall()
    assert rows == [(0, GAVE_UP)]
