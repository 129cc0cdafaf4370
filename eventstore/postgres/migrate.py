"""Numbered SQL files, applied once each, under one lock.

A start that finds all of them applied reads, and takes neither the lock nor any right. Several
services may start at the same moment: the first migrates, the others wait and find nothing to do.
A file that was applied must never change; its checksum is compared each time.

Writers go on meanwhile. A file is one transaction and does not wait for a table that a long
transaction reads: everybody else would wait behind it. A file `….concurrently.sql` builds indexes
beside the writers, each statement by itself; an interrupted one leaves an invalid index, which the
next start makes anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from typing import cast

import psycopg
from psycopg import sql

from eventstore.postgres.connect import connect, half_filled, is_closed, wrapped
from eventstore.postgres.locks import MIGRATE_LOCK
from eventstore.postgres.queries import query
from kernel.errors import ChecksumMismatch, Incompatible, Misconfigured, Unavailable

_Connection = psycopg.AsyncConnection[tuple[object, ...]]

_HISTORY = """
CREATE SCHEMA IF NOT EXISTS es;
CREATE TABLE IF NOT EXISTS es.migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    sha256     text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
"""
_CONCURRENT = ".concurrently.sql"
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+) ON es\.\w+ ")
_ASK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    text: str

    @property
    def sha256(self) -> str:
        """The checksum that is kept with the applied migration."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def indexes(self) -> dict[str, str]:
        """The statements by the index that each of them builds beside the writers."""
        if not self.name.endswith(_CONCURRENT):
            return {}
        lines = (line for line in self.text.splitlines() if not line.startswith("--"))
        statements = [each.strip() for each in "\n".join(lines).split(";") if each.strip()]
        built = {}
        for statement in statements:
            found = _INDEX.match(statement)
            assert found is not None, f"{self.name} builds indexes only: {statement}"
            built[found.group(1)] = statement
        return built


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationPatience:
    """How long a migration waits.

    `behind`: for a table that others use; whoever comes later waits behind it. `beside`: for
    transactions that began before an index was built; nobody waits behind that. `turn`: for
    another service that migrates.
    """

    behind: timedelta = timedelta(seconds=2)
    beside: timedelta = timedelta(minutes=1)
    turn: timedelta = timedelta(seconds=30)


def migrations() -> tuple[Migration, ...]:
    """Return the steps that this version knows, in order."""
    folder = resources.files("eventstore.postgres") / "migrations"
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return tuple(
        Migration(number=int(name[:4]), name=name, text=(folder / name).read_text())
        for name in files
    )


async def migrate(
    dsn: str,
    known: tuple[Migration, ...] | None = None,
    *,
    patience: MigrationPatience | None = None,
) -> list[str]:
    """Bring the database to the newest schema and return the names of the applied files.

    A database that is there already is only read: that needs no more than membership in
    `penstock_service`. Otherwise it needs a login that may create schemas and roles. Raises
    `Unavailable` when PostgreSQL does not answer, or when a transaction stands in the way, which
    the error names; `ChecksumMismatch` when an applied file has changed since, `Incompatible` when
    the database was migrated by a newer version, `Misconfigured` when rights are missing. Files
    that were applied before an error stay applied.
    """
    steps = migrations() if known is None else known
    async with await connect(dsn, role=None) as connection:
        with wrapped("migrating the event store"):
            try:
                if not _missing(steps, await _applied(connection)):
                    return []
                return await _apply_all(connection, steps, patience or MigrationPatience())
            except psycopg.errors.InsufficientPrivilege as error:
                if is_closed(error):
                    raise half_filled() from error
                raise Misconfigured(
                    f"migrating the event store: {error.diag.message_primary}",
                    remedy="Run the first start with a login that may create schemas and roles.",
                ) from error


async def _apply_all(
    connection: _Connection, steps: tuple[Migration, ...], patience: MigrationPatience
) -> list[str]:
    await _take_turn(connection, patience.turn)
    async with connection.transaction():
        await connection.execute(_HISTORY)
    missing = _missing(steps, await _applied(connection))
    for step in missing:
        try:
            if step.indexes:
                await _build(connection, step, patience.beside)
            else:
                await _apply(connection, step, patience.behind)
        except psycopg.errors.LockNotAvailable as error:
            raise await _blocked(connection, step) from error
    return [step.name for step in missing]


