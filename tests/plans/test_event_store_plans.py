"""No read of the event store walks through a whole table."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest

from eventstore.postgres.commit import PLANNING
from eventstore.postgres.queries import query
from eventstore.postgres.store import PostgresEventStore
from tests.contracts.events import event, request, to

VALUES = {
    "stream": "order-7",
    "from_version": 3,
    "floor": 0,
    "limit": 10,
    "after": 2_000,
    "up_to": 2_100,
    "category": "order",
    "type": None,
    "stream_prefix": "order",
    "id": uuid.UUID(int=1),
    "streams": ["order-7", "order-8"],
    "ids": [uuid.UUID(int=1)],
}


async def fill(dsn: str) -> None:
    async with PostgresEventStore(dsn) as store:
        for block in range(20):
            appends = [to(f"order-{block * 100 + i}") for i in range(100)]
            await store.append(request(*appends))
            await store.append(request(to("order-7", [event() for _ in range(150)])))


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("read_stream_forward", "events_stream_version_key"),
        ("read_stream_backward", "events_stream_version_key"),
        ("read_all", "events_pkey"),
        ("read_event", "events_id_key"),
        ("heads", "streams_p"),
    ],
)
def test_reads_use_their_index(postgres_dsn: str, name: str, index: str) -> None:
    asyncio.run(fill(postgres_dsn))
    with psycopg.Connection.connect(
        postgres_dsn, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as connection:
        connection.execute("ANALYZE es.events, es.streams")
        rows = connection.execute(b"EXPLAIN " + query(name).as_bytes(), VALUES).fetchall()
    plan = "\n".join(line for (line,) in rows)
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan


def test_a_large_group_looks_ids_up_by_index(postgres_dsn: str) -> None:
    """Never analysed, and more ids than the planner thinks an index is good for."""
    asyncio.run(fill(postgres_dsn))
    ids = [uuid.uuid4() for _ in range(2_000)]
    statement = b"EXPLAIN SELECT * FROM es.events WHERE id = ANY(%s::uuid[])"
    with psycopg.Connection.connect(
        postgres_dsn, autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as connection:
        connection.execute(PLANNING.encode())
        plan = str(connection.execute(statement, (ids,)).fetchall())
    assert "events_id_key" in plan
    assert "Seq Scan" not in plan
