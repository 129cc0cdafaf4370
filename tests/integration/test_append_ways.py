"""Whichever way a group goes, it keeps what was given, and nothing when its belief is wrong."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from eventstore.postgres import one_call
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest, EncodedEvent, StreamAppend
from kernel.errors import VersionConflict
from schemas.records import RecordedEvent
from tests.contracts.events import request, to

ODD = "it's \\ \"quoted\" {brace},comma;\tä🚀 $1 %s %(x)s '; DROP TABLE es.streams; --"


def odd(index: int, **given: Any) -> EncodedEvent:
    values: dict[str, Any] = {
        "id": uuid4(),
        "type": "placed",
        "schema_id": 7,
        "data": bytes(range(256)) + index.to_bytes(4, "big"),
        "metadata": {ODD: [ODD, {"n": index}]},
        "tags": (ODD.replace(" ", "_").replace("\t", "_"), "course:7"),
        "occurred_at": datetime(2013, 1, 1, 5, 15, 0, index, tzinfo=UTC),
        "subject": ODD,
        "key_id": ODD,
    }
    return EncodedEvent(**(values | given))


def append(stream: str, *events: EncodedEvent) -> AppendRequest:
    return request(
        StreamAppend(stream=stream, category="order", expected="any", events=tuple(events))
    )


async def read(store: PostgresEventStore, stream: str) -> tuple[RecordedEvent, ...]:
    page = await store.read_stream(stream, from_version=0, direction="forward", limit=5_000)
    return page.events


def content(event: RecordedEvent | EncodedEvent) -> tuple[object, ...]:
    return (
        event.id,
        event.type,
        event.schema_id,
        event.data,
        event.metadata,
        event.tags,
        event.occurred_at,
        event.subject,
        event.key_id,
    )


@pytest.mark.parametrize("count", [1, 3, one_call.MAX_EVENTS, one_call.MAX_EVENTS + 1])
def test_every_value_is_kept_as_it_is(postgres_dsn: str, count: int) -> None:
    stream = "order-" + ODD.replace(" ", "_").replace("\t", "_").replace("/", "_")
    given = [odd(index) for index in range(count)]

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(append("order-first", odd(0)))
            await store.append(append(stream, *given))
            found = await read(store, stream)
            assert [content(event) for event in found] == [content(event) for event in given]
            assert [event.version for event in found] == list(range(count))
            assert (await store.head()) == count + 1

    asyncio.run(body())


def test_a_hostile_type_is_a_text_like_any_other(postgres_dsn: str) -> None:
    """Names are checked at the edge; whoever calls the store himself can break nothing either."""
    hostile = "x','y'); DELETE FROM es.events; --"

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(append("order-1", odd(0)))
            await store.append(append("order-1", odd(1, type=hostile)))
            assert [event.type for event in await read(store, "order-1")] == ["placed", hostile]

    asyncio.run(body())


def test_times_are_postgresqls_and_never_go_back(postgres_dsn: str) -> None:
    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            for size in (1, one_call.MAX_EVENTS + 1, 1, 2):
                events = [odd(index, occurred_at=None) for index in range(size)]
                await store.append(append("order-1", *events))
            found = await read(store, "order-1")
            times = [event.recorded_at for event in found]
            assert times == sorted(times)
            assert all(event.occurred_at == event.recorded_at for event in found)

    asyncio.run(body())


def test_an_append_by_somebody_else_is_noticed(postgres_dsn: str) -> None:
    """The head moves behind the writer's back: versions and positions go on from there."""

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(request(to("order-1")))
            with psycopg.connect(postgres_dsn, autocommit=True) as other:
                _insert(other, uuid4())
            with pytest.raises(VersionConflict) as caught:
                await store.append(request(to("order-1", expected=0)))
            assert caught.value.fields["actual"] == 1
            answer = await store.append(request(to("order-1", expected=1)))
            assert (answer.appends[0].first_version, answer.appends[0].first_position) == (2, 3)

    asyncio.run(body())


def _insert(connection: psycopg.Connection[Any], event_id: UUID) -> None:
    connection.execute(
        b"INSERT INTO es.events (position, store_id, id, stream, version, category, type,"
        b" schema_id, data, occurred_at, recorded_at)"
        b" SELECT position + 1, store_id, %(id)s, 'order-1', 1, 'order', 'placed', 1, '', now(),"
        b" now() FROM es.counter, es.store",
        {"id": event_id},
    )


def test_an_id_that_is_stored_already_gets_its_first_answer(postgres_dsn: str) -> None:
    repeated = append("order-1", odd(1))

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            first = await store.append(repeated)
            for _ in range(40):  # More often than the writer looks first after a refusal.
                again, new = await asyncio.gather(
                    store.append(repeated), store.append(append("order-2", odd(2)))
                )
                assert again.repeated
                assert again.appends == first.appends
                assert not new.repeated
            assert await store.head() == 41

    asyncio.run(body())
