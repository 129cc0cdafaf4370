"""Driver: appends while one client asks for a condition that is hard to judge, in one process.

It is run with the packages of one checkout or another: `broad.py DSN SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import uuid

import psycopg

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.postgres.migrate import migrate
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest, EncodedEvent, StreamAppend
from kernel.errors import PenstockError
from kernel.positions import Position
from schemas.wire import frame

WRITERS, TAGGED, ITEMS = 8, 200_000, 16


def request(stream: str, condition: Condition | None = None) -> AppendRequest:
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
    return AppendRequest(appends=(append,), condition=condition)


async def measured(dsn: str, seconds: float) -> dict[str, float]:
    """Return how long plain appends waited, and what asked with the condition did."""
    items = tuple(
        QueryItem(types=(f"t{n}",) if n else (), tags=("even:0", "even:1")) for n in range(ITEMS)
    )
    broad = Condition(query=Query(items=items), after=Position(0))
    waits: list[float] = []
    failed: list[int] = []
    judged: list[float] = []
    async with PostgresEventStore(dsn) as store:
        await store.append(request("order-0"))
        until = time.perf_counter() + seconds

        async def write(number: int) -> None:
            while (begun := time.perf_counter()) < until:
                try:
                    await store.append(request(f"order-{number}"))
                except PenstockError:
                    failed.append(number)
                waits.append(time.perf_counter() - begun)

        async def ask() -> None:
            while (begun := time.perf_counter()) < until:
                with contextlib.suppress(PenstockError):  # It cannot be judged: an answer, too.
                    await store.append(request("order-asked", broad))
                judged.append(time.perf_counter() - begun)

        await asyncio.gather(ask(), *(write(number) for number in range(WRITERS)))
    ordered = sorted(waits)
    return {
        "appends_per_s": (len(waits) - len(failed)) / seconds,
        "failed_appends": float(len(failed)),
        "append_p50_ms": ordered[len(ordered) // 2] * 1000,
        "append_max_ms": ordered[-1] * 1000,
        "condition_max_ms": max(judged) * 1000,
    }


def prepare(dsn: str) -> None:
    """Migrate a database, and give it two tags that are everywhere and never meet."""
    asyncio.run(migrate(dsn))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO es.tags (tag, position, category, type) SELECT 'even:' || n %% 2, n,"
            " 'order', 't' || n %% 17 FROM generate_series(1, %s) AS n",
            (TAGGED,),
        )
        connection.execute("VACUUM ANALYZE es.tags")


if __name__ == "__main__":
    prepare(sys.argv[1])
    print(json.dumps(asyncio.run(measured(sys.argv[1], float(sys.argv[2])))))
