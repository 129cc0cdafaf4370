"""Snapshots, answers and schema versions: what every keeper of them does, PostgreSQL's included."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from eventstore.deciders.answers import KeptAnswer, KeptAnswers
from eventstore.deciders.snapshots import MOST, Snapshot, Snapshots
from eventstore.postgres.snapshots import PostgresAnswers, PostgresSnapshots, PostgresVersions
from eventstore.postgres.store import PostgresEventStore
from eventstore.upcasting import KeptVersions, MemoryVersions
from kernel.positions import Position, Version
from schemas.registry import RegisteredSchema
from tests.support.services.waiting import eventually
from tests.support.store.memory import MemoryAnswers, MemorySnapshots

SNAPSHOT = Snapshot(
    stream="account-1",
    decider="1.abc",
    first_version=Version(0),
    version=Version(9),
    position=Position(12),
    recorded_at=datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC),
    shapes={"account.paid": 2},
    state=json.dumps({"text": "\x00 \ud7ff", "whole": 2**64 - 1, "float": 1e22, "b": 1.0, "a": 1}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepers:
    """Everything that deciders keep; `others` are those of another service."""

    snapshots: Snapshots
    answers: KeptAnswers
    others: KeptAnswers
    versions: KeptVersions


@asynccontextmanager
async def keepers(kind: str, dsn: str) -> AsyncIterator[Keepers]:
    if kind == "memory":
        answers = MemoryAnswers()
        yield Keepers(
            snapshots=MemorySnapshots(), answers=answers, others=answers, versions=MemoryVersions()
        )
        return
    async with PostgresEventStore(dsn) as store:
        ours, theirs = PostgresAnswers(store, dsn), PostgresAnswers(store, dsn)
        yield Keepers(
            snapshots=PostgresSnapshots(store),
            answers=ours,
            others=theirs,
            versions=PostgresVersions(store),
        )
        await ours.close()
        await theirs.close()


@pytest.fixture(params=["memory", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_last_snapshot_up_to_a_version_or_time_comes_back(kind: str, postgres_dsn: str) -> None:
    later = replace(
        SNAPSHOT, version=Version(14), recorded_at=SNAPSHOT.recorded_at + timedelta(hours=1)
    )

    async def check() -> None:
        async with keepers(kind, postgres_dsn) as kept:
            snapshots = kept.snapshots
            assert await snapshots.newest("account-1", "1.abc") is None
            await snapshots.keep(later)
            await snapshots.keep(SNAPSHOT)
            assert await snapshots.newest("account-1", "1.abc") == later
            assert await snapshots.newest("account-1", "2.abc") is None
            assert await snapshots.newest("account-2", "1.abc") is None
            assert await snapshots.newest("account-1", "1.abc", version=13) == SNAPSHOT
            assert await snapshots.newest("account-1", "1.abc", version=8) is None
            at = SNAPSHOT.recorded_at
            assert await snapshots.newest("account-1", "1.abc", at=at) == SNAPSHOT
            early = at - timedelta(microseconds=1)
            assert await snapshots.newest("account-1", "1.abc", at=early) is None

    asyncio.run(check())


def test_snapshots_of_other_events_or_shapes_go(kind: str, postgres_dsn: str) -> None:
    async def check() -> None:
        async with keepers(kind, postgres_dsn) as kept:
            snapshots = kept.snapshots
            for better in (
                SNAPSHOT,
                replace(SNAPSHOT, version=Version(7), first_version=Version(3)),
                replace(SNAPSHOT, first_version=Version(3), shapes={"account.paid": 3}),
            ):
                await snapshots.keep(better)
                assert await snapshots.newest("account-1", "1.abc") == better
            await snapshots.keep(replace(better, first_version=Version(0), version=Version(8)))
            assert await snapshots.newest("account-1", "1.abc") == better
            assert await snapshots.newest("account-1", "1.abc", version=8) is None

    asyncio.run(check())


def test_so_many_snapshots_are_kept_however_long_a_stream_gets(
    kind: str, postgres_dsn: str
) -> None:
    async def check() -> None:
        async with keepers(kind, postgres_dsn) as kept:
            for version in range(10, 700, 10):
                await kept.snapshots.keep(replace(SNAPSHOT, version=Version(version)))
            found = {
                each.version
                for version in range(700)
                if (each := await kept.snapshots.newest("account-1", "1.abc", version=version))
            }
            assert len(found) <= MOST + 1
            assert max(found) == 690
            for version in (*found, 695):
                new = replace(SNAPSHOT, version=Version(version))
                assert await kept.snapshots.would_keep("account-1", "1.abc", new)
            for new in (
                replace(SNAPSHOT, version=Version(min(found) + 1)),
                replace(SNAPSHOT, version=Version(689)),
            ):
                assert not await kept.snapshots.would_keep("account-1", "1.abc", new)

    asyncio.run(check())


def test_the_first_answer_of_a_key_stays(kind: str, postgres_dsn: str) -> None:
    async def check() -> None:
        async with keepers(kind, postgres_dsn) as kept:
            assert await kept.answers.find("k") is None
            first = KeptAnswer(key="k", fingerprint="f", answer='{"version": 1}')
            await kept.answers.keep(first)
            await kept.answers.keep(replace(first, answer="{}", fingerprint="g"))
            assert await kept.others.find("k") == first
            assert await kept.answers.find("K") is None

    asyncio.run(check())


def test_one_at_a_time_holds_a_key(kind: str, postgres_dsn: str) -> None:
    """In this service and in others; another key waits for nobody."""
    inside: list[str] = []

    async def hold(answers: KeptAnswers, key: str, leave: asyncio.Event) -> None:
        async with answers.alone(key):
            assert key not in inside
            inside.append(key)
            await leave.wait()
            inside.remove(key)

    async def holds(*keys: str) -> bool:
        return sorted(inside) == sorted(keys)

    async def check() -> None:
        async with keepers(kind, postgres_dsn) as kept:
            leave = [asyncio.Event() for _ in range(4)]
            first = asyncio.create_task(hold(kept.answers, "k", leave[0]))
            await eventually(lambda: holds("k"), "the first one holds it")
            second = asyncio.create_task(hold(kept.answers, "k", leave[1]))
            third = asyncio.create_task(hold(kept.others, "k", leave[2]))
            other = asyncio.create_task(hold(kept.others, "other", leave[3]))
            await eventually(lambda: holds("k", "other"), "another key is free")
            for event in leave:
                event.set()
            await asyncio.gather(first, second, third, other)
            assert inside == []

    asyncio.run(check())


def test_keys_are_free_again_when_their_service_dies(postgres_dsn: str) -> None:
    async def check() -> None:
        async with keepers("postgres", postgres_dsn) as kept:
            async with kept.others.alone("k"):
                with psycopg.connect(postgres_dsn, autocommit=True) as admin:
                    admin.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_locks"
                        " WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
                        " AND database = (SELECT oid FROM pg_database"
                        " WHERE datname = current_database())"
                    )
                async with kept.answers.alone("k"):
                    pass
            async with kept.others.alone("k"):
                pass

    asyncio.run(check())


def test_answers_are_forgotten_after_their_time(postgres_dsn: str) -> None:
    async def check() -> None:
        async with keepers("postgres", postgres_dsn) as kept:
            for key in ("old", "young"):
                await kept.answers.keep(KeptAnswer(key=key, fingerprint="f", answer="{}"))
            with psycopg.connect(postgres_dsn) as connection:
                connection.execute(
                    "UPDATE es.commands SET at = at - interval '8 days' WHERE key = 'old'"
                )
            # Another service, which has not looked yet: time does not go back for the first one.
            await kept.others.keep(KeptAnswer(key="new", fingerprint="f", answer="{}"))
            assert await kept.answers.find("old") is None
            assert await kept.answers.find("young") is not None

    asyncio.run(check())


def test_schema_versions_are_kept_in_order(kind: str, postgres_dsn: str) -> None:
    def version(number: int, schema: str = "{}") -> RegisteredSchema:
        return RegisteredSchema(subject="a.b", id=number + 10, version=number, schema=schema)

    async def check() -> None:
        async with keepers(kind, postgres_dsn) as kept:
            assert await kept.versions.versions("a.b") == ()
            await kept.versions.keep([version(2), version(1)])
            await kept.versions.keep([version(1, "other"), version(3)])
            assert await kept.versions.versions("a.b") == (version(1), version(2), version(3))
            assert await kept.versions.versions("a.c") == ()

    asyncio.run(check())
