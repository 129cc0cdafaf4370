"""What only a database can do to an event store: rights, restarts, rivals."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from eventstore.appender import AppendLimits
from eventstore.postgres.commit import PostgresGroupCommit
from eventstore.postgres.connect import SERVICE_ROLE, conninfo
from eventstore.postgres.migrate import migrate
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import Appended
from kernel.errors import ContractViolation, LeaseLost, OutcomeUnknown, Unavailable
from tests.contracts.events import event, request, to
from tests.support.services.waiting import eventually
from tests.support.store.postgres import Cluster

QUICK = AppendLimits(answer_s=1.0, retry_s=0.02, idle_s=0.05)


def asked(dsn: str, statement: str) -> Any:
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else None


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE es.events SET type = 'other'",
        "DELETE FROM es.events",
        "TRUNCATE es.events",
        "DELETE FROM es.streams",
        "UPDATE es.store SET store_id = gen_random_uuid()",
        "UPDATE es.schemas SET schema = ''",
    ],
)
def test_the_service_role_cannot_change_what_is_recorded(postgres_dsn: str, statement: str) -> None:
    with (
        psycopg.connect(conninfo(postgres_dsn, role=SERVICE_ROLE)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    ["UPDATE es.events SET type = 'other'", "DELETE FROM es.events", "TRUNCATE es.events"],
)
def test_not_even_a_superuser_changes_events_by_mistake(postgres_dsn: str, statement: str) -> None:
    with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
        asked(postgres_dsn, statement)


@pytest.mark.matrix
def test_appends_wait_for_a_database_that_restarts(own_cluster: Cluster) -> None:
    dsn = own_cluster.dsn("postgres")

    async def body() -> None:
        await migrate(dsn)
        async with PostgresEventStore(dsn) as store:
            await store.append(request(to("order-1")))
            await asyncio.to_thread(own_cluster.stop)
            with pytest.raises(Unavailable):
                await store.head()
            waiting = asyncio.gather(*(store.append(request(to("order-1"))) for _ in range(20)))
            await asyncio.to_thread(own_cluster.start)
            answers = await waiting
            positions = sorted(answer.appends[0].first_position for answer in answers)
            assert positions == list(range(2, 22))
            await eventually(lambda: answers_again(store), "reads answer again")

    async def answers_again(store: PostgresEventStore) -> bool:
        try:
            return await store.head() == 21
        except Unavailable:
            return False

    asyncio.run(body())


def test_p1_connections_that_break_at_any_moment_lose_and_repeat_nothing(
    postgres_dsn: str,
) -> None:
    """The writer's connection is cut again and again under load; nobody retries by hand."""

    async def cut(stop: asyncio.Event, done: list[tuple[Any, int]]) -> None:
        pause_s = 0.03
        async with await psycopg.AsyncConnection.connect(
            postgres_dsn, autocommit=True
        ) as connection:
            while not stop.is_set():
                before = len(done)
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'penstock-service' AND datname = current_database()"
                )
                await asyncio.sleep(pause_s)
                # On a machine so slow that nobody connects in between, nothing would ever be done.
                pause_s = 0.03 if len(done) > before else min(pause_s * 1.5, 1.0)

    async def body() -> None:
        stop = asyncio.Event()
        async with PostgresEventStore(postgres_dsn, limits=AppendLimits(retry_s=0.005)) as store:
            expected: list[tuple[Any, int]] = []
            cutter = asyncio.create_task(cut(stop, expected))

            async def writer(number: int) -> None:
                for version in range(25):
                    new = event()
                    answer = await store.append(
                        request(to(f"order-{number}", [new], expected=_after(version)))
                    )
                    assert answer.appends[0].last_version == version
                    expected.append((new.id, answer.appends[0].first_position))

            await asyncio.gather(*(writer(number) for number in range(8)))
            stop.set()
            await cutter
        rows = asked(postgres_dsn, "SELECT id, position FROM es.events ORDER BY position")
        assert rows == sorted(expected, key=lambda pair: pair[1])
        assert [position for _, position in rows] == list(range(1, 201))

    asyncio.run(body())


