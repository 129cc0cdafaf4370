"""Driver: the store's Python API, callers being tasks of the process that commits for them.

data -> NewEvent -> Intake.encode -> PostgresEventStore.append
PostgresEventStore.read_all -> RecordedEvent -> Intake.decode
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import uvloop

from benchmarks.eventstore.seed import CATEGORY, TYPE
from benchmarks.peers.closed_loop import Tally, Work, report, work
from eventstore.codecs import Codecs
from eventstore.ids import new_id
from eventstore.intake import Intake
from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest, StreamAppend
from schemas.records import NewEvent
from schemas.registry import MemoryRegistry

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PAGE = 1_000
_OPEN_S = 30.0
AsyncCall = Callable[[], Awaitable[int]]


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[tuple[PostgresEventStore, Intake]]:
    """Open a store whose schemas are kept, and wait until it appends."""
    codecs = Codecs()
    async with PostgresEventStore(dsn, same_data=codecs.same_data) as store:
        intake = Intake(MemoryRegistry(), PostgresSchemaCache(store), "strict", codecs)
        await intake.load()
        async with asyncio.timeout(_OPEN_S):
            while store.appender.trouble is not None:
                await asyncio.sleep(0.01)
        yield store, intake


def appending(asked: Work, store: PostgresEventStore, intake: Intake) -> AsyncCall:
    data: dict[str, Any] = json.loads(asked.data)
    numbers = itertools.count()

    async def call() -> int:
        events = tuple(
            NewEvent(id=new_id(), type=TYPE, data=data, metadata={}, tags=(), occurred_at=None)
            for _ in range(asked.batch)
        )
        append = StreamAppend(
            stream=f"{CATEGORY}-{next(numbers) % asked.streams}",
            category=CATEGORY,
            expected="any",
            events=await intake.encode(CATEGORY, events),
        )
        await store.append(AppendRequest(appends=(append,)))
        return asked.batch

    return call


def reading(store: PostgresEventStore, intake: Intake) -> AsyncCall:
    after = 0

    async def call() -> int:
        nonlocal after
        page = await store.read_all(after=after, limit=PAGE)
        for event in page.events:
            await intake.decode(event)
        after = 0 if page.scanned_to >= page.head else page.scanned_to
        return len(page.events)

    return call


async def run_tasks(asked: Work, call: AsyncCall) -> dict[str, float]:
    """Let `asked.clients` tasks call for the asked time, as `closed_loop.run_threads` does."""
    tally = Tally()
    begun = time.perf_counter()
    measured_from, until = begun + asked.warm_s, begun + asked.warm_s + asked.seconds

    async def loop() -> None:
        while (sent := time.perf_counter()) < until:
            events = await call()
            answered = time.perf_counter()
            tally.all_events += events
            if sent >= measured_from and answered <= until:
                tally.events += events
                tally.latencies.append(answered - sent)

    cpu = time.process_time()
    await asyncio.gather(*(loop() for _ in range(asked.clients)))
    tally.cpu_s = time.process_time() - cpu
    return tally.figures(asked.seconds)


async def drive(asked: Work) -> dict[str, float]:
    """Do the asked work."""
    async with opened(asked.address) as (store, intake):
        call = appending(asked, store, intake) if asked.line == "append" else reading(store, intake)
        return await run_tasks(asked, call)


if __name__ == "__main__":
    report(uvloop.run(drive(work())))
