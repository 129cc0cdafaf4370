"""Driver: what the store's own rows cost when their old versions cannot be removed, in one process.

It is run with the packages of one checkout or another: `superseded.py DSN VERSIONS …`. The versions
are made by statements that change the rows as the store of that checkout does, but at once.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg

from eventstore.groups.model import Terms
from eventstore.postgres.groups import PostgresSubscriptionGroups
from eventstore.postgres.migrate import migrate
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest, EncodedEvent, EventFilter, StreamAppend
from schemas.wire import frame

TIMES = 30
BUSY, OTHER, GROUP = "order-busy", "order-other", "projector"
TERMS = Terms(ack_timeout=timedelta(minutes=5))
# The place of the last version is known, so that making the next one searches for nothing.
_CHANGED = """
DO $$
DECLARE
    place tid;
BEGIN
    SELECT ctid INTO place FROM {table} WHERE {key};
    FOR n IN 1..{versions} LOOP
        UPDATE {table} SET {column} = {column} WHERE ctid = place RETURNING ctid INTO place;
    END LOOP;
END
$$
"""
_ROUNDS = """
DO $$
BEGIN
    FOR n IN 1..{versions} LOOP
        INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
            SELECT subscription, number + 1, scanned_to, finished_to, parked, redelivered
            FROM es.rounds WHERE subscription = '{group}' AND number = n - 1 + {before};
        DELETE FROM es.rounds WHERE subscription = '{group}' AND number = n - 1 + {before};
    END LOOP;
END
$$
"""
_DELIVERED = """
INSERT INTO es.deliveries (subscription, position, event_id, stream, deliveries, due_at)
    SELECT '{group}', position, id, stream, 1, now() FROM es.events
        WHERE position <= {done} AND position > {after};
DELETE FROM es.deliveries WHERE subscription = '{group}' AND position <= {done}
"""
_EVENTS = """
INSERT INTO es.events (position, store_id, id, stream, version, category, type, schema_id, data,
                       occurred_at, recorded_at)
    SELECT head.position + n, store_id, gen_random_uuid(), '{stream}', last.version + n, 'order',
           'placed', 1, '\\x000000000178', now(), now()
    FROM es.store, generate_series(1, {versions}) AS n,
         (SELECT max(position) AS position FROM es.events) AS head,
         (SELECT max(version) AS version FROM es.events WHERE stream = '{stream}') AS last
"""


def request(stream: str) -> AppendRequest:
    event = EncodedEvent(
        id=uuid.uuid4(),
        type="placed",
        schema_id=1,
        data=frame(1, b"x"),
        metadata={},
        tags=(),
        occurred_at=None,
    )
    append = StreamAppend(stream=stream, category="order", expected="any", events=(event,))
    return AppendRequest(appends=(append,), condition=None)


async def p50_ms(call: Callable[[], Awaitable[object]]) -> float:
    """Return the median of a few calls, after one that warms up."""
    waits = []
    await call()
    for _ in range(TIMES):
        begun = time.perf_counter()
        await call()
        waits.append(time.perf_counter() - begun)
    return sorted(waits)[TIMES // 2] * 1000


def supersede(connection: psycopg.Connection, versions: int) -> None:
    """Leave so many versions more behind as appends and rounds of one event each would."""

    def has(table: str, column: str) -> bool:
        return bool(
            connection.execute(
                "SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s"
                " AND NOT attisdropped",
                (table, column),
            ).fetchall()
        )

    def run(text: str, **values: object) -> None:
        connection.execute(text.format(versions=versions, group=GROUP, **values).encode())

    (before,) = connection.execute("SELECT max(position) FROM es.events").fetchone() or (0,)
    run(_EVENTS, stream=BUSY)
    if has("es.streams", "version"):
        run(_CHANGED, table="es.streams", key=f"stream = '{BUSY}'", column="version")
        connection.execute(
            "UPDATE es.streams SET version = (SELECT max(version) FROM es.events"
            " WHERE events.stream = streams.stream) WHERE stream = %s",
            (BUSY,),
        )
    run(_DELIVERED, done=before + versions, after=before)
    if has("es.subscriptions", "scanned_to"):
        run(_CHANGED, table="es.subscriptions", key=f"name = '{GROUP}'", column="scanned_to")
        connection.execute("UPDATE es.subscriptions SET scanned_to = %s", (before + versions,))
    else:
        number = connection.execute("SELECT max(number) FROM es.rounds").fetchone() or (0,)
        run(_ROUNDS, before=number[0])
        connection.execute(
            "UPDATE es.rounds SET scanned_to = %s, finished_to = %s",
            (before + versions, before + versions),
        )


async def measured(dsn: str) -> dict[str, float]:
    """Return what an append and a round take now."""
    async with (
        PostgresEventStore(dsn) as store,
        PostgresSubscriptionGroups(dsn, store=store, head=store.feed_head) as groups,
    ):
        await groups.create(GROUP, filter_=EventFilter(), start=None, terms=TERMS)
        await store.append(request(BUSY))

        async def round_() -> None:
            await store.append(request(OTHER))
            given = await groups.next(GROUP, consumer="c", limit=10)
            await groups.ack(GROUP, [each.event.id for each in given.deliveries])

        return {
            "append_p50_ms": await p50_ms(lambda: store.append(request(OTHER))),
            "append_busy_stream_p50_ms": await p50_ms(lambda: store.append(request(BUSY))),
            "append_next_ack_p50_ms": await p50_ms(round_),
        }


def main(dsn: str, steps: list[int]) -> dict[str, float]:
    """Measure at each number of versions, while one snapshot from before stays open."""
    asyncio.run(migrate(dsn))
    figures = {f"at_0_{name}": value for name, value in asyncio.run(measured(dsn)).items()}
    with psycopg.connect(dsn) as old, psycopg.connect(dsn, autocommit=True) as connection:
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        made = 0
        for versions in steps:
            supersede(connection, versions - made)
            made = versions
            connection.execute("ANALYZE es.events, es.deliveries, es.subscriptions, es.streams")
            found = asyncio.run(measured(dsn))
            figures |= {f"at_{versions}_{name}": value for name, value in found.items()}
    return figures


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], [int(each) for each in sys.argv[2:]])))
