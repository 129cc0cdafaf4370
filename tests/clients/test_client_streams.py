"""The life of streams through the client: a real service and the fake show and hide the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock_client import NewEvent, NotFound, Refused, StreamGone, VersionConflict
from tests.clients.worlds import ONE_OF_EACH, WORLDS, Body, World, opened

Run = Callable[[Body], None]


@pytest.fixture(params=ONE_OF_EACH)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine function in a fresh world."""
    dsn = request.getfixturevalue("postgres_dsn") if "server" in request.param else None
    with ExitStack() as stack:
        yield lambda body: stack.enter_context(opened(request.param, dsn))(body)


async def append(world: World, count: int, **more: Any) -> Any:
    events = [NewEvent(type="placed", data={"n": n}) for n in range(count)]
    return await world.client.append("order-1", events, **more)


async def versions(world: World, **how: Any) -> list[int]:
    return [event.version async for event in world.client.read_stream("order-1", **how)]


def test_a_stream_shows_what_its_bounds_leave(run: Run) -> None:
    async def body(world: World) -> None:
        await append(world, 5)
        shown = await world.client.streams.show("order-1")
        assert (shown.version, shown.truncate_before, shown.max_count) == (4, 0, None)
        changed = await world.client.streams.set("order-1", truncate_before=2)
        assert (changed.truncate_before, changed.deleted) == (2, False)
        assert await versions(world) == [2, 3, 4]
        assert await versions(world, direction="backward") == [4, 3, 2]
        await world.client.streams.set("order-1", max_count=2)
        assert await versions(world) == [3, 4]
        await append(world, 1)
        assert await versions(world) == [4, 5]
        await world.client.streams.set("order-1")
        assert await versions(world) == [2, 3, 4, 5]
        with pytest.raises(Refused):
            await world.client.streams.set("order-1", truncate_before=1)
        for bound in ({"max_count": 0}, {"max_count": -1}, {"max_age_s": 0}, {"max_age_s": 2**40}):
            with pytest.raises(Refused):
                await world.client.streams.set("order-1", **bound)
        assert await versions(world) == [2, 3, 4, 5]
        everything = [event async for event in world.client.read_all(type="placed")]
        assert [event.version for event in everything] == [0, 1, 2, 3, 4, 5]

    run(body)


def test_a_deleted_stream_begins_again_and_its_versions_go_on(run: Run) -> None:
    async def body(world: World) -> None:
        await append(world, 2)
        with pytest.raises(VersionConflict) as conflict:
            await world.client.streams.delete("order-1", expected_version=7)
        assert (conflict.value.expected, conflict.value.actual) == (7, 1)
        assert (await world.client.streams.delete("order-1", expected_version=1)).deleted
        with pytest.raises(NotFound):
            await world.client.streams.delete("order-1", expected_version=1)
        assert await versions(world) == []
        with pytest.raises(NotFound):
            await world.client.stream_page("order-1")
        with pytest.raises(VersionConflict):
            await append(world, 1, expected_version="stream_exists")
        assert (await append(world, 1, expected_version="no_stream")).first_version == 2
        assert await versions(world) == [2]
        assert not (await world.client.streams.show("order-1")).deleted

    run(body)


def test_a_tombstone_is_for_good(run: Run) -> None:
    async def body(world: World) -> None:
        await append(world, 2)
        assert (await world.client.streams.delete("order-1", for_good=True)).tombstoned
        with pytest.raises(StreamGone):
            await append(world, 1)
        with pytest.raises(StreamGone):
            await versions(world)
        assert (await world.client.streams.show("order-1")).tombstoned

    run(body)


def test_each_change_is_an_event(run: Run) -> None:
    async def body(world: World) -> None:
        await append(world, 2)
        await world.client.streams.set("order-1", truncate_before=1)
        await world.client.streams.set("order-1", max_age_s=3_600)
        await world.client.streams.delete("order-1")
        changes = [e async for e in world.client.read_stream("order-1$metadata")]
        assert [(event.type, event.version, event.position) for event in changes] == [
            ("stream_truncated", 0, 3),
            ("stream_metadata_set", 1, 4),
            ("stream_deleted", 2, 5),
        ]
        assert changes[1].data == {
            "stream": "order-1",
            "version": 1,
            "truncate_before": 1,
            "max_age_s": 3_600,
            "max_count": None,
        }
        with pytest.raises(Refused):
            await world.client.append("order-1$metadata", NewEvent(type="placed", data={}))

    run(body)


def test_streams_that_never_were(run: Run) -> None:
    async def body(world: World) -> None:
        for ask in (world.client.streams.show, world.client.streams.delete):
            with pytest.raises(NotFound):
                await ask("order-none")

    run(body)


def test_streams_and_categories_are_listed(run: Run) -> None:
    async def body(world: World) -> None:
        client = world.client
        assert await client.streams.list() == ()
        for name in ("order-1", "order-10", "cart-1", "order-2"):
            await client.append(name, NewEvent(type="placed", data={"n": 1}))
        await client.streams.delete("order-2")
        listed = await client.streams.list()
        assert [each.stream for each in listed] == ["cart-1", "order-1", "order-10", "order-2"]
        assert [each.deleted for each in listed] == [False, False, False, True]
        page = await client.streams.list(category="order", limit=2)
        assert [(each.stream, each.version) for each in page] == [("order-1", 0), ("order-10", 0)]
        rest = await client.streams.list(category="order", after=page[-1].stream)
        assert [each.stream for each in rest] == ["order-2"]
        assert [each.stream for each in await client.streams.list(prefix="ca")] == ["cart-1"]
        cart, order = await client.streams.categories()
        assert (cart.category, cart.streams, cart.more, cart.position) == ("cart", 1, False, 3)
        assert (order.streams, order.position) == (3, 5)
        assert order.recorded_at > cart.recorded_at
        with pytest.raises(Refused):
            await client.streams.list(limit=1_001)

    run(body)


@pytest.mark.parametrize("run", WORLDS, indirect=True)
def test_one_stream_of_all_events(run: Run) -> None:
    async def body(world: World) -> None:
        for name in ("order-1", "order-10", "order-1"):
            await world.client.append(name, NewEvent(type="placed", data={"n": 1}))
        everything = world.client.read_all(stream="order-1")
        assert [event.position async for event in everything] == [1, 3]
        async with world.client.subscribe(stream="order-10") as feed:
            assert (await anext(feed)).position == 2

    run(body)
