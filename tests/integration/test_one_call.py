"""A group in one call keeps what the long way keeps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.postgres import one_call
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest, EncodedEvent, StreamAppend
from kernel.errors import ConditionFailed
from kernel.positions import Position
from schemas.records import RecordedEvent

MOMENT = datetime(2013, 1, 1, 5, 15, 0, 1, tzinfo=UTC)
NEVER = Condition(query=Query(items=(QueryItem(types=("never",), tags=()),)), after=Position(0))
FULL: dict[str, Any] = {
    "metadata": {"a": 'quoted " and \\ and ,{}', "n": [1, None]},
    "tags": ('a"b', "c\\d", "e,f", "{g}", "NULL"),
    "occurred_at": MOMENT,
    "subject": "somebody",
    "key_id": "NULL",
    "data_format": 0,
}
EMPTY: dict[str, Any] = {"metadata": {}, "tags": (), "occurred_at": None}


def event(**given: Any) -> EncodedEvent:
    return EncodedEvent(id=uuid4(), type="placed", schema_id=7, data=b"\x00\xff", **given)


def mixed() -> list[EncodedEvent]:
    """Each optional value is missing in some events, and each alone in one."""
    alone = [event(**(EMPTY | {name: value})) for name, value in FULL.items()]
    return [event(**EMPTY), event(**FULL), *alone, event(**EMPTY)]


def append(
    stream: str, events: list[EncodedEvent], condition: Condition | None = None
) -> AppendRequest:
    one = StreamAppend(stream=stream, category="order", expected="any", events=tuple(events))
    return AppendRequest(appends=(one,), condition=condition)


def content(found: RecordedEvent | EncodedEvent) -> tuple[object, ...]:
    occurred_at = found.occurred_at if found.occurred_at == MOMENT else None
    return (
        *(found.id, found.type, found.schema_id, found.data, found.data_format, found.metadata),
        *(found.tags, occurred_at, found.subject, found.key_id),
    )


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes which groups were committed by a call: a refused one goes the long way."""
    calls: list[str] = []
    commit = one_call.commit

    async def noted(*values: Any) -> None:
        await commit(*values)
        calls.append("call")

    monkeypatch.setattr(one_call, "commit", noted)
    return calls


@pytest.mark.parametrize("condition", [None, NEVER])
def test_values_that_some_events_lack_are_kept(
    postgres_dsn: str, condition: Condition | None, taken: list[str]
) -> None:
    given = mixed()

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            # The first event of a category has to look first.
            await store.append(append("order-first", [event(**EMPTY)]))
            await store.append(append("order-1", given, condition))
            assert taken == ["call"]
            page = await store.read_all(after=1, limit=100)
            assert [content(found) for found in page.events] == [content(each) for each in given]
            assert [found.position for found in page.events] == list(range(2, len(given) + 2))
            by_tags = Query(items=(QueryItem(tags=('a"b', "NULL")),))
            tagged = await store.query(by_tags, after=Position(0), limit=9)
            assert [found.tags for found in tagged.events] == [FULL["tags"]] * 2

    asyncio.run(body())


@pytest.mark.parametrize("count", [one_call.MAX_EVENTS, one_call.MAX_EVENTS + 1])
def test_a_large_group_is_whole_and_in_order(
    postgres_dsn: str, count: int, taken: list[str]
) -> None:
    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(append("order-first", [event(**EMPTY)]))
            answer = await store.append(append("order-1", [event(**EMPTY) for _ in range(count)]))
            assert answer.appends[0].last_version == count - 1
            assert len(taken) == (count <= one_call.MAX_EVENTS)
            after = await store.append(append("order-1", [event(**EMPTY)]))
            assert after.appends[0].first_position == count + 2

    asyncio.run(body())
    with psycopg.connect(postgres_dsn) as connection:
        rows = connection.execute(
            "SELECT version FROM es.events WHERE stream = 'order-1' ORDER BY position"
        ).fetchall()
    assert [version for (version,) in rows] == list(range(count + 1))


def test_nobody_but_the_service_may_call(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        rows = connection.execute(
            "SELECT r.role, has_function_privilege(r.role, f.oid, 'EXECUTE') FROM pg_proc AS f,"
            " unnest(ARRAY['penstock_service', 'pg_monitor']) AS r (role)"
            " WHERE f.proname = 'append_group'"
        ).fetchall()
    assert dict(rows) == {"penstock_service": True, "pg_monitor": False}


def test_a_condition_that_is_not_met_keeps_nothing_of_its_group(
    postgres_dsn: str, taken: list[str]
) -> None:
    """The call is refused for one request; the long way then commits the others."""
    placed = Query(items=(QueryItem(types=("order.placed",), tags=("b",)),))

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(append("order-first", [event(**EMPTY)]))
            await store.append(append("order-1", [event(**EMPTY | {"tags": ("b",)})]))
            old = Condition(query=placed, after=Position(1))
            new = Condition(query=placed, after=Position(2))
            answers = await asyncio.gather(
                store.enqueue(append("order-2", [event(**EMPTY)])),
                store.enqueue(append("order-3", [event(**EMPTY)], old)),
                store.enqueue(append("order-4", [event(**EMPTY)], new)),
                return_exceptions=True,
            )
            assert [type(answer).__name__ for answer in answers] == [
                "Appended",
                ConditionFailed.__name__,
                "Appended",
            ]
            assert await store.head() == 4
            assert taken == ["call"]

    asyncio.run(body())
