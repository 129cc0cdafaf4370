"""What the store takes can be shown again, is durable, and stops nobody else."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from eventstore.codecs import Codecs
from eventstore.conditions import Condition, Query, QueryItem
from eventstore.intake import Intake, Mode
from eventstore.postgres import connect
from eventstore.postgres.identity import renew_id
from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from kernel.errors import InvalidRequest, StoreDiverged, Unavailable
from kernel.positions import Position
from schemas.records import NewEvent
from schemas.registry import MemoryRegistry
from schemas.wire import frame
from tests.contracts.events import event, request, to
from tests.support.store.groups import world
from tests.support.store.postgres import Cluster, database

MODES: tuple[Mode, ...] = ("infer", "strict")
SCHEMA = '{"type":"record","name":"T","fields":[{"name":"n","type":"long"}]}'
FRAMED = base64.b64encode(frame(1, b"\x02")).decode()


async def keep_schemas(dsn: str) -> None:
    async with PostgresEventStore(dsn) as store:
        cache = PostgresSchemaCache(store)
        await cache.keep("order.placed", 1, SCHEMA)
        await cache.keep("order.paid", 2, SCHEMA)


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    asyncio.run(keep_schemas(postgres_dsn))
    return postgres_dsn


@pytest.fixture(scope="module")
def refusing(postgres_cluster: Cluster) -> Iterator[str]:
    """One store for all that is refused: it stays empty."""
    with database(postgres_cluster) as dsn:
        asyncio.run(keep_schemas(dsn))
        yield dsn
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT count(*) FROM es.events").fetchone() == (0,)


def appended(connection: psycopg.Connection[Any], stream: str = "order-1", **more: object) -> None:
    given = {"id": str(uuid4()), "type": "placed", "data": FRAMED} | more
    connection.execute("SELECT es.append(%s, 'any', %s)", (stream, json.dumps([given])))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"metadata": {"n": 10**20}}, "number"),
        ({"metadata": {"a": [{"n": -(2**63) - 1}]}}, "number"),
        pytest.param(
            {"metadata": {"x": "a" * 300_000}}, "more than 262144 bytes", marks=pytest.mark.matrix
        ),
        ({"metadata": json.loads('{"a":' * 70 + "1" + "}" * 70)}, "deeper"),
        ({"occurred_at": "infinity"}, "occurred_at"),
        ({"occurred_at": "0044-03-15 BC"}, "occurred_at"),
        ({"type": "paid"}, "is not written with schema 1"),
    ],
)
def test_es_append_refuses_what_could_not_be_shown(
    refusing: str, given: dict[str, object], complaint: str
) -> None:
    with psycopg.connect(refusing) as connection:
        with pytest.raises(psycopg.Error, match=complaint) as caught:
            appended(connection, **given)
        assert caught.value.sqlstate == "ES004"


@pytest.mark.matrix
def test_es_append_takes_metadata_of_every_kind(dsn: str) -> None:
    metadata = {"a": [1, -2.5, 0.1, 1e-7, None, True, "x"], "b": 2**63 - 1}
    with psycopg.connect(dsn) as connection:
        appended(connection, metadata=metadata, occurred_at="2013-01-01T05:15:00Z")
        row = connection.execute("SELECT metadata FROM es.events").fetchone()
    assert row == (metadata,)


def test_p1_an_append_in_a_transaction_is_durable_whatever_the_session_says(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.commit()
        appended(connection)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        connection.commit()
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)


@pytest.mark.matrix
def test_appends_leave_no_versions_of_a_row_behind(dsn: str) -> None:
    """The head is read from the last event, in a few pages, however many appends there were."""
    with psycopg.connect(dsn) as connection:
        for _ in range(3):
            appended(connection)
        assert connection.execute("SELECT position FROM es.counter").fetchone() == (3,)
        connection.execute("SET enable_seqscan = off")
        rows = connection.execute("EXPLAIN SELECT position FROM es.counter").fetchall()
    plan = "\n".join(line for (line,) in rows)
    assert "Scan Backward using events_pkey" in plan
    assert "->  Sort" not in plan


def test_a_condition_is_searched_before_the_lock_and_within_one_budget(postgres_dsn: str) -> None:
    """Two tags that are everywhere and never meet: told quickly, and nobody waits for it."""
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(
            "INSERT INTO es.tags (tag, position, category, type)"
            " SELECT 'even:' || n % 2, n, 'order', 'placed' FROM generate_series(1, 30000) AS n"
        )
    items = [QueryItem(types=(f"t{n}",), tags=("even:0", "even:1")) for n in range(15)]
    broad = Condition(
        query=Query(items=(QueryItem(tags=("even:0", "even:1")), *items)), after=Position(0)
    )
    narrow = Condition(query=Query(items=(QueryItem(tags=("rare:1",)),)), after=Position(0))

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            with pytest.raises(InvalidRequest, match="cannot be judged"):
                await store.append(replace(request(to("order-1")), condition=broad))
            await store.append(replace(request(to("order-1")), condition=narrow))
            assert await store.head() == 1

    asyncio.run(body())
    with psycopg.connect(postgres_dsn) as connection:
        walks = [{"number": 0, "tags": ["even:0", "even:1"], "after": 0}] * 16
        statement = "SELECT number, newest FROM es.newest_matches(%s, 160)"
        assert connection.execute(statement, (json.dumps(walks),)).fetchall() == [(0, -1)]
        walks = [{"number": n, "tags": [f"even:{n}"], "after": 0} for n in range(2)]
        found = connection.execute(statement, (json.dumps(walks),)).fetchall()
    assert found == [(0, 30000), (1, 29999)]


@pytest.mark.matrix
def test_a_head_that_goes_backwards_stops_the_store(dsn: str) -> None:
    """For who appends in a transaction of their own too, and after a restart of the service."""

    async def body() -> str:
        async with PostgresEventStore(dsn, lease_ttl_s=60) as store:
            await store.append(request(to("order-1", [event(), event()])))
            before = store.feed_head.position
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("ALTER TABLE es.events DISABLE TRIGGER USER")
                connection.execute("DELETE FROM es.events WHERE position = 2")
            with pytest.raises(StoreDiverged, match="position 1") as caught:
                await store.read_all(after=0, limit=10)
            assert caught.value.fields == {"head": 1, "known": before}
            for _ in range(2):
                with pytest.raises(StoreDiverged):
                    await store.append(request(to("order-1")))
        async with PostgresEventStore(dsn) as store:
            with pytest.raises(StoreDiverged, match="position 1, and had 2"):
                await store.append(request(to("order-1")))
            return (await store.read_all(after=0, limit=10)).events[0].store_id

    before = asyncio.run(body())
    with psycopg.connect(dsn, autocommit=True) as connection:
        with pytest.raises(psycopg.Error, match="lost events") as refused:
            appended(connection, "order-2")
        assert refused.value.sqlstate == "ES005"
        assert json.loads(refused.value.diag.message_detail or "") == {"head": 1, "known": 2}
        assert asyncio.run(renew_id(dsn)) != before
        appended(connection, "order-2")


@pytest.mark.matrix
def test_who_has_the_lease_appends_nothing_once_a_loss_was_found(dsn: str) -> None:
    """The writer took the lease after the loss, and another process found it later."""

    async def body() -> None:
        async with PostgresEventStore(dsn, lease_ttl_s=60) as store:
            await store.append(request(to("order-1")))
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("UPDATE es.store SET known_head = 9")
            with pytest.raises(StoreDiverged, match="position 1, and had 9"):
                await store.append(request(to("order-1")))

    asyncio.run(body())


def test_a_second_service_knows_types_that_were_born_after_its_start(postgres_dsn: str) -> None:
    """It finds them beside the events: its registry has never heard of them."""
    born = NewEvent(id=uuid4(), type="born", data={"n": 1}, metadata={}, tags=(), occurred_at=None)

    async def body() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            first, second = (
                Intake(MemoryRegistry(), PostgresSchemaCache(store), mode, Codecs())
                for mode in MODES
            )
            await second.load()
            (encoded,) = await first.encode("order", [born])
            (again,) = await second.encode("order", [born])
            assert again.data == encoded.data
            third = Intake(MemoryRegistry(), PostgresSchemaCache(store), "strict", Codecs())
            assert (await third.codec(encoded.schema_id)).inferred

    asyncio.run(body())


@pytest.mark.matrix
def test_a_statement_that_takes_too_long_is_given_up_by_all_who_read(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connect._STATEMENT_TIMEOUT == "SET statement_timeout = '30s'"
    monkeypatch.setattr(connect, "_STATEMENT_TIMEOUT", "SET statement_timeout = '100ms'")

    async def body() -> None:
        with psycopg.connect(dsn) as holder:
            async with world(dsn) as w, asyncio.timeout(60):
                await w.append("order-1")
                await w.create()
                holder.execute("LOCK TABLE es.events, es.subscriptions IN ACCESS EXCLUSIVE MODE")
                for call in (
                    w.store.read_all(after=0, limit=1),
                    w.store.event(uuid4()),
                    w.store.head(),
                    w.groups.standings(),
                    w.take(),
                ):
                    with pytest.raises(Unavailable, match="statement timeout"):
                        await call
                holder.rollback()
                assert len(await w.take()) == 1

    asyncio.run(body())


def test_archived_events_leave_the_indexes_of_a_large_store_soon(dsn: str) -> None:
    """PostgreSQL's own setting waits until a fifth of all rows are dead: of a billion events two
    hundred million would be passed by whoever reads on from a place before them.
    """
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT option_value::float8 FROM pg_class, pg_options_to_table(reloptions)"
            " WHERE oid = 'es.events'::regclass"
            " AND option_name = 'autovacuum_vacuum_scale_factor'"
        ).fetchone()
    assert row is not None
    assert row[0] <= 0.02


@pytest.mark.matrix
def test_connections_that_the_server_ended_are_not_lent(dsn: str) -> None:
    """Whether one leads somewhere is not asked of the server: it would have said so."""

    async def body() -> None:
        async with PostgresEventStore(dsn, readers=2) as store:
            await store.append(request(to("order-1")))
            await asyncio.gather(store.head(), store.head())
            for _ in range(3):
                with psycopg.connect(dsn, autocommit=True) as connection:
                    connection.execute(
                        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                        " WHERE datname = current_database()"
                        " AND application_name = 'penstock-service'"
                    )
                assert await store.head() == 1

    asyncio.run(body())
