"""How much of a stream is read for a state."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from eventstore.store import Direction, StreamPage
from tests.support.store.deciding import STREAM, counter, world
from tests.support.store.memory import MemoryEventStore


class CountingStore(MemoryEventStore):
    """A store that counts the events that it gives."""

    given = 0

    async def read_stream(
        self, stream: str, *, from_version: int | None, direction: Direction, limit: int
    ) -> StreamPage:
        """Return part of a stream."""
        page = await super().read_stream(
            stream, from_version=from_version, direction=direction, limit=limit
        )
        self.given += len(page.events)
        return page


def test_a_state_at_a_time_does_not_read_all_that_came_later() -> None:
    async def check() -> None:
        async with world() as made, CountingStore() as store:
            made = replace(made, store=store)
            entities = made.entities(counter(every=100))
            await made.append(*[{"by": 1}] * 300)
            await entities.load("counter", STREAM)
            for _ in range(400):
                await made.append({"by": 1})
            for version in (310, 410):
                moment = (await entities.load("counter", STREAM, version=version)).recorded_at
                store.given = 0
                entity = await entities.load("counter", STREAM, at=moment)
                assert entity.version == version
                # Of 400 behind the snapshot, and one to see that the stream begins as before.
                assert store.given <= 2 * (version - 299) + 51

    asyncio.run(check())
