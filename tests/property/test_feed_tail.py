"""Feeds that share a memory of the newest events get what each would have read by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.feed import CaughtUp, FeedReach, Head, Pages, diverged, follow
from eventstore.store import EventFilter, EventPage
from eventstore.tail import FRESH_S, Tail
from kernel.errors import StoreDiverged
from kernel.positions import Position
from schemas.records import RecordedEvent
from tests.contracts.events import event, request, to
from tests.support.store.memory import MemoryEventStore

FILTERS = (
    EventFilter(),
    EventFilter(category="cart"),
    EventFilter(type="paid"),
    EventFilter(type="order.paid"),
    EventFilter(stream="order-1"),
    EventFilter(stream_prefix="order-"),
    EventFilter(tag="red"),
)


class CountedPages:
    """A store that counts how often it is read."""

    def __init__(self, store: Pages) -> None:
        self.store = store
        self.reads = self.asked = 0
        self.broken: Exception | None = None

    async def head(self) -> Position:
        return await self.store.head()

    async def read_all(
        self, *, after: int, limit: int, filter_: EventFilter, up_to: Position | None = None
    ) -> EventPage:
        self.reads += 1
        self.asked += up_to is None
        await asyncio.sleep(0)
        if self.broken is not None:
            raise self.broken
        return await self.store.read_all(after=after, limit=limit, filter_=filter_)


@dataclass(slots=True)
class World:
    """A store, its shared memory, and what was rendered."""

    store: MemoryEventStore
    pages: CountedPages
    rendered: Counter[int]
    tail: Tail

    @classmethod
    def over(cls, store: MemoryEventStore, max_bytes: int) -> World:
        rendered: Counter[int] = Counter()

        async def render(recorded: RecordedEvent) -> bytes:
            rendered[recorded.position] += 1
            return b"%d" % recorded.position

        pages = CountedPages(store)
        tail = Tail(pages, store.feed_head, max_bytes=max_bytes, render=render)
        return cls(store, pages, rendered, tail)

    async def followed(self, after: int, filter_: EventFilter, count: int) -> list[bytes]:
        """Return the first items of a feed, until it has given so many events."""
        place = FeedReach.at(Position(after))
        feed = follow(self.tail, self.store.feed_head, place=place, filter_=filter_, idle_s=60)
        found: list[bytes] = []
        caught_up = 0
        async for items in feed:
            for item in items:
                if isinstance(item, RecordedEvent):
                    found.append(await self.tail.document(item))
                caught_up += isinstance(item, CaughtUp)
            if len(found) >= count and caught_up:
                break
        await feed.aclose()
        assert caught_up == 1
        return found


async def appended(store: MemoryEventStore, stream: str, type_: str, tag: str, body: bytes) -> None:
    await store.append(request(to(stream, [event(body, type_=type_, tags=(tag,))])))


EVENTS = st.tuples(
    st.sampled_from(["order-1", "order-2", "cart-1"]),
    st.sampled_from(["paid", "placed"]),
    st.sampled_from(["red", "blue"]),
    st.sampled_from([b"x", b"y" * 3_000]),
)


@given(
    before=st.lists(EVENTS, max_size=12),
    later=st.lists(EVENTS, max_size=12),
    readers=st.lists(
        st.tuples(st.integers(0, 12), st.sampled_from(FILTERS)), min_size=1, max_size=4
    ),
    max_bytes=st.sampled_from([0, 1, 4_000, 12_000, 10**6]),
)
def test_each_feed_gets_all_that_it_asked_for_once_and_in_order(
    before: Sequence[tuple[str, str, str, bytes]],
    later: Sequence[tuple[str, str, str, bytes]],
    readers: Sequence[tuple[int, EventFilter]],
    max_bytes: int,
) -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(20):
            world = World.over(store, max_bytes)
            for each in before:
                await appended(store, *each)
            starts = [(min(after, len(before)), filter_) for after, filter_ in readers]
            early, late = starts[::2], starts[1::2]
            total = [*before, *later]

            def wanted(after: int, filter_: EventFilter) -> list[bytes]:
                return [
                    b"%d" % (number + 1)
                    for number, (stream, type_, tag, _) in enumerate(total)
                    if number >= after and _passes(filter_, stream, type_, tag)
                ]

            def read(after: int, filter_: EventFilter) -> asyncio.Task[list[bytes]]:
                expected = wanted(after, filter_)
                return asyncio.create_task(world.followed(after, filter_, len(expected)))

            tasks = [read(*start) for start in early]
            for each in later:
                await appended(store, *each)
            tasks += [read(*start) for start in late]
            for start, task in zip([*early, *late], tasks, strict=True):
                assert await task == wanted(*start)
            assert world.tail.held_bytes <= max_bytes

    asyncio.run(body())


def _passes(filter_: EventFilter, stream: str, type_: str, tag: str) -> bool:
    category = stream.partition("-")[0]
    return (
        filter_.category in (None, category)
        and filter_.type in (None, type_, f"{category}.{type_}")
        and filter_.stream in (None, stream)
        and (filter_.stream_prefix is None or stream.startswith(filter_.stream_prefix))
        and filter_.tag in (None, tag)
    )


def test_nobody_asks_for_the_head_of_a_store_that_is_known_to_be_further() -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(60):
            world = World.over(store, 10**7)
            task = asyncio.create_task(world.followed(0, EventFilter(), 20))
            for number in range(20):
                await appended(store, "order-1", "paid", "red", b"x")
                while len(world.rendered) <= number:
                    await asyncio.sleep(0)
            await task
            assert world.pages.reads - world.pages.asked >= 20
            assert world.pages.asked <= 5, "reads that ask for the head"

    asyncio.run(body())


def test_a_hundred_feeds_read_and_render_an_event_once() -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(60):
            world = World.over(store, 10**7)
            tasks = [asyncio.create_task(world.followed(0, EventFilter(), 20)) for _ in range(100)]
            for number in range(20):
                await appended(store, "order-1", "paid", "red", b"x")
                while len(world.rendered) <= number:
                    await asyncio.sleep(0)
            await asyncio.gather(*tasks)
            assert world.rendered == Counter(dict.fromkeys(range(1, 21), 1))
            assert world.pages.reads <= 3 * 20, "not a hundred times as many"

    asyncio.run(body())


async def looked_at(tail: Tail, times: int) -> None:
    for _ in range(times):
        await tail.beyond(1, filter_=EventFilter(), timeout_s=0.02)
        await tail.read_all(after=1, limit=10)


def test_what_the_watch_over_the_head_is_told_is_told_to_those_who_wait() -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(60):
            world = World.over(store, 10**7)
            await appended(store, "order-1", "paid", "red", b"x")
            await world.tail.read_all(after=0, limit=10)
            world.pages.broken = diverged(0, 1)
            with pytest.raises(StoreDiverged):
                await looked_at(world.tail, times=50)

    asyncio.run(body())


def test_what_another_reader_brought_into_memory_is_told_to_those_who_wait() -> None:
    async def body() -> None:
        # Appends of other processes: the head learns of them from who reads.
        async with MemoryEventStore() as store, asyncio.timeout(20):
            world, head = World.over(store, 10**7), Head()
            tail = Tail(world.pages, head, max_bytes=10**7, render=world.tail.document)
            for number in range(2):
                await appended(store, "order-1", "paid", "red", b"x")
                head.advance((await tail.read_all(after=number, limit=10)).head)
                if number == 0:
                    beyond = tail.beyond(1, filter_=EventFilter(), timeout_s=6_000)
                    waiting = asyncio.create_task(beyond)
                    while not tail._waiting:
                        await asyncio.sleep(0)
                    await asyncio.sleep(FRESH_S)
            await waiting

    asyncio.run(body())
