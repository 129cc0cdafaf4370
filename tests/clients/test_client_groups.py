"""Persistent subscriptions through the client: a real service and the fake keep the same rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from penstock_client import Delivery, Given, GroupDiffers, NewEvent, NotFound, Refused, Terms
from tests.clients.worlds import ONE_OF_EACH, Body, World, opened

Run = Callable[[Body], None]
AT_ONCE = Terms(backoff_s=0)


@pytest.fixture(params=ONE_OF_EACH)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine function in a fresh world."""
    dsn = request.getfixturevalue("postgres_dsn") if "server" in request.param else None
    with ExitStack() as stack:
        yield lambda body: stack.enter_context(opened(request.param, dsn))(body)


async def append(world: World, *streams: str) -> list[NewEvent]:
    events = [NewEvent(type="placed", data={"n": 1}, tags=("shop:1",)) for _ in streams]
    for stream, event in zip(streams, events, strict=True):
        await world.client.append(stream, event)
    return events


def ids(given: Given) -> list[tuple[Any, int]]:
    return [(delivery.id, delivery.attempt) for delivery in given.deliveries]


def test_the_life_of_a_group(run: Run) -> None:
    async def body(world: World) -> None:
        one, two, three = await append(world, "order-1", "order-1", "order-2")
        made = await world.client.groups.create("g", start=0, terms=AT_ONCE)
        assert (made.name, made.started_after, made.lag_events) == ("g", 0, 3)
        first, second = world.client.group("g", consumer="a"), world.client.group("g")
        given = await first.next()
        assert ids(given) == [(one.id, 1), (three.id, 1)]
        assert given.deliveries[0].event.stream == "order-1"
        assert ids(await second.next()) == []
        assert (await first.ack(given.deliveries[0])).done == (one.id,)
        assert (await first.ack(one.id)).already == (one.id,)
        assert (await first.nack([three.id], reason="busy")).done == (three.id,)
        assert ids(await second.next()) == [(two.id, 1)]
        assert ids(await second.next()) == [(three.id, 2)]
        assert (await first.park(three.id, reason="mine no more")).refused == (three.id,)
        assert (await second.park(three.id, reason="no such shop")).done == (three.id,)
        (parked,) = await first.parked()
        assert (parked.id, parked.reason, parked.deliveries) == (three.id, "no such shop", 2)
        shown = await world.client.groups.show("g")
        assert (shown.checkpoint, shown.head, shown.lag_events) == (1, 3, 2)
        assert (shown.in_flight, shown.parked, shown.redelivered) == (1, 1, 1)
        assert shown.state == "behind"
        assert [each.name for each in await world.client.groups.list()] == ["g"]
        assert await first.replay_parked() == 1
        given = await first.next()
        assert ids(given) == [(three.id, 1)]
        assert given.caught_up
        await first.ack(given.deliveries)
        await first.ack([two.id])
        assert (await world.client.groups.show("g")).state == "caught-up"
        await world.client.groups.delete("g")
        with pytest.raises(NotFound):
            await world.client.groups.show("g")

    run(body)


