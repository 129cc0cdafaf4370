"""A store that the benchmark has filled is one that the service could have written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from benchmarks.eventstore.inprocess import appending, opened
from benchmarks.eventstore.lines import event_data
from benchmarks.eventstore.seed import EVENTS_PER_STREAM, data_text, preload, seed
from benchmarks.peers.closed_loop import Work

EVENTS = 500


def test_preloaded_events_are_read_and_appended_to(new_database: Callable[[], str]) -> None:
    dsn = new_database()
    seed(dsn)
    preload(dsn, EVENTS, lambda line: None)
    asyncio.run(_read_and_append(dsn))
    with psycopg.connect(dsn) as connection:
        holes = connection.execute(
            "SELECT stream FROM es.events GROUP BY stream "
            "HAVING min(version) <> 0 OR max(version) + 1 <> count(*)"
        ).fetchall()
    assert holes == []


async def _read_and_append(dsn: str) -> None:
    async with opened(dsn) as (store, intake):
        page = await store.read_all(after=0, limit=EVENTS)
        assert [event.position for event in page.events] == list(range(1, EVENTS + 1))
        assert len({event.stream for event in page.events}) == EVENTS // EVENTS_PER_STREAM
        assert await intake.decode(page.events[-1]) == event_data()
        work = Work(line="append", address=dsn, data=data_text(), batch=3)
        assert await appending(work, store, intake)() == 3
        assert await store.head() == EVENTS + 3
        stream = await store.read_stream(
            "order-0", from_version=None, direction="forward", limit=EVENTS
        )
        assert stream.version == EVENTS_PER_STREAM - 1 + 3
