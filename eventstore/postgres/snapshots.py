"""What deciders keep in PostgreSQL: snapshots, answers of commands, schema versions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson

from eventstore.deciders.answers import KEEP, KeptAnswer, KeyLocks
from eventstore.deciders.snapshots import Snapshot
from eventstore.postgres.queries import query
from eventstore.postgres.store import PostgresEventStore
from kernel.positions import Position, Version
from schemas.registry import RegisteredSchema


class PostgresSnapshots:
    """`Snapshots` in the table `es.snapshots`."""

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store

    async def newest(self, stream: str, decider: str) -> Snapshot | None:
        """Return what is kept."""
        async with self._store.reader("reading a snapshot") as connection:
            cursor = await connection.execute(
                query("read_snapshot"), {"stream": stream, "decider": decider}
            )
            row = await cursor.fetchone()
        if row is None:
            return None
        first_version, version, position, recorded_at, shapes, state = row
        return Snapshot(
            stream=stream,
            decider=decider,
            first_version=Version(first_version),
            version=Version(version),
            position=Position(position),
            recorded_at=recorded_at,
            shapes=orjson.loads(shapes),
            state=state,
        )

    async def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; those of the same stream by code of long ago are forgotten."""
        async with self._store.reader("keeping a snapshot") as connection:
            await connection.execute(
                query("keep_snapshot"),
                {
                    "stream": snapshot.stream,
                    "decider": snapshot.decider,
                    "first_version": snapshot.first_version,
                    "version": snapshot.version,
                    "position": snapshot.position,
                    "recorded_at": snapshot.recorded_at,
                    "shapes": orjson.dumps(
                        dict(snapshot.shapes), option=orjson.OPT_SORT_KEYS
                    ).decode(),
                    "state": snapshot.state,
                },
            )


class PostgresAnswers:
    """`KeptAnswers` in the table `es.commands`.

    One key at a time: tasks of this process by a lock of its own, other services by an advisory
    lock that ends with its connection.
    """

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store
        self._locks = KeyLocks()

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Wait for the key, and hold it."""
        async with self._locks.alone(key):
            yield

    async def find(self, key: str) -> KeptAnswer | None:
        """Return the answer that is kept for a key."""
        async with self._store.reader("reading an answer") as connection:
            cursor = await connection.execute(
                "SELECT fingerprint, answer::text FROM es.commands WHERE key = %(key)s",
                {"key": key},
            )
            row = await cursor.fetchone()
        return None if row is None else KeptAnswer(key=key, fingerprint=row[0], answer=row[1])

    async def keep(self, answer: KeptAnswer) -> None:
        """Keep an answer, and forget a few that are too old."""
        async with self._store.reader("keeping an answer") as connection:
            await connection.execute(
                query("keep_answer"),
                {
                    "key": answer.key,
                    "fingerprint": answer.fingerprint,
                    "answer": answer.answer,
                    "keep": KEEP,
                },
            )


class PostgresVersions:
    """`KeptVersions` in the table `es.schema_versions`."""

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store

    async def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return the versions that are kept of a subject, oldest first."""
        async with self._store.reader("reading schema versions") as connection:
            cursor = await connection.execute(
                "SELECT version, schema_id, schema FROM es.schema_versions"
                " WHERE subject = %(subject)s ORDER BY version",
                {"subject": subject},
            )
            rows = await cursor.fetchall()
        return tuple(
            RegisteredSchema(subject=subject, id=schema_id, version=version, schema=schema)
            for version, schema_id, schema in rows
        )

    async def keep(self, versions: Sequence[RegisteredSchema]) -> None:
        """Keep versions; those that are there already stay as they are."""
        async with (
            self._store.reader("keeping schema versions") as connection,
            connection.transaction(),
        ):
            for each in versions:
                await connection.execute(
                    query("keep_schema_version"),
                    {
                        "subject": each.subject,
                        "version": each.version,
                        "schema_id": each.id,
                        "schema": each.schema,
                    },
                )
