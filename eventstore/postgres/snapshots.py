"""What deciders and the evolution of schemas keep in PostgreSQL beside the events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from hashlib import sha256

import orjson

from eventstore.deciders.answers import KEEP, KeptAnswer, KeyLocks
from eventstore.deciders.snapshots import Snapshot, Stand, Stands, kept_beside
from eventstore.postgres.connect import Connection, connect, wrapped
from eventstore.postgres.queries import query
from eventstore.postgres.store import PostgresEventStore
from kernel.errors import Unavailable
from kernel.positions import Position, Version
from schemas.compatibility import Level
from schemas.registry import RegisteredSchema

_KEY_WAIT_S = 15.0
_KEY_PAUSE_S = 0.02


class PostgresSnapshots:
    """`Snapshots` in the table `es.snapshots`."""

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store

    async def newest(
        self,
        stream: str,
        decider: str,
        *,
        version: int | None = None,
        at: datetime | None = None,
    ) -> Snapshot | None:
        """Return the greatest that fits."""
        wanted = {"stream": stream, "decider": decider, "version": version, "at": at}
        async with self._store.reader("reading a snapshot") as connection:
            cursor = await connection.execute(query("read_snapshot"), wanted)
            row = await cursor.fetchone()
        if row is None:
            return None
        first_version, found, position, recorded_at, shapes, state, whole_stream = row
        return Snapshot(
            stream=stream,
            decider=decider,
            first_version=Version(first_version),
            version=Version(found),
            position=Position(position),
            recorded_at=recorded_at,
            shapes=orjson.loads(shapes),
            state=state,
            whole_stream=whole_stream,
        )

    async def would_keep(self, stream: str, decider: str, stand: Stands) -> bool:
        """Look at what is kept, without the states."""
        async with self._store.reader("looking at snapshots") as connection:
            kept = await _stands(connection, {"stream": stream, "decider": decider})
        stay = kept_beside(stand, kept)
        return stay is not None and stand.version in stay

    async def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot beside others; those by code of long ago are forgotten.

        Two services that keep some at once may leave one too many: the next one to keep sees it.
        """
        whose = {"stream": snapshot.stream, "decider": snapshot.decider}
        async with (
            self._store.reader("keeping a snapshot") as connection,
            connection.transaction(),
        ):
            kept = await _stands(connection, whose)
            stay = kept_beside(snapshot, kept)
            if stay is None:
                return
            gone = sorted({each.version for each in kept} - stay)
            await connection.execute(query("forget_snapshots"), {**whose, "gone": gone})
            if snapshot.version in stay:
                shapes = orjson.dumps(dict(snapshot.shapes), option=orjson.OPT_SORT_KEYS).decode()
                values = asdict(snapshot) | {"shapes": shapes}
                await connection.execute(query("keep_snapshot"), values)


async def _stands(connection: Connection, whose: Mapping[str, str]) -> list[Stand]:
    cursor = await connection.execute(query("snapshots_of"), whose)
    return [
        Stand(Version(first), Version(version), orjson.loads(shapes))
        for first, version, shapes in await cursor.fetchall()
    ]


class PostgresAnswers:
    """`KeptAnswers` in the table `es.commands`.

    One key at a time: tasks of this process by a lock of its own, other services by an advisory
    lock. All of them lie in the one session that this object keeps for it: a lock for each command
    in a connection of its own would take all that the readers have. They end with the session.
    """

    def __init__(self, store: PostgresEventStore, dsn: str) -> None:
        self._store = store
        self._dsn = dsn
        self._locks = KeyLocks()
        self._session: Connection | None = None
        self._turn = asyncio.Lock()
        self._forgotten_to = datetime.min.replace(tzinfo=UTC)

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Wait for the key, and hold it."""
        number = _number(key)
        async with self._locks.alone(key):
            await self._take(key, number)
            try:
                yield
            finally:
                # A session that broke has let go already.
                with contextlib.suppress(Unavailable):
                    await self._ask("SELECT pg_advisory_unlock(%(number)s)", number)

    async def close(self) -> None:
        """End the session, and with it every lock."""
        if self._session is not None:
            await self._session.close()

    async def _take(self, key: str, number: int) -> None:
        waited_s = 0.0
        while not await self._ask("SELECT pg_try_advisory_lock(%(number)s)", number):
            if waited_s >= _KEY_WAIT_S:
                raise Unavailable(
                    f"another service is handling the command with Idempotency-Key {key}",
                    remedy="Repeat it with the same key: it happens once.",
                )
            await asyncio.sleep(_KEY_PAUSE_S)
            waited_s += _KEY_PAUSE_S

    async def _ask(self, statement: str, number: int) -> bool:
        """Run one statement in the session, which is opened again after it broke."""
        async with self._turn:
            if self._session is None or self._session.closed:
                self._session = await connect(self._dsn)
            with wrapped("locking a key"):
                cursor = await self._session.execute(statement.encode(), {"number": number})
                row = await cursor.fetchone()
        return row is not None and bool(row[0])

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
            cursor = await connection.execute(
                query("keep_answer"),
                {
                    "key": answer.key,
                    "fingerprint": answer.fingerprint,
                    "answer": answer.answer,
                    "keep": KEEP,
                    "from": self._forgotten_to,
                },
            )
            row = await cursor.fetchone()
        if row is not None:
            self._forgotten_to = row[0]


def _number(key: str) -> int:
    """The lock of a key. Two keys that share one only wait for each other."""
    digest = sha256(b"command key\n" + key.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


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


class PostgresLevels:
    """The compatibility level of each event type, in the table `es.compatibility`.

    Not in the registry: some cannot tell a type without a level from one whose level is NONE.
    """

    def __init__(self, store: PostgresEventStore) -> None:
        self._store = store

    async def level(self, subject: str) -> Level:
        """Return a type's level, `BACKWARD_TRANSITIVE` unless another was set."""
        async with self._store.reader("reading a compatibility level") as connection:
            cursor = await connection.execute(
                "SELECT level FROM es.compatibility WHERE subject = %(subject)s",
                {"subject": subject},
            )
            row = await cursor.fetchone()
        return Level.BACKWARD_TRANSITIVE if row is None else Level(row[0])

    async def set_level(self, subject: str, level: Level) -> None:
        """Set a type's level for versions to come; those that are there stay."""
        async with self._store.reader("setting a compatibility level") as connection:
            await connection.execute(
                "INSERT INTO es.compatibility (subject, level) VALUES (%(subject)s, %(level)s)"
                " ON CONFLICT (subject) DO UPDATE SET level = excluded.level",
                {"subject": subject, "level": level.value},
            )
