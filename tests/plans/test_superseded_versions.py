"""What an old snapshot keeps from being removed is not passed by those who append and deliver."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from eventstore.deciders.answers import KEEP, KeptAnswer
from eventstore.postgres.commit import PostgresGroupCommit
from eventstore.postgres.queries import query
from eventstore.postgres.snapshots import PostgresAnswers
from eventstore.postgres.store import PostgresEventStore
from kernel.errors import Standby, Unavailable
from tests.support.services.waiting import until
from tests.support.store.groups import World, world

VERSIONS = 20_000
FINISHED = f"""
INSERT INTO es.deliveries (subscription, position, event_id, stream, due_at, deliveries)
    SELECT 'g', n, md5(n::text)::uuid, 'order-1', now(), 1 FROM generate_series(1, {VERSIONS}) n;
DELETE FROM es.deliveries;
INSERT INTO es.rounds (subscription, number, scanned_to, finished_to, parked, redelivered)
    SELECT 'g', n, n, n, 0, 0 FROM generate_series(1000, 1000 + {VERSIONS}) n;
DELETE FROM es.rounds WHERE number < 1000 + {VERSIONS};
"""
MOST_BLOCKS = 30
"""Blocks of 8 KiB that a round may touch when it begins; what was finished fills hundreds."""


def blocks(connection: psycopg.Connection[Any], name: str) -> int:
    """Return how many blocks the reading statements of a file touch."""
    touched = 0
    for statement in query(name).as_string().split(";"):
        if "WHERE" in statement:
            text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement.encode()
            row = connection.execute(text, {"group": "g", "ids": []}).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            assert '"Seq Scan"' not in json.dumps(plan), plan
            touched += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    return touched


def test_a_round_passes_nothing_that_its_group_has_finished(postgres_dsn: str) -> None:
    async def group() -> None:
        async with world(postgres_dsn) as w:
            await w.create()

    asyncio.run(group())
    with (
        psycopg.connect(postgres_dsn) as old,
        psycopg.Connection.connect(
            postgres_dsn, autocommit=True, cursor_factory=psycopg.ClientCursor
        ) as connection,
    ):
        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        for statement in FINISHED.strip().split(";\n"):
            connection.execute(statement.encode())
        connection.execute("VACUUM ANALYZE es.deliveries, es.rounds, es.subscriptions")
        connection.execute("SET enable_seqscan = off")
        for name in ("group_lock", "group_lock_named"):
            assert blocks(connection, name) <= MOST_BLOCKS, name


def test_no_row_is_updated_for_appends_and_rounds(postgres_dsn: str) -> None:
    async def busy() -> None:
        async with world(postgres_dsn) as w:
            await w.create()
            for _ in range(5):
                await w.append("order-1", "order-2")
                taken = await w.take()
                await w.groups.ack("g", [id_ for id_, _ in taken])

    asyncio.run(busy())
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:

        def changed(column: str) -> dict[str, int]:
            return dict(
                connection.execute(
                    f"SELECT relname, {column} FROM pg_stat_user_tables"
                    f" WHERE schemaname = 'es' AND {column} > 0".encode()
                ).fetchall()
            )

        def counted() -> bool:
            """Sessions say what they changed when they end, a moment after they were let go."""
            made = changed("n_tup_ins")
            return made.get("events") == 10 and made.get("rounds", 0) > 10

        until(counted, "all changes are counted")
        # The lease is taken, and given back; the fixture gave the store an id of its own.
        assert set(changed("n_tup_upd")) <= {"lease", "store"}


def test_the_lease_is_renewed_and_its_row_stays(postgres_dsn: str) -> None:
    """Every append reads it. What expires is the newest renewal, and there is one."""

    def rows(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(postgres_dsn) as connection:
            cursor = connection.execute(statement.encode())
            return [] if cursor.description is None else cursor.fetchall()

    async def renewed() -> None:
        writer = PostgresGroupCommit(postgres_dsn, holder="one", lease_ttl_s=0)
        other = PostgresGroupCommit(postgres_dsn, holder="two", lease_ttl_s=60)
        await writer.prepare()
        before = rows("SELECT ctid, number FROM es.lease")
        for _ in range(20):
            await writer.prepare()
        assert rows("SELECT ctid, number FROM es.lease") == before
        assert rows("SELECT renewal, number FROM es.renewals") == [(20, before[0][1])]
        await other.prepare()
        assert rows("SELECT count(*) FROM es.renewals") == [(0,)]
        with pytest.raises(Unavailable, match="another writer took over"):
            await writer.prepare()
        await other.prepare()
        late = PostgresGroupCommit(postgres_dsn, holder="three", lease_ttl_s=60)
        rows("UPDATE es.lease SET expires_at = '-infinity'")
        rows("INSERT INTO es.renewals SELECT number, 1, now() + interval '1 hour' FROM es.lease")
        with pytest.raises(Standby, match="two is the writer"):
            await late.prepare()
        for each in (other, late, writer):
            await each.close()
        assert rows("SELECT count(*) FROM es.renewals") == [(0,)]

    asyncio.run(renewed())


OLD_ANSWERS = """
INSERT INTO es.commands (key, fingerprint, answer, at)
    SELECT n::text, 'f', '{{}}', now() - interval '9 days' + n * interval '1 ms'
        FROM generate_series({first}, {last}) AS n
