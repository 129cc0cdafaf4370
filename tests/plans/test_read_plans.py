"""Filtered reads at a store with history: what is rare is found without walking through the rest,
what is frequent is not sorted as a whole.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import psycopg
import pytest

from eventstore.conditions import Query, QueryItem
from eventstore.listing import COUNTED_STREAMS
from eventstore.postgres.migrate import migrate
from eventstore.postgres.queries import query
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import EventFilter, EventPage
from tests.support.store.postgres import Cluster, admin

EVENTS = 150_000
RARE = 40
"""Events at the end of history that have what is rare."""
MEETING = EVENTS - RARE
"""The only event that is an order and has the tag part:1, both of which are frequent."""
FEW_PAGES = 420
"""Pages of 8 kB that a read may touch; the table alone has more than 3,000."""

LOAD = """
INSERT INTO es.events (position, store_id, id, stream, version, category, type, schema_id, data,
                       tags, occurred_at, recorded_at)
    SELECT n, (SELECT store_id FROM es.store), gen_random_uuid(),
           kind || '-' || n % 20000, n / 20000, kind, what, 7, '\\x0000000007', tags, at, at
        FROM generate_series({first}, {last}) AS n,
             LATERAL (SELECT timestamptz '2013-01-01' + n * interval '1 s') AS moment (at),
             LATERAL (SELECT {kind}, {what}, {tags}) AS given (kind, what, tags);
INSERT INTO es.tags (tag, position, category, type)
    SELECT tag, position, category, type FROM es.events, unnest(tags) AS tag
        WHERE position >= {first};
