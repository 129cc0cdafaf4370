"""What a group costs does not grow with the store, nor with what it has behind it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from eventstore.postgres.queries import query
from tests.support.store.groups import world
from tests.support.store.postgres import Cluster, database

EVENTS = 200_000
FILL = f"""
INSERT INTO es.events (position, store_id, id, stream, version, category, type, schema_id, data,
        occurred_at, recorded_at)
    SELECT n, store_id, md5(n::text)::uuid, 'order-' || n, 0, 'order', 'placed', 1, '\\x00',
           now(), now()
    FROM es.store, generate_series(1, {EVENTS}) n;
INSERT INTO es.deliveries (subscription, position, event_id, stream, due_at, deliveries)
    SELECT name, n, md5(n::text)::uuid, 'order-' || n, now(), 0
    FROM es.subscriptions, generate_series({EVENTS} - 199, {EVENTS}) n;
INSERT INTO es.parked (subscription, position, event_id, stream, deliveries, reason, parked_at)
    SELECT name, n, md5(n::text)::uuid, 'order-' || n, 3, 'no', now()
    FROM es.subscriptions, generate_series(1, 10000) n;
UPDATE es.rounds SET scanned_to = {EVENTS}, parked = 10000;
"""
MOST_BLOCKS = {
    "group_lock": 220,  # One for each of the 200 unfinished events, at worst.
    "group_lock_named": 100,  # They are looked through by position.
    "group_events": 60,
    "group_settled": 60,
    "group_unpark": 60,
    "group_parked": 30,
    "group_standings": 400,
}
"""Blocks of 8 KiB that one call may touch; the events alone fill some 4,000."""


@pytest.fixture(scope="module")
def crowded(postgres_cluster: Cluster) -> Iterator[str]:
    """A store with 200,000 events and 20 groups that have 10,000 events parked each."""
    with database(postgres_cluster) as dsn:

        async def groups() -> None:
            async with world(dsn) as w:
                for number in range(20):
                    await w.create(f"g{number}")

        asyncio.run(groups())
        with psycopg.connect(dsn, autocommit=True) as connection:
            for statement in FILL.strip().split(";\n"):
                connection.execute(statement.encode())
            connection.execute(
                "VACUUM ANALYZE es.events, es.deliveries, es.parked, es.subscriptions, es.rounds"
            )
        yield dsn


def blocks(node: dict[str, Any]) -> int:
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def scans(node: dict[str, Any]) -> list[str]:
    here = [node["Relation Name"]] if node["Node Type"] == "Seq Scan" else []
    return here + [name for child in node.get("Plans", ()) for name in scans(child)]


@pytest.mark.parametrize("name", list(MOST_BLOCKS))
def test_a_group_touches_little_however_much_is_behind_it(crowded: str, name: str) -> None:
    values = {
        "group": "g7",
        "ids": [uuid.UUID(int=n) for n in range(5)],
        "positions": [1, 500_000, EVENTS],
        "started_after": 0,
        "scanned_to": EVENTS,
        "after": 5_000,
        "limit": 10,
    }
    statements = [text for text in query(name).as_string().split(";") if "WHERE" in text]
    with psycopg.Connection.connect(crowded, cursor_factory=psycopg.ClientCursor) as connection:
        for statement in statements:
            explain = b"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) " + statement.encode()
            row = connection.execute(explain, values).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            assert blocks(plan) <= MOST_BLOCKS[name], json.dumps(plan, indent=1)
            # The list of groups is read whole: there are 200 at most.
            whole = {"subscriptions", "rounds", "store"}
            assert set(scans(plan)) <= whole, json.dumps(plan, indent=1)
        connection.rollback()


def test_next_takes_and_finishes_without_reading_the_store(crowded: str) -> None:
    """All of `next` and `ack`, counted by the server: rows read from events by any way."""

    async def read_so_far(connection: psycopg.AsyncConnection[Any]) -> tuple[int, int]:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        cursor = await connection.execute(
            "SELECT seq_scan, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
            " FROM pg_stat_user_tables WHERE relid = 'es.events'::regclass"
        )
        scans_, rows = await cursor.fetchone() or (0, 0)
        return int(scans_), int(rows)

    async def check() -> None:
        async with await psycopg.AsyncConnection.connect(crowded, autocommit=True) as connection:
            before = await read_so_far(connection)
            async with world(crowded) as w:
                taken = await w.take(10, name="g3")
                assert len(taken) == 10
                await w.groups.ack("g3", [id_ for id_, _ in taken])
            after = await read_so_far(connection)
            assert after[0] == before[0]
            assert after[1] - before[1] < 1_000

    asyncio.run(check())