"""


@pytest.mark.parametrize("left", [0, 150])
def test_answers_that_were_forgotten_are_not_passed_again(postgres_dsn: str, left: int) -> None:
    async def kept() -> list[int]:
        async with PostgresEventStore(postgres_dsn) as store:
            answers = PostgresAnswers(store, postgres_dsn)
            touched = []
            for number in range(2):
                await answers.keep(KeptAnswer(key=f"k{number}", fingerprint="f", answer="{}"))
                touched.append(read(answers._forgotten_to))
            return touched

    with (
        psycopg.connect(postgres_dsn) as old,
        psycopg.Connection.connect(
            postgres_dsn, autocommit=True, cursor_factory=psycopg.ClientCursor
        ) as connection,
    ):

        def read(from_: datetime) -> int:
            values = {"key": "x", "fingerprint": "f", "answer": "{}", "keep": KEEP, "from": from_}
            text = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query("keep_answer").as_bytes()
            with connection.transaction(force_rollback=True):
                row = connection.execute(text, values).fetchone()
            assert row is not None
            plan = row[0][0]["Plan"]
            return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

        old.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        old.execute("SELECT 1")
        connection.execute(OLD_ANSWERS.format(first=1, last=VERSIONS).encode())
        connection.execute("DELETE FROM es.commands")
        connection.execute(OLD_ANSWERS.format(first=VERSIONS + 1, last=VERSIONS + left).encode())
        connection.execute("VACUUM ANALYZE es.commands")
        connection.execute("SET enable_seqscan = off")
        everything = read(datetime.min.replace(tzinfo=UTC))
        assert everything > 100
        _, last = asyncio.run(kept())
        assert connection.execute("SELECT count(*) FROM es.commands").fetchone() == (2,)
        assert last <= MOST_BLOCKS


def progress(dsn: str) -> list[tuple[int, int, int]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT scanned_to, finished_to, parked FROM es.rounds"
        ).fetchall()


def test_finished_is_what_has_nothing_unfinished_before_it(postgres_dsn: str) -> None:
    async def steps(w: World) -> None:
        await w.create()
        first, second, third = await w.append("order-1", "order-2", "order-3")
        await w.take()
        await w.groups.ack("g", [first, third])
        assert progress(postgres_dsn) == [(3, 1, 0)]
        await w.groups.park("g", [second], reason="no")
        assert progress(postgres_dsn) == [(3, 3, 1)]
        assert await w.groups.replay_parked("g") == (1, 0)
        assert progress(postgres_dsn) == [(3, 1, 0)]
        assert [id_ for id_, _ in await w.take()] == [second]
        await w.groups.ack("g", [second])
        assert progress(postgres_dsn) == [(3, 3, 0)]

    async def all_steps() -> None:
        async with world(postgres_dsn) as w:
            await steps(w)

    asyncio.run(all_steps())
