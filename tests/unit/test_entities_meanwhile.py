"""A stream loses its beginning, or all of it, while its state is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from eventstore.deciders.tasks import MakeSnapshot
from eventstore.store import Direction, StreamPage
from kernel.errors import NotFound, Unavailable
from tests.support.store.deciding import STREAM, HereWorkers, counter, world
from tests.support.store.memory import MemoryEventStore

ALL = 10**9


class ShrinkingStore(MemoryEventStore):
    """A store that hides the beginning of every stream, more of it at certain reads."""

    def __init__(self) -> None:
        super().__init__()
        self.hide: Mapping[int, int] = {}
        self.reads = 0
        self._hidden = 0

    async def read_stream(
        self, stream: str, *, from_version: int | None, direction: Direction, limit: int
    ) -> StreamPage:
        """Return part of what is left of a stream."""
        self.reads += 1
        self._hidden = self.hide.get(self.reads, self._hidden)
        if self._hidden == ALL:
            raise NotFound(f"stream {stream} has no events")
        first = max(from_version or 0, self._hidden)
        return await super().read_stream(
            stream, from_version=first, direction=direction, limit=limit
        )


@pytest.mark.parametrize(
    ("hide", "steps"),
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({1: 2}, (2, 3, 4, 5)),
        # Behind the look at the first event, before those behind the snapshot.
        ({2: 5}, (5,)),
        ({2: 6}, ()),
        ({2: ALL}, ()),
    ],
)
def test_the_state_is_that_of_what_is_left(hide: dict[int, int], steps: tuple[int, ...]) -> None:
    async def check() -> None:
        async with world() as made, ShrinkingStore() as store:
            made = replace(made, store=store)
            entities = made.entities(counter(every=3))
            await made.append(*[{"by": by} for by in range(4)])
            await entities.load("counter", STREAM)
            ((snapshot,),) = [each.values() for each in made.snapshots.kept.values()]
            assert snapshot.version == 3
            await made.append({"by": 4}, {"by": 5})
            store.reads, store.hide = 0, hide
            state = await entities.frozen(await entities.load("counter", STREAM))
            assert state["steps"] == list(steps)

    asyncio.run(check())


def test_a_stream_that_never_stands_still_is_not_folded_for_ever() -> None:
    async def check() -> None:
        async with world() as made, ShrinkingStore() as store:
            made = replace(made, store=store)
            entities = made.entities(counter(every=0))
            await made.append(*[{"by": 1}] * 2_000)
            await made.append(*[{"by": 1}] * 2_000)
            # Each second page is gone when it is read.
            store.hide = {2 * n: 600 * n for n in range(1, 20)}
            with pytest.raises(Unavailable, match="too quickly"):
                await entities.load("counter", STREAM)

    asyncio.run(check())


def test_an_earlier_state_has_a_snapshot_made_only_where_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[object] = []
    run = HereWorkers.run

    async def noted(workers: HereWorkers, task: Any) -> Any:
        made.extend([task] * isinstance(task, MakeSnapshot))
        return await run(workers, task)

    monkeypatch.setattr(HereWorkers, "run", noted)

    async def check() -> None:
        async with world() as there:
            entities = there.entities(counter(every=3))
            for _ in range(8):
                await there.append(*[{"by": 1}] * 50)
                await entities.load("counter", STREAM)
            for version, more in ((20, 1), (20, 0), (30, 0), (390, 1)):
                before = len(made)
                entity = await entities.load("counter", STREAM, version=version)
                assert (await entities.frozen(entity))["total"] == version + 1
                assert len(made) == before + more, version

    asyncio.run(check())