def test_a_group_looks_at_what_its_filter_passes(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.groups.create("g", category="order", tag="shop:1")
        _, wanted = await append(world, "cart-1", "order-1")
        await world.client.append("order-2", NewEvent(type="placed", data={"n": 1}))
        assert ids(await world.client.group("g").next()) == [(wanted.id, 1)]
        with pytest.raises(GroupDiffers):
            await world.client.groups.create("g", category="cart")

    run(body)


def test_an_event_is_parked_after_its_last_delivery(run: Run) -> None:
    async def body(world: World) -> None:
        (event,) = await append(world, "order-1")
        terms = Terms(max_deliveries=2, backoff_s=0)
        await world.client.groups.create("g", start=0, terms=terms)
        group = world.client.group("g")
        for attempt in (1, 2):
            assert ids(await group.next()) == [(event.id, attempt)]
            await group.nack(event.id, reason="busy", delay_s=0)
        assert ids(await group.next()) == []
        assert [each.id for each in await group.parked()] == [event.id]

    run(body)


def test_an_event_that_its_consumer_never_survives_is_parked_alone(run: Run) -> None:
    """A batch that came back whole is given again one by one."""

    async def body(world: World) -> None:
        events = await append(world, *(f"order-{n}" for n in range(4)))
        terms = Terms(max_deliveries=3, backoff_s=0)
        await world.client.groups.create("g", start=0, terms=terms)
        group, poison = world.client.group("g"), events[1].id
        given = await group.next(limit=10)
        assert len(given.deliveries) == 4
        for event in events:
            await group.nack(event.id, reason="the consumer died", delay_s=0)
        for _ in range(5):
            (delivery,) = (await group.next(limit=10)).deliveries
            if delivery.event.id == poison:
                await group.nack(poison, reason="died again", delay_s=0)
            else:
                await group.ack(delivery.event.id)
        assert ids(await group.next(limit=10)) == []
        assert [each.id for each in await group.parked()] == [poison]

    run(body)


def test_what_is_not_acknowledged_comes_again(run: Run) -> None:
    async def body(world: World) -> None:
        (event,) = await append(world, "order-1")
        await world.client.groups.create("g", start=0, terms=Terms(ack_timeout_s=0.1))
        group = world.client.group("g")
        assert ids(await group.next()) == [(event.id, 1)]
        assert ids(await group.next(wait_s=30)) == [(event.id, 2)]

    run(body)


def test_a_consumer_waits_for_its_event(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.groups.create("g")
        waiting = asyncio.create_task(world.client.group("g").next(wait_s=30))
        (event,) = await append(world, "order-1")
        assert ids(await waiting) == [(event.id, 1)]

    run(body)


def test_deliveries_go_on_without_end(run: Run) -> None:
    async def body(world: World) -> None:
        events = await append(world, "order-1", "order-1", "order-2")
        await world.client.groups.create("g", start=0)
        group = world.client.group("g")
        seen: list[Delivery] = []
        feed = group.deliveries(limit=1)
        async for delivery in feed:
            await group.ack(delivery)
            seen.append(delivery)
            if len(seen) == 3:
                break
        await feed.aclose()
        assert [delivery.id for delivery in seen] == [event.id for event in events]

    run(body)


def test_what_is_malformed_or_missing(run: Run) -> None:
    async def body(world: World) -> None:
        with pytest.raises(Refused):
            await world.client.groups.create("No Name")
        with pytest.raises(NotFound):
            await world.client.group("g").next()

    run(body)


def test_one_stream_comes_in_batches_in_order(run: Run) -> None:
    """What is behind a refused event is taken back with it and counts as not given."""

    async def body(world: World) -> None:
        events = await append(world, *["order-1"] * 5, "order-2")
        await world.client.groups.create("g", start=0, terms=AT_ONCE)
        group, other = world.client.group("g", consumer="a"), world.client.group("g")
        given = await group.next(per_stream=3)
        assert ids(given) == [(event.id, 1) for event in (*events[:3], events[5])]
        assert ids(await other.next(per_stream=3)) == []
        assert (await group.ack(events[0].id)).done == (events[0].id,)
        assert ids(await other.next(per_stream=3)) == []
        assert (await group.nack(events[1].id, reason="busy")).done == (events[1].id,)
        assert (await group.ack(events[2].id)).refused == (events[2].id,)
        assert ids(await other.next(per_stream=9)) == [(events[1].id, 2)]
        assert (await other.ack(events[1].id)).done == (events[1].id,)
        assert ids(await other.next(per_stream=9)) == [(event.id, 1) for event in events[2:5]]
        handled = [event.id for event in (*events[2:5], events[5])]
        assert (await other.ack(handled)).done == tuple(handled)
        assert (await world.client.groups.show("g")).state == "caught-up"

    run(body)