"""


def load(connection: psycopg.Connection, first: int, last: int, **columns: str) -> None:
    connection.execute(LOAD.format(first=first, last=last, **columns).encode())


@pytest.fixture(scope="module")
def history(postgres_cluster: Cluster) -> Iterator[str]:
    """A store with history; statistics were last gathered before the rare events came."""
    name = f"t_{uuid.uuid4().hex[:16]}"
    admin(postgres_cluster, f"CREATE DATABASE {name}")
    dsn = postgres_cluster.dsn(name)
    asyncio.run(migrate(dsn))
    often = {
        "kind": "(ARRAY['order', 'cart'])[n % 2 + 1]",
        "what": "'t' || n % 3",
        "tags": "ARRAY['all', 'part:' || n % 4]",
    }
    rare = {"kind": "'rare'", "what": "'seldom'", "tags": "ARRAY['all', 'once']"}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE es.events SET (autovacuum_enabled = false)")
        load(connection, 1, MEETING - 1, **often)
        once = {"kind": "'order'", "what": "'t0'", "tags": "ARRAY['all', 'part:1']"}
        load(connection, MEETING, MEETING, **once)
        connection.execute("VACUUM ANALYZE es.events, es.tags")
        load(connection, EVENTS - RARE + 1, EVENTS, **rare)
        connection.execute(
            "INSERT INTO es.streams (stream, category)"
            " SELECT stream, category FROM es.events GROUP BY stream, category"
        )
        connection.execute("INSERT INTO es.categories VALUES ('order'), ('cart'), ('rare')")
        connection.execute("ANALYZE es.streams")
    yield dsn
    admin(postgres_cluster, f"DROP DATABASE {name} WITH (FORCE)")


def explained(dsn: str, name: str, **values: object) -> dict[str, Any]:
    """Run a statement and return its plan with what it touched."""
    values = {"after": 0, "up_to": EVENTS, "limit": 1_000} | values
    with psycopg.Connection.connect(
        dsn, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as connection:
        text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) " + query(name).as_bytes()
        row = connection.execute(text, values).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def touched(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize(
    ("name", "values", "index"),
    [
        ("find_by_category", {"category": "rare"}, "events_category"),
        ("find_by_category", {"category": "order"}, "events_category"),
        ("find_by_types", {"types": ["seldom"]}, "events_type"),
        ("find_by_types", {"types": ["t0", "t2", "seldom"]}, "events_type"),
        ("find_by_tag", {"tag": "once"}, "tags_"),
        ("find_by_tag", {"tag": "all"}, "tags_"),
        ("find_by_tag", {"tag": "all", "after": EVENTS // 2}, "tags_"),
        ("find_by_streams", {"streams": ["order-7", "rare-19990"]}, "events_stream_version_key"),
        ("streams_by_prefix", {"prefix": "rare-", "behind": "rare."}, "streams_pkey"),
        (
            "list_streams",
            {"prefix": "", "behind": None, "after": "order-5", "limit": 50},
            "streams_pkey",
        ),
        (
            "list_streams",
            {"prefix": "rare-", "behind": "rare.", "after": "", "limit": 50},
            "streams_pkey",
        ),
        ("find_next", {"after": EVENTS // 2}, "events_pkey"),
        ("read_all", {"after": EVENTS // 2}, "events_pkey"),
        ("read_positions", {"positions": list(range(1, EVENTS, 3_000))}, "events_pkey"),
        (
            "keep_wanted",
            {
                "positions": list(range(1, EVENTS, 3_000)),
                "category": "order",
                "types": ["t1"],
                "tags": ["all"],
                "stream": None,
                "stream_prefix": None,
            },
            "events_pkey",
        ),
    ],
)
def test_each_step_reads_its_index_and_no_more(
    history: str, name: str, values: dict[str, object], index: str
) -> None:
    plan = explained(history, name, **values)
    scans = [node for node in nodes(plan) if "Scan" in node["Node Type"]]
    assert not any(node["Node Type"] == "Seq Scan" for node in scans), plan
    assert any(str(node.get("Index Name", "")).startswith(index) for node in scans), plan
    assert touched(plan) <= FEW_PAGES, plan
    sorted_rows = [n["Plans"][0]["Actual Rows"] for n in nodes(plan) if n["Node Type"] == "Sort"]
    assert all(rows <= 3_000 for rows in sorted_rows), plan


def test_categories_are_counted_up_to_a_limit(history: str) -> None:
    plan = explained(history, "list_categories", limit=COUNTED_STREAMS + 1)
    whole = {n["Relation Name"] for n in nodes(plan) if n["Node Type"] == "Seq Scan"}
    assert whole <= {"categories"}, plan
    assert touched(plan) <= FEW_PAGES, plan


def test_a_generic_plan_lists_streams_by_their_index(history: str) -> None:
    """What a connection prepares does not know its values."""
    text = query("list_streams").as_string()
    for number, name in enumerate(("prefix", "after", "behind", "limit"), start=1):
        text = text.replace(f"%({name})s", f"${number}")
    with psycopg.connect(history, autocommit=True) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE listing (text, text, text, bigint) AS {text}".encode())
        row = connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) EXECUTE listing ('', 'order-5', NULL, 100)"
        ).fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    assert not any(node["Node Type"] == "Seq Scan" for node in nodes(plan)), plan
    # Without the order of the index all streams would be read and sorted.
    assert touched(plan) <= 2 * FEW_PAGES, plan


def read(dsn: str, filter_: EventFilter | Query, *, after: int = 0, limit: int = 100) -> EventPage:
    async def inside() -> EventPage:
        async with PostgresEventStore(dsn) as store:
            if isinstance(filter_, Query):
                return await store.query(filter_, after=after, limit=limit)
            return await store.read_all(after=after, limit=limit, filter_=filter_)

    return asyncio.run(inside())


def item(*types: str, tags: tuple[str, ...] = ()) -> QueryItem:
    return QueryItem(types=types, tags=tags)


ALSO = partial(pytest.param, marks=pytest.mark.matrix)


@pytest.mark.parametrize(
    "wanted",
    [
        EventFilter(category="rare"),
        ALSO(EventFilter(type="seldom")),
        ALSO(EventFilter(tag="once")),
        ALSO(EventFilter(stream_prefix="rare-")),
        ALSO(EventFilter(category="rare", type="seldom", tag="all", stream_prefix="rare-")),
        ALSO(EventFilter(tag="all", type="seldom")),
        ALSO(Query(items=(item("rare.seldom"),))),
        ALSO(Query(items=(item("seldom", tags=("all",)),))),
        Query(items=(item(tags=("all", "once")), item("nowhere"))),
    ],
)
def test_what_is_rare_comes_with_the_first_page(history: str, wanted: EventFilter | Query) -> None:
    page = read(history, wanted)
    assert [e.position for e in page.events] == list(range(EVENTS - RARE + 1, EVENTS + 1))
    assert page.scanned_to == page.head == EVENTS


def test_what_is_nowhere_is_known_at_once(history: str) -> None:
    page = read(history, EventFilter(category="none"))
    assert (page.events, page.scanned_to) == ((), EVENTS)


def test_frequent_things_that_seldom_meet_are_found_page_by_page(history: str) -> None:
    seen, pages, at = [], 0, EVENTS // 4
    while at < EVENTS:
        page = read(history, EventFilter(category="order", tag="part:1"), after=at)
        assert page.scanned_to > at
        seen += [e.position for e in page.events]
        at, pages = page.scanned_to, pages + 1
    assert seen == [MEETING]
    assert pages > 2


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        pytest.param(EventFilter(category="order"), lambda n: n % 2 == 0, marks=pytest.mark.matrix),
        pytest.param(EventFilter(type="t1"), lambda n: n % 3 == 1, marks=pytest.mark.matrix),
        pytest.param(EventFilter(tag="part:2"), lambda n: n % 4 == 2, marks=pytest.mark.matrix),
        (EventFilter(category="cart", type="t1"), lambda n: n % 2 == 1 and n % 3 == 1),
        (EventFilter(stream_prefix="order-1"), lambda n: f"{n % 20_000}"[0] == "1" and n % 2 == 0),
        (EventFilter(stream="order-300"), lambda n: n % 20_000 == 300),
        (EventFilter(stream="order-300", type="t1"), lambda n: n % 20_000 == 300 and n % 3 == 1),
        (EventFilter(stream_prefix="o", tag="part:2"), lambda n: n % 4 == 2),
        (Query(items=(item("t1"), item("order.t2"))), lambda n: n % 3 == 1 or n % 6 == 2),
        (Query(items=(item("order.t2", tags=("part:0",)),)), lambda n: n % 12 == 8),
    ],
)
def test_pages_add_up_to_what_is_wanted(
    history: str, wanted: EventFilter | Query, fits: Any
) -> None:
    """From deep in history, over several pages of different kinds, none is left out."""
    first, last, at = 100_001, 102_000, 100_000
    seen: list[int] = []
    while at < last:
        page = read(history, wanted, after=at, limit=137)
        assert page.scanned_to > at
        seen += [e.position for e in page.events]
        at = page.scanned_to
    assert [n for n in seen if n <= last] == [n for n in range(first, last + 1) if fits(n)]
