"""Persistent subscriptions on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from eventstore.groups.model import MAX_GROUPS, Settled
from eventstore.postgres.migrate import migrate
from eventstore.sizes import PAGE_BYTES
from eventstore.store import EventFilter
from kernel.errors import (
    BeyondHead,
    InvalidRequest,
    NotFound,
    Overloaded,
    SubscriptionDiffers,
    Unavailable,
)
from tests.contracts.events import event, request, to
from tests.support.services.waiting import eventually
from tests.support.store.groups import FAST, World, first, world
from tests.support.store.postgres import Cluster


def test_events_are_given_once_each_and_finished_by_their_ack(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            ids = await w.append("order-1", "order-2", "order-3")
            assert await w.create()
            assert await w.take(2) == first(ids[:2])
            assert await w.take() == first(ids[2:])
            assert await w.take() == []
            settled = await w.groups.ack("g", [*ids, ids[0]])
            assert settled.done == tuple(ids)
            again = await w.groups.ack("g", ids)
            assert (again.done, again.already) == ((), tuple(ids))
            standing = await w.groups.standing("g")
            assert (standing.checkpoint, standing.lag_events, standing.state) == (3, 0, "caught-up")

    asyncio.run(check())


def test_a_stream_is_given_one_event_after_the_other(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            one, two, other = await w.append("order-1", "order-1", "order-2")
            await w.create()
            assert await w.take() == first([one, other])
            assert await w.take(consumer="b") == []
            await w.groups.ack("g", [one])
            assert await w.take(consumer="b") == first([two])

    asyncio.run(check())


def test_a_refused_event_comes_again_and_is_parked_in_the_end(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            bad, later = await w.append("order-1", "order-1")
            await w.create()
            for attempt in (1, 2, 3):
                assert await w.take() == [(bad, attempt)]
                await w.groups.nack("g", [bad], reason=f"no {attempt}")
            assert await w.take() == first([later]), "parking lets the stream go on"
            (parked,) = await w.groups.parked("g")
            assert (parked.event_id, parked.deliveries, parked.reason) == (bad, 3, "no 3")
            standing = await w.groups.standing("g")
            assert (standing.parked, standing.redelivered, standing.checkpoint) == (1, 2, 1)

    asyncio.run(check())


def test_a_batch_that_fails_comes_again_event_by_event_and_the_one_at_fault_is_parked_alone(
    postgres_dsn: str,
) -> None:
    """Of several streams and of one: the consumer handles all of what it got, or nothing."""

    async def check() -> None:
        async with world(postgres_dsn) as w:
            ids = await w.append(*(f"order-{n}" for n in (1, 2, 3, 3, 3, 4)))
            await w.create()
            poison, handled, batches = ids[3], list[uuid.UUID](), list[int]()
            while len(handled) < 5:
                given = await w.groups.next("g", consumer="a", limit=10, per_stream=10, wait_s=20)
                batch = [each.event.id for each in given.deliveries]
                batches.append(len(batch))
                if poison in batch:
                    await w.groups.nack("g", batch, reason="one of them")
                else:
                    await w.groups.ack("g", batch)
                    handled += batch
            assert batches[0] == 6
            assert set(handled) == {*ids} - {poison}
            (parked,) = await w.groups.parked("g")
            assert (parked.event_id, parked.deliveries) == (poison, FAST.max_deliveries)
            assert (await w.groups.standing("g")).lag_events == 0

    asyncio.run(check())


def test_silence_gives_the_event_to_another(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            (id_,) = await w.append("order-1")
            await w.create(terms=replace(FAST, ack_timeout=timedelta(milliseconds=100)))
            assert await w.take(consumer="a") == [(id_, 1)]
            assert await w.take(consumer="b", wait_s=20) == [(id_, 2)]
            refused = await w.groups.nack("g", [id_], consumer="a", reason="late")
            assert refused.refused == (id_,)
            assert (await w.groups.ack("g", [id_])).done == (id_,)

    asyncio.run(check())


def test_p10_replay_parked_gives_the_parked_again_and_nothing_else(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            done, bad, worse = await w.append("order-1", "order-2", "order-3")
            await w.create()
            await w.take()
            await w.groups.ack("g", [done])
            await w.groups.park("g", [bad, worse], reason="by hand")
            assert await w.groups.replay_parked("g", [bad]) == (1, 1)
            assert await w.take() == first([bad])
            assert await w.groups.replay_parked("g") == (1, 0)
            assert await w.take() == first([worse])
            assert (await w.groups.standing("g")).parked == 0

    asyncio.run(check())


def test_a_parked_event_that_was_handled_after_all_is_acknowledged(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            (id_,) = await w.append("order-1")
            await w.create(terms=replace(FAST, max_parked=1))
            await w.take()
            await w.groups.park("g", [id_], reason="slow")
            assert (await w.groups.ack("g", [id_])).done == (id_,)
            assert await w.groups.parked("g") == []
            assert await w.groups.replay_parked("g") == (0, 0)
            standing = await w.groups.standing("g")
            assert (standing.parked, standing.lag_events) == (0, 0)

    asyncio.run(check())


def test_full_parking_stops_the_stream_and_says_so(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            ids = await w.append("order-1", "order-2", "order-2")
            await w.create(terms=replace(FAST, max_deliveries=1, max_parked=1))
            await w.take()
            await w.groups.nack("g", ids[:2], reason="no")
            assert await w.take() == []
            assert (await w.groups.standing("g")).state == "parked-full"
            await w.groups.ack("g", ids[:1])
            assert await w.take() == first(ids[2:]), "there was room for the second"

    asyncio.run(check())


def test_parking_more_than_finds_room_is_refused(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            ids = await w.append("order-1", "order-2")
            await w.create(terms=replace(FAST, max_parked=1))
            await w.take()
            with pytest.raises(Overloaded, match="1 is the most"):
                await w.groups.park("g", ids, reason="x")
            assert await w.groups.parked("g") == []

    asyncio.run(check())


def test_only_what_the_filter_lets_pass_is_given(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            tagged = event(tags=("shop:1",))
            await w.store.append(request(to("order-1", [event(), tagged])))
            await w.append("cart-1", "cart-1")
            await w.create(filter_=EventFilter(tag="shop:1"))
            assert await w.take() == first([tagged.id])
            await w.groups.ack("g", [tagged.id])
            standing = await w.groups.standing("g")
            assert (standing.checkpoint, standing.lag_events, standing.lag_seconds) == (4, 0, 0)

    asyncio.run(check())


def test_a_group_may_begin_at_the_end(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            await w.append("order-1")
            await w.create(start=None)
            (new,) = await w.append("order-1")
            assert await w.take() == first([new])

    asyncio.run(check())


def test_making_a_group_again_changes_its_terms_alone(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            await w.append("order-1", "order-2")
            assert await w.create(start=1)
            more = replace(FAST, max_in_flight=7)
            assert not await w.create(start=1, terms=more)
            assert not await w.create(start=None, terms=more)
            assert (await w.groups.standing("g")).subscription.terms == more
            for start, filter_ in ((0, EventFilter()), (1, EventFilter(category="cart"))):
                with pytest.raises(SubscriptionDiffers):
                    await w.create(start=start, filter_=filter_)
            with pytest.raises(BeyondHead):
                await w.create("other", start=3)
            await w.groups.delete("g")
            assert await w.create(start=0), "a deleted one may be made anew"

    asyncio.run(check())


def test_a_consumer_waits_for_an_event_and_for_its_stream(postgres_dsn: str) -> None:
    """Woken, not polling: polls this rare, and times this long, would bring nothing."""

    async def check() -> None:
        async with world(postgres_dsn, poll_s=3_600) as w, asyncio.timeout(120):
            await w.create(terms=replace(FAST, ack_timeout=timedelta(hours=1)))
            waiting = asyncio.create_task(w.take(wait_s=3_600))
            one, two = await w.append("order-1", "order-1")
            assert await waiting == first([one])
            for settle, id_ in ((w.groups.ack, one), (give_back(w), two)):
                waiting = asyncio.create_task(w.take(wait_s=3_600, consumer="b"))
                await eventually(lambda: waits(w), "it waits")
                await settle("g", [id_])
                assert [given for given, _ in await waiting] == [two]

    asyncio.run(check())


def give_back(w: World) -> Callable[[str, list[uuid.UUID]], Awaitable[Settled]]:
    """Refuse events, to be given again at once."""
    return lambda name, ids: w.groups.nack(name, ids, reason="again")


async def waits(w: World) -> bool:
    return w.groups.waiting == 1


@pytest.mark.matrix
def test_a_consumer_notices_what_another_service_finished(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            one, two = await w.append("order-1", "order-1")
            await w.create()
            async with world(postgres_dsn) as other:
                assert await other.take() == first([one])
                waiting = asyncio.create_task(w.take(wait_s=30))
                await other.groups.ack("g", [one])
                assert await waiting == first([two])

    asyncio.run(check())


def test_no_more_than_the_bound_is_in_flight(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            ids = await w.append(*(f"order-{n}" for n in range(5)))
            await w.create(terms=replace(FAST, max_in_flight=3))
            assert await w.take() == first(ids[:3])
            assert await w.take(consumer="b") == []
            await w.groups.ack("g", ids[:1])
            assert await w.take(consumer="b") == first(ids[3:4])

    asyncio.run(check())


def test_others_pass_a_stuck_stream_as_far_as_the_group_looks_ahead(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            await w.store.append(request(to("order-1", [event() for _ in range(30)])))
            (other,) = await w.append("order-2")
            await w.create("near", terms=replace(FAST, max_in_flight=2, look_ahead=10))
            await w.create("far", terms=replace(FAST, max_in_flight=2, look_ahead=100))
            assert len(await w.take(name="near")) == 1
            assert await w.take(name="near") == []
            taken = await w.take(name="far") + await w.take(name="far", wait_s=20)
            assert other in [id_ for id_, _ in taken]

    asyncio.run(check())


def test_an_answer_of_large_events_ends_after_so_many_bytes(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            await w.create()
            for number in range(5):
                new = event(bytes(PAGE_BYTES // 2 + 1))
                await w.store.append(request(to(f"order-{number}", [new])))
            assert [len(await w.take(10)) for _ in range(4)] == [2, 2, 1, 0]

    asyncio.run(check())


def test_an_event_that_left_the_store_is_parked(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            gone, kept = await w.append("order-1", "order-2")
            await w.create()
            await w.take()
            await w.groups.nack("g", [gone, kept], reason="later")
            with psycopg.connect(postgres_dsn) as connection:
                connection.execute("ALTER TABLE es.events DISABLE TRIGGER append_only")
                connection.execute("DELETE FROM es.events WHERE id = %s", (gone,))
            assert await w.take() == [(kept, 2)]
            (parked,) = await w.groups.parked("g")
            assert (parked.event_id, "not in the store" in parked.reason) == (gone, True)

    asyncio.run(check())


async def drain(w: World, consumer: str, handled: dict[uuid.UUID, list[str]], total: int) -> None:
    """Take and acknowledge until all are handled; now and then forget an answer, or refuse."""
    turn = 0
    while len(handled) < total:
        given = await w.groups.next("g", consumer=consumer, limit=7, wait_s=0.5)
        for each in given.deliveries:
            turn += 1
            if turn % 5 == 0:
                await w.groups.nack("g", [each.event.id], consumer=consumer, reason="again")
            elif turn % 7:
                handled[each.event.id].append(each.event.stream)
                await w.groups.ack("g", [each.event.id])


@pytest.mark.matrix
def test_several_consumers_of_several_services_handle_all_in_order(postgres_dsn: str) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(world(postgres_dsn))
            await one.append("cart-1")  # The writer is this one.
            two = await stack.enter_async_context(world(postgres_dsn))
            terms = replace(FAST, max_deliveries=100, ack_timeout=timedelta(seconds=3))
            await one.create(terms=terms, start=1)
            appends = [to(f"order-{n}", [event() for _ in range(10)]) for n in range(8)]
            handled: dict[uuid.UUID, list[str]] = defaultdict(list)
            consumers = [drain(w, f"c{n}", handled, 80) for n, w in enumerate((one, two, one, two))]
            running = asyncio.gather(*consumers)
            await one.store.append(request(*appends))
            await running
            assert {id_: len(times) for id_, times in handled.items()} == {
                each.id: 1 for append in appends for each in append.events
            }
            for append in appends:
                order = [id_ for id_, (stream, *_) in handled.items() if stream == append.stream]
                assert order == [each.id for each in append.events]
            standing = await one.groups.standing("g")
            assert (standing.lag_events, standing.in_flight, standing.parked) == (0, 0, 0)

    asyncio.run(check())


@pytest.mark.matrix
def test_a_restart_of_postgresql_loses_nothing(own_cluster: Cluster) -> None:
    async def check() -> None:
        dsn = own_cluster.dsn("postgres")
        await migrate(dsn)
        async with world(dsn) as w:
            ids = await w.append("order-1", "order-2", "order-3")
            await w.create(terms=replace(FAST, ack_timeout=timedelta(seconds=1)))
            await w.take(2)
            await w.groups.ack("g", ids[:1])
            await asyncio.to_thread(own_cluster.stop)
            with pytest.raises(Unavailable):
                await w.groups.ack("g", ids[1:2])
            await asyncio.to_thread(own_cluster.start)

            async def answers() -> bool:
                try:
                    return (await w.groups.ack("g", ids[:1])).already == (ids[0],)
                except Unavailable:
                    return False

            await eventually(answers, "groups answer again")
            seen = await w.take(wait_s=20) + await w.take(1, wait_s=5)
            assert {id_ for id_, _ in seen} == set(ids[1:])

    asyncio.run(check())


def test_what_is_not_there_and_what_is_too_much(postgres_dsn: str) -> None:
    async def check() -> None:
        async with world(postgres_dsn) as w:
            await w.create()
            for call in (
                w.groups.standing("no"),
                w.groups.delete("no"),
                w.groups.next("no", consumer="a", limit=1),
                w.groups.ack("no", [uuid.uuid4()]),
                w.groups.parked("no"),
                w.groups.replay_parked("no"),
            ):
                with pytest.raises(NotFound, match="'no'"):
                    await call
            for ids in ([], [uuid.uuid4() for _ in range(1_001)]):
                with pytest.raises(InvalidRequest):
                    await w.groups.ack("g", ids)
            for number in range(MAX_GROUPS - 1):
                await w.create(f"g{number}")
            with pytest.raises(InvalidRequest, match="the most"):
                await w.create("one-more")
            assert len(await w.groups.standings()) == MAX_GROUPS

    asyncio.run(check())
