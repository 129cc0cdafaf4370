"""Numbered SQL files, applied once each, under one lock.

A start that finds all of them applied reads, and takes neither the lock nor any right. Several
services may start at the same moment: the first migrates, the others wait and find nothing to do.
A file that was applied must never change; its checksum is compared each time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import cast

import psycopg
from psycopg import sql

from eventstore.postgres.connect import connect, wrapped
from eventstore.postgres.locks import MIGRATE_LOCK
from kernel.errors import ChecksumMismatch, Incompatible, Misconfigured

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


def migrations() -> tuple[Migration, ...]:
    """Return the steps that this version knows, in order."""
    folder = resources.files("eventstore.postgres") / "migrations"
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return tuple(
        Migration(number=int(name[:4]), name=name, text=(folder / name).read_text())
        for name in files
    )


async def migrate(dsn: str, known: tuple[Migration, ...] | None = None) -> list[str]:
    """Bring the database to the newest schema and return the names of the applied files.

    A database that is there already is only read: that needs no more than membership in
    `penstock_service`. Otherwise it needs a login that may create schemas and roles. Raises
    `Unavailable` when PostgreSQL does not answer, `ChecksumMismatch` when an applied file has
    changed since, `Incompatible` when the database was migrated by a newer version,
    `Misconfigured` when rights are missing.
    """
    steps = migrations() if known is None else known
    async with await connect(dsn, role=None) as connection:
        with wrapped("migrating the event store"):
            try:
                if not _missing(steps, await _applied(connection)):
                    return []
                async with connection.transaction():
                    return await _apply(connection, steps)
            except psycopg.errors.InsufficientPrivilege as error:
                raise Misconfigured(
                    f"migrating the event store: {error.diag.message_primary}",
                    remedy="Run the first start with a login that may create schemas and roles.",
                ) from error


async def _apply(connection: _Connection, steps: tuple[Migration, ...]) -> list[str]:
    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATE_LOCK,))
    # Who waits for a table keeps everybody else from it: better to give up and come again.
    await connection.execute("SET LOCAL lock_timeout = '5s'")
    await connection.execute(_HISTORY)
    missing = _missing(steps, await _applied(connection))
    for step in missing:
        await connection.execute(sql.SQL(step.text))
        await connection.execute(
            "INSERT INTO es.migrations (number, name, sha256) VALUES (%s, %s, %s)",
            (step.number, step.name, step.sha256),
        )
    return [step.name for step in missing]


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