async def _take_turn(connection: _Connection, at_most: timedelta) -> None:
    """Take the lock of migrations for as long as the connection lives.

    Asks again and again: a statement that waits for the lock would keep a snapshot open, and the
    build of an index beside the writers waits until there is no older one.
    """
    time = asyncio.get_running_loop().time
    give_up = time() + at_most.total_seconds()
    while True:
        cursor = await connection.execute("SELECT pg_try_advisory_lock(%s)", (MIGRATE_LOCK,))
        if await cursor.fetchone() == (True,):
            return
        if time() >= give_up:
            raise Unavailable(
                "another service migrates the event store", remedy="Wait until it is done."
            )
        await asyncio.sleep(_ASK_AGAIN_S)


async def _apply(connection: _Connection, step: Migration, behind: timedelta) -> None:
    """Apply a file in one transaction, unless it would wait for a long one."""
    blocker = await _blocker(connection, snapshots=False)
    if blocker is not None and blocker[1] > behind.total_seconds():
        raise await _blocked(connection, step)
    async with connection.transaction():
        await _limit(connection, behind)
        await connection.execute(sql.SQL(step.text))
        await _note(connection, step)


async def _build(connection: _Connection, step: Migration, beside: timedelta) -> None:
    """Build the indexes of a file that are not there yet, beside the writers."""
    await _limit(connection, beside)
    await connection.execute("SET statement_timeout = 0")
    for name, statement in step.indexes.items():
        cursor = await connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", (f"es.{name}",)
        )
        found = await cursor.fetchone()
        if found == (False,):
            await connection.execute(
                sql.SQL("DROP INDEX CONCURRENTLY es.{}").format(sql.Identifier(name))
            )
        if found != (True,):
            await connection.execute(sql.SQL(statement))
    await _note(connection, step)


async def _limit(connection: _Connection, wait: timedelta) -> None:
    """Limit what is waited for locks, until the transaction ends or, outside one, the next time."""
    milliseconds = str(round(wait.total_seconds() * 1000))
    in_transaction = connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
    await connection.execute(
        "SELECT set_config('lock_timeout', %s, %s)", (milliseconds, in_transaction)
    )


async def _note(connection: _Connection, step: Migration) -> None:
    await connection.execute(
        "INSERT INTO es.migrations (number, name, sha256) VALUES (%s, %s, %s)",
        (step.number, step.name, step.sha256),
    )


async def _blocker(connection: _Connection, *, snapshots: bool) -> tuple[str, float, int] | None:
    """Return who stands in the way for longest, since how many seconds, and its process."""
    cursor = await connection.execute(query("migration_blocker"), {"snapshots": snapshots})
    return cast("tuple[str, float, int] | None", await cursor.fetchone())


async def _blocked(connection: _Connection, step: Migration) -> Unavailable:
    """Return the error for a file that somebody's transaction stands in the way of."""
    blocker = await _blocker(connection, snapshots=bool(step.indexes))
    if blocker is None:
        return Unavailable(f"migration {step.name}: a lock was not free in time")
    holder, age_s, pid = blocker
    return Unavailable(
        f"migration {step.name}: {holder} has used the event store for {age_s:.0f} s"
        " in one transaction",
        remedy=f"Wait until it has ended, or end it: SELECT pg_terminate_backend({pid})."
        " Appends go on meanwhile; the service migrates by itself when it has ended.",
    )


async def _applied(connection: _Connection) -> dict[int, str]:
    """Return the checksums of the applied migrations by number; none in a new database."""
    found = await connection.execute("SELECT to_regclass('es.migrations')")
    if await found.fetchone() in (None, (None,)):
        return {}
    rows = await connection.execute("SELECT number, sha256 FROM es.migrations ORDER BY number")
    return {cast(int, number): cast(str, checksum) for number, checksum in await rows.fetchall()}


def _missing(steps: tuple[Migration, ...], applied: dict[int, str]) -> list[Migration]:
    """Return the steps that are still to be applied. Raises for a history that is not ours."""
    newest = max((step.number for step in steps), default=0)
    if applied and max(applied) > newest:
        raise Incompatible(
            f"the event store is at migration {max(applied)}, this version knows {newest}",
            remedy="Run the version of Penstock that last migrated this database, or a newer one.",
        )
    for step in steps:
        if applied.get(step.number, step.sha256) != step.sha256:
            raise ChecksumMismatch(
                f"migration {step.name} was changed after it had been applied",
                remedy="Restore the file; put the change into a migration with a new number.",
            )
    return [step for step in steps if step.number not in applied]