def _after(version: int) -> Any:
    return version - 1 if version else "no_stream"


@pytest.mark.matrix
def test_a_rival_takes_over_when_the_writer_ends(postgres_dsn: str) -> None:
    async def body() -> None:
        async with PostgresEventStore(postgres_dsn, limits=QUICK) as first:
            await first.append(request(to("order-1")))
            async with PostgresEventStore(postgres_dsn, limits=QUICK) as second:
                with pytest.raises(Unavailable, match="is the writer now"):
                    await second.append(request(to("order-1")))
                page = await second.read_all(after=0, limit=10)
                assert len(page.events) == 1
                await first.appender.stop()
                answer = await second.append(request(to("order-1", expected=_after(1))))
                assert answer.appends[0].first_position == 2

    asyncio.run(body())


def test_a_stale_writer_is_fenced_off(postgres_dsn: str) -> None:
    """A writer that was silent past its lease finds the next number and commits nothing."""

    async def body() -> None:
        stale = PostgresGroupCommit(postgres_dsn, holder="stale", lease_ttl_s=0.05)
        await stale.prepare()
        await stale.commit([request(to("order-1"))])
        fresh = PostgresGroupCommit(postgres_dsn, holder="fresh", lease_ttl_s=30)

        async def taken() -> bool:
            try:
                await fresh.prepare()
            except Unavailable:
                return False
            return True

        await eventually(taken, "the overdue lease is taken")
        with pytest.raises(LeaseLost):
            await stale.commit([request(to("order-1"))])
        outcomes, head = await fresh.commit([request(to("order-1", expected=_after(1)))])
        assert isinstance(outcomes[0], Appended)
        assert head == 2
        with pytest.raises(Unavailable, match="fresh is the writer"):
            await stale.prepare()
        await stale.close()
        await fresh.close()

    asyncio.run(body())
    assert asked(postgres_dsn, "SELECT count(*) FROM es.events") == [(2,)]


def test_data_that_the_database_refuses_fails_alone(postgres_dsn: str) -> None:
    """The edge keeps U+0000 out of metadata; the appender does not rely on that."""

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            asks = [
                request(to(f"order-{i}", [event(metadata={"x": "\x00"} if i == 4 else {})]))
                for i in range(10)
            ]
            outcomes = await asyncio.gather(*map(store.append, asks), return_exceptions=True)
            assert isinstance(outcomes.pop(4), ContractViolation)
            assert all(isinstance(outcome, Appended) for outcome in outcomes)
            assert await store.head() == 9

    asyncio.run(body())


def test_the_writer_notices_appends_of_others(postgres_dsn: str) -> None:
    """A head that moved means that remembered heads of streams are old."""

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(request(to("order-1")))
            asked(
                postgres_dsn,
                """
                INSERT INTO es.events (position, store_id, id, stream, version, category, type,
                    schema_id, data, occurred_at, recorded_at)
                SELECT 2, store_id, gen_random_uuid(), stream, 1, category, type, schema_id, data,
                    now(), now() FROM es.events;
                """,
            )
            answer = await store.append(request(to("order-1", expected=_after(2))))
            assert answer.appends[0].first_version == 2
            assert answer.appends[0].first_position == 3

    asyncio.run(body())


@pytest.mark.matrix
def test_without_a_database_the_deadline_answers(own_cluster: Cluster) -> None:
    dsn = own_cluster.dsn("postgres")

    async def body() -> None:
        await migrate(dsn)
        async with PostgresEventStore(dsn, limits=QUICK) as store:
            await store.append(request(to("order-1")))
            await asyncio.to_thread(own_cluster.stop)
            with pytest.raises(Unavailable) as caught:
                await store.append(request(to("order-1")))
            assert not isinstance(caught.value, OutcomeUnknown)
            assert store.appender.trouble is not None

    asyncio.run(body())
