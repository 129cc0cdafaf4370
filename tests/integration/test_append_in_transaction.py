"""Appends inside transactions of the caller's own, beside those of the service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from eventstore.codecs import Codecs
from eventstore.conditions import Condition, Query, QueryItem
from eventstore.intake import Intake
from eventstore.postgres.connect import conninfo
from eventstore.postgres.in_transaction import append, append_encoded, given_event
from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest, EncodedEvent
from kernel.errors import (
    ConditionFailed,
    IdReused,
    InvalidRequest,
    Overloaded,
    StreamGone,
    Unavailable,
    VersionConflict,
)
from kernel.positions import Position, Version
from schemas.records import NewEvent
from schemas.registry import MemoryRegistry
from tests.contracts.events import event, request, to
from tests.support.services.waiting import eventually

APPENDER = "penstock_appender"


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    """A store that keeps the schema of `order.happened`, and a table of the application's own."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("INSERT INTO es.schemas VALUES (7, '\"bytes\"')")
        connection.execute("INSERT INTO es.types VALUES ('order.happened', 7)")
        connection.execute("CREATE TABLE public.mine (n integer)")
        connection.execute(f"GRANT ALL ON public.mine TO {APPENDER}".encode())
    return postgres_dsn


@asynccontextmanager
async def application(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Connect as an application that may append, and nothing else."""
    connection = await psycopg.AsyncConnection.connect(conninfo(dsn, role=APPENDER))
    try:
        yield connection
    finally:
        await connection.close()


def asked(dsn: str, statement: str) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(statement.encode()).fetchall()


def asked_to(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_rows_and_events_are_committed_together_or_not_at_all(dsn: str) -> None:
    async def body() -> None:
        async with application(dsn) as connection:
            await connection.execute("INSERT INTO mine VALUES (1)")
            await append_encoded(connection, "order-1", [event()], expected="no_stream")
            await connection.rollback()
            await connection.execute("INSERT INTO mine VALUES (2)")
            done = await append_encoded(connection, "order-1", [event(), event()])
            await connection.commit()
        (answer,) = done.appends
        assert (answer.first_version, answer.last_version) == (0, 1)
        assert (answer.first_position, answer.last_position) == (1, 2)
        assert not done.repeated

    asyncio.run(body())
    assert asked(dsn, "SELECT n FROM mine") == [(2,)]
    assert asked(dsn, "SELECT position, version FROM es.events") == [(1, 0), (2, 1)]


def test_p2_order_and_gaplessness_beside_a_busy_writer(dsn: str) -> None:
    """Transactions that commit late, roll back or use savepoints, among appends of a service."""

    async def service(store: PostgresEventStore, number: int) -> None:
        for _ in range(40):
            await store.append(request(to(f"order-{number % 3}", [event(), event()])))

    async def own(number: int) -> None:
        async with application(dsn) as connection:
            for step in range(12):
                await append_encoded(connection, f"order-{number % 3}", [event()])
                if step % 3 == 0:
                    await connection.rollback()
                elif step % 3 == 1:
                    await append_encoded(connection, f"order-{step}", [event()])
                    await connection.commit()
                else:
                    await connection.execute("SAVEPOINT here")
                    await append_encoded(connection, "order-never", [event()])
                    await connection.execute("ROLLBACK TO here")
                    await connection.commit()

    async def tail(store: PostgresEventStore, done: asyncio.Event) -> list[int]:
        seen: list[int] = []
        position = 0
        while not done.is_set() or position < await store.head():
            page = await store.read_all(after=position, limit=50)
            seen += [found.position for found in page.events]
            position = page.scanned_to
        return seen

    async def body() -> None:
        async with PostgresEventStore(dsn) as store:
            done = asyncio.Event()
            tailing = asyncio.create_task(tail(store, done))
            await asyncio.gather(
                *(service(store, number) for number in range(4)), *map(own, range(4))
            )
            done.set()
            expected = 4 * 40 * 2 + 4 * (4 * 2 + 4)
            assert await tailing == list(range(1, expected + 1))
            assert await store.head() == expected

    asyncio.run(body())
    streams = asked(
        dsn,
        "SELECT stream, array_agg(version ORDER BY position) AS versions,"
        " (SELECT version FROM es.heads s WHERE s.stream = e.stream) FROM es.events e GROUP BY 1",
    )
    assert all(versions == list(range(head + 1)) for _, versions, head in streams)
    assert not [stream for stream, _, _ in streams if stream == "order-never"]
    decreasing = """SELECT count(*) FROM es.events a JOIN es.events b
        ON b.position = a.position + 1 WHERE b.recorded_at < a.recorded_at"""
    assert asked(dsn, decreasing) == [(0,)]


@pytest.mark.matrix
def test_an_idle_holder_is_ended_and_nothing_of_it_stays(dsn: str) -> None:
    async def body() -> None:
        async with application(dsn) as holder, PostgresEventStore(dsn) as store:
            await append_encoded(holder, "order-1", [event()])
            answer = await store.append(request(to("order-2")))
            assert answer.appends[0].first_position == 1
            with pytest.raises(psycopg.Error, match="timeout"):
                await holder.commit()

    asyncio.run(body())
    assert asked(dsn, "SELECT stream FROM es.events") == [("order-2",)]


@pytest.mark.matrix
def test_a_busy_holder_is_ended_too(dsn: str) -> None:
    """It is never idle, and none of its statements takes long."""

    async def body() -> None:
        async with application(dsn) as holder, PostgresEventStore(dsn) as store:
            await append_encoded(holder, "order-1", [event()])

            async def ended() -> bool:
                try:
                    await holder.execute("SELECT 1")
                except psycopg.Error:
                    return True
                return False

            await eventually(ended, "the transaction is ended")
            answer = await store.append(request(to("order-2")))
            assert answer.appends[0].first_position == 1

    asyncio.run(body())


@pytest.mark.matrix
def test_a_lock_that_is_not_free_is_told_and_waited_for_no_longer(dsn: str) -> None:
    async def body() -> None:
        # Somebody without the limits that es.append sets: a session of the database's owner.
        async with (
            await psycopg.AsyncConnection.connect(dsn) as holder,
            application(dsn) as connection,
        ):
            await holder.execute("SELECT pg_advisory_xact_lock(7305801002)")
            with pytest.raises(Overloaded):
                await append_encoded(connection, "order-1", [event()])

    asyncio.run(body())


def test_limits_end_with_the_transaction(dsn: str) -> None:
    names = ("idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout")
    show = ", ".join(f"current_setting('{name}')" for name in names)

    async def body() -> None:
        async with application(dsn) as connection:
            before = await (await connection.execute(f"SELECT {show}".encode())).fetchone()
            await connection.execute("SET LOCAL statement_timeout = '1s'")
            await append_encoded(connection, "order-1", [event()])
            within = await (await connection.execute(f"SELECT {show}".encode())).fetchone()
            await connection.commit()
            after = await (await connection.execute(f"SELECT {show}".encode())).fetchone()
            assert within == ("2s", "1s", "0")
            assert after == before != within

    asyncio.run(body())


def test_refusals(dsn: str) -> None:
    kept = event(b"a", tags=("t:1",), metadata={"by": 1})

    async def body() -> None:
        async with application(dsn) as connection:

            async def refused(kind: type[Exception], stream: str, *args: Any, **more: Any) -> Any:
                with pytest.raises(kind) as caught:
                    await append_encoded(connection, stream, *args, **more)
                await connection.rollback()
                return caught.value

            await append_encoded(connection, "order-1", [kept])
            await connection.commit()
            conflict = await refused(VersionConflict, "order-1", [event()], expected=Version(4))
            assert conflict.fields == {"stream": "order-1", "expected": 4, "actual": 0}
            absent = await refused(VersionConflict, "order-2", [event()], expected="stream_exists")
            assert absent.fields["actual"] is None
            await refused(VersionConflict, "order-1", [event()], expected="no_stream")
            again = await append_encoded(
                connection, "order-1", [replace(kept, metadata={"by": 1, "traceparent": "x"})]
            )
            assert again.repeated
            assert again.appends[0].first_position == 1
            for other in (
                replace(kept, data=kept.data + b"b"),
                replace(kept, tags=("t:2",)),
                replace(kept, metadata={"by": 2}),
            ):
                reused = await refused(IdReused, "order-1", [other])
                assert reused.fields == {"position": 1}
            await refused(IdReused, "order-2", [kept])
            await refused(IdReused, "order-1", [kept, event()])
            twice = event()
            for stream, events in (
                ("Order-1", [event()]),
                ("order-1", []),
                ("order-1", [event()] * 1_001),
                ("order-1", [twice, twice]),
                ("order-1$metadata", [event()]),
                ("order-1", [event(type_="no-type")]),
                ("order-1", [event(type_="unknown")]),
                ("order-1", [event(tags=("a b",))]),
                ("order-1", [event(tags=tuple(f"t:{n}" for n in range(17)))]),
                ("order-1", [event(b"x" * 300_000)]),
                ("order-1", [replace(event(), data=b"{}")]),
                ("order-1", [replace(event(), data=b"\0\0\0\0\x63x")]),
            ):
                await refused(InvalidRequest, stream, events)
            assert (await append_encoded(connection, "order-1", [event()])).appends[
                0
            ].first_position == 2
            await connection.rollback()

    asyncio.run(body())


def test_the_life_of_a_stream_counts(dsn: str) -> None:
    """Versions go on after a deletion; a tombstone is the end."""

    async def body() -> None:
        async with application(dsn) as connection:
            for stream in ("order-1", "order-2"):
                await append_encoded(connection, stream, [event()])
            await connection.commit()
            asked_to(dsn, "UPDATE es.streams SET deleted = true WHERE stream = 'order-1'")
            asked_to(dsn, "UPDATE es.streams SET tombstoned = true WHERE stream = 'order-2'")
            with pytest.raises(VersionConflict):
                await append_encoded(connection, "order-1", [event()], expected="stream_exists")
            await connection.rollback()
            with pytest.raises(StreamGone) as caught:
                await append_encoded(connection, "order-2", [event()])
            assert caught.value.fields == {"stream": "order-2"}
            await connection.rollback()
            again = await append_encoded(connection, "order-1", [event()], expected="no_stream")
            assert again.appends[0].first_version == 1
            await connection.commit()

    asyncio.run(body())
    assert asked(dsn, "SELECT stream FROM es.streams WHERE deleted") == []


def test_the_role_may_append_and_nothing_else(dsn: str) -> None:
    statements = (
        "UPDATE es.lease SET number = number + 1",
        "UPDATE es.streams SET tombstoned = true",
        "DELETE FROM es.events",
        "SELECT * FROM es.events",
        "SELECT es.newest_tagged('{a}', null, null, 0, 1)",
    )

    async def body() -> None:
        async with application(dsn) as connection:
            for statement in statements:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await connection.execute(statement.encode())
                await connection.rollback()
        # And who has not been given the role may not append.
        service = conninfo(dsn, role="penstock_service")
        async with await psycopg.AsyncConnection.connect(service) as other:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await other.execute("SELECT es.append('order-1', 'any', '[]')")

    asyncio.run(body())


def test_a_snapshot_older_than_the_last_append_is_refused(dsn: str) -> None:
    async def body() -> None:
        async with application(dsn) as connection, application(dsn) as other:
            await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await connection.execute("SELECT 1")
            await append_encoded(other, "order-1", [event()])
            await other.commit()
            with pytest.raises(Unavailable, match="had begun"):
                await append_encoded(connection, "order-1", [event()])
            await connection.rollback()
            answer = await append_encoded(connection, "order-1", [event()])
            await connection.commit()
            assert answer.appends[0].first_version == 1

    asyncio.run(body())


def test_its_events_count_for_conditions_and_categories(dsn: str) -> None:
    async def body() -> None:
        async with PostgresEventStore(dsn) as store, application(dsn) as connection:
            await store.append(request(to("cart-1")))
            await append_encoded(connection, "order-1", [event(tags=("seat:1",))])
            await connection.commit()
            query = Query(items=(QueryItem(types=("order.happened",), tags=("seat:1",)),))
            with pytest.raises(ConditionFailed):
                await store.append(
                    AppendRequest(
                        appends=(to("order-2"),),
                        condition=Condition(query=query, after=Position(0)),
                    )
                )

            assert (await store.append(request(to("cart-1")))).appends[0].first_position == 3

    asyncio.run(body())
    assert asked(dsn, "SELECT category FROM es.categories ORDER BY 1") == [("cart",), ("order",)]


def test_from_json_through_the_intake(dsn: str) -> None:
    """What a service's schemas allow, a caller's transaction may write, and readers understand."""

    async def body() -> None:
        codecs = Codecs()
        async with PostgresEventStore(dsn) as store, application(dsn) as connection:
            intake = Intake(MemoryRegistry(), PostgresSchemaCache(store), "infer", codecs)
            new = NewEvent(
                id=uuid.uuid4(),
                type="placed",
                data={"total": 12},
                metadata={},
                tags=("customer:7",),
                occurred_at=None,
            )
            await append(connection, intake, "cart-1", [new], expected="no_stream")
            await connection.commit()
            assert await intake.decode(await store.event(new.id)) == {"total": 12}

    asyncio.run(body())


def test_an_event_is_given_to_sql_as_json() -> None:
    given = given_event(event(b"x", tags=("a",), metadata={"by": 1}))
    assert given.keys() == {"id", "type", "data", "metadata", "tags"}
    assert given["data"] == "AAAAAAd4"


def test_the_owner_of_the_database_sets_the_limits(dsn: str) -> None:
    """What a caller sets for itself does not count."""
    tagged = replace(event(), tags=("a", "b"))

    async def refused(connection: psycopg.AsyncConnection[Any], *events: EncodedEvent) -> bool:
        try:
            await append_encoded(connection, "order-1", list(events))
        except InvalidRequest:
            return True
        finally:
            await connection.rollback()
        return False

    async def body() -> list[bool]:
        async with application(dsn) as connection:
            await connection.execute("SET penstock.max_events = 1")
            await connection.commit()
            return [
                await refused(connection, event(), event(), event()),
                await refused(connection, event(b"x" * 100)),
                await refused(connection, tagged),
            ]

    assert asyncio.run(body()) == [False, False, False]
    with psycopg.connect(dsn) as connection:
        for name, limit in (("max_events", 2), ("max_event_bytes", 100), ("max_tags", 1)):
            connection.execute(
                f"ALTER DATABASE {connection.info.dbname} SET penstock.{name} = {limit}".encode()
            )
    assert asyncio.run(body()) == [True, True, True]
