"""Readers who share a channel get what each would have got alone, however slow some of them are."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from eventstore.feed import PAGE
from eventstore.store import EventFilter
from eventstore.tail import Tail
from kernel.positions import Position
from schemas.records import RecordedEvent
from service.connections import WatchedProtocol
from service.feed_channels import EventFeeds, FeedKind
from service.feed_messages import SSE
from tests.contracts.events import event, request, to
from tests.support.store.memory import MemoryEventStore

FILTERS = (EventFilter(), EventFilter(category="cart"), EventFilter(tag="red"))
EVENTS = st.tuples(st.sampled_from(["order-1", "cart-1"]), st.sampled_from(["red", "blue"]))


class Connection:
    """Takes what a channel puts on it, but for what it is told to be too slow for."""

    def __init__(self, slow: Sequence[bool], pause: int = 1) -> None:
        self.got: list[bytes] = []
        self.pushed = 0
        self.pause = pause
        self._slow = list(slow)

    def push(self, part: bytes) -> bool:
        if self._slow and self._slow.pop():
            return False
        self.pushed += 1
        self.got.append(part)
        return True

    @property
    def positions(self) -> list[int]:
        """What it got of events, in order."""
        return [int(number) for number in re.findall(rb"id: (\d+)\ndata: \1", b"".join(self.got))]

    @property
    def caught_up(self) -> int:
        """How often it was told that it has all history."""
        return b"".join(self.got).count(b"caught-up")


class World:
    """A store and its feeds."""

    def __init__(self, store: MemoryEventStore, max_bytes: int = 10**7) -> None:
        self.store = store
        self.rendered: Counter[int] = Counter()
        self.told = 0
        tail = Tail(store, store.feed_head, max_bytes=max_bytes, render=self._render)
        self.feeds = EventFeeds(
            tail, store.feed_head, idle_s=6_000, upcast=self._render, delivered=self._deliver
        )

    async def _render(self, recorded: RecordedEvent) -> bytes:
        self.rendered[recorded.position] += 1
        return b"%d" % recorded.position

    def _deliver(self, count: int) -> None:
        self.told += count

    def read(self, after: int, filter_: EventFilter, connection: Connection) -> asyncio.Task[None]:
        """Follow, and send as a response does."""

        async def send() -> None:
            kind = FeedKind(filter_=filter_, form=SSE, upcast=False)
            watched = cast(WatchedProtocol, connection)
            async for chunk in self.feeds.chunks(kind, Position(after), watched):
                for _ in range(connection.pause):
                    await asyncio.sleep(0)
                connection.got.append(chunk.body)

        return asyncio.create_task(send())

    async def append(self, stream: str, tag: str) -> None:
        """Append an event."""
        await self.store.append(request(to(stream, [event(b"x", tags=(tag,))])))


@given(
    history=st.lists(EVENTS, max_size=5),
    later=st.lists(st.tuples(EVENTS, st.integers(0, 6)), max_size=14),
    readers=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.sampled_from(FILTERS),
            st.integers(0, 14),
            st.lists(st.booleans(), max_size=4),
            st.integers(0, 40),
        ),
        min_size=1,
        max_size=6,
    ),
    max_bytes=st.sampled_from([1, 4_000, 10**6]),
)
def test_each_gets_all_that_it_asked_for_once_and_in_order(
    history: Sequence[tuple[str, str]],
    later: Sequence[tuple[tuple[str, str], int]],
    readers: Sequence[tuple[int, EventFilter, int, Sequence[bool], int]],
    max_bytes: int,
) -> None:
    """Readers come after so many later events, and take some steps of the loop for each chunk;
    between two appends it makes some.
    """
    everything = [*history, *(each for each, _ in later)]

    def wanted(after: int, filter_: EventFilter) -> list[int]:
        return [
            position
            for position, (stream, tag) in enumerate(everything, start=1)
            if position > after
            and filter_.category in (None, stream.partition("-")[0])
            and filter_.tag in (None, tag)
        ]

    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(20):
            world = World(store, max_bytes)
            for each in history:
                await world.append(*each)
            following = []
            for number in range(len(later) + 1):
                for after, filter_, when, slow, pause in readers:
                    if min(when, len(later)) == number:
                        connection, start = Connection(slow, pause), min(after, len(history))
                        task = world.read(start, filter_, connection)
                        following.append((wanted(start, filter_), connection, task))
                if number < len(later):
                    each, steps = later[number]
                    await world.append(*each)
                    for _ in range(steps):
                        await asyncio.sleep(0)
            for expected, connection, _ in following:
                while len(connection.positions) < len(expected) or not connection.caught_up:
                    await asyncio.sleep(0.001)
            store.feed_head.close()
            for expected, connection, task in following:
                await task
                assert connection.positions == expected
                assert connection.caught_up == 1

    asyncio.run(body())


def test_a_hundred_readers_at_the_head_cost_one_feed() -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(60):
            world = World(store)
            connections = [Connection([]) for _ in range(100)]
            tasks = [world.read(0, EventFilter(), each) for each in connections]
            while not all(each.caught_up for each in connections):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            for number in range(20):
                await world.append("order-1", "red")
                while world.told < 100 * (number + 1):
                    await asyncio.sleep(0)
            assert [each.pushed for each in connections] == [20] * 100
            assert world.rendered == Counter(dict.fromkeys(range(1, 21), 1))
            store.feed_head.close()
            await asyncio.gather(*tasks)

    asyncio.run(body())


def test_what_a_filter_does_not_let_pass_is_told_by_checkpoints_to_members_too() -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(60):
            world, connection = World(store), Connection([])
            task = world.read(0, EventFilter(category="cart"), connection)
            await world.append("cart-1", "red")
            while connection.positions != [1]:
                await asyncio.sleep(0)
            for _ in range(PAGE):
                await world.append("order-1", "red")
            while b"checkpoint" not in b"".join(connection.got):
                await asyncio.sleep(0)
            store.feed_head.close()
            await task

    asyncio.run(body())


def test_members_whose_channel_fails_go_on_alone() -> None:
    async def body() -> None:
        async with MemoryEventStore() as store, asyncio.timeout(60):
            world, connection = World(store), Connection([])
            task = world.read(0, EventFilter(), connection)
            await world.append("cart-1", "red")
            while connection.positions != [1]:
                await asyncio.sleep(0)
            (channel,) = world.feeds._channels.values()
            assert channel.task is not None
            channel.task.cancel()
            await world.append("cart-1", "red")
            while connection.positions != [1, 2]:
                await asyncio.sleep(0)
            store.feed_head.close()
            await task

    asyncio.run(body())
