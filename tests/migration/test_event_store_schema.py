"""Migrations of the event store: applied once, never changed, equal to the written schema."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

import eventstore.postgres
from eventstore.postgres.migrate import migrate, migrations
from kernel.errors import ChecksumMismatch, Incompatible, Misconfigured
from tests.support.services.http import service_in_thread
from tests.support.store.postgres import BIN

SCHEMA = Path(eventstore.postgres.__file__).parent / "schema.sql"


def dumped(dsn: str) -> list[str]:
    """Return the schema as pg_dump writes it, without its random session tokens."""
    dump = subprocess.run(
        [BIN / "pg_dump", "--schema-only", "--no-owner", "--schema=es", dsn],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = dump.stdout.splitlines()
    return [line for line in lines if line and not line.startswith(("\\", "--"))]


def test_the_written_schema_is_what_migrations_make(new_database: Callable[..., str]) -> None:
    migrated, written = new_database(), new_database()
    with psycopg.connect(written) as connection:
        connection.execute("DROP SCHEMA es CASCADE")
        connection.execute(SCHEMA.read_text().encode())
    assert dumped(written) == dumped(migrated)


def test_migrating_again_does_nothing(postgres_dsn: str) -> None:
    assert asyncio.run(migrate(postgres_dsn)) == []


def test_services_that_start_together_migrate_once(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DROP SCHEMA es CASCADE")

    async def race() -> list[list[str]]:
        return await asyncio.gather(*(migrate(postgres_dsn) for _ in range(6)))

    done = asyncio.run(race())
    assert sorted(map(len, done)) == [0] * 5 + [len(migrations())]


def test_a_changed_migration_is_refused_by_name(postgres_dsn: str) -> None:
    first, *others = migrations()
    changed = (replace(first, text=first.text + "\n-- changed"), *others)
    with pytest.raises(ChecksumMismatch, match=first.name):
        asyncio.run(migrate(postgres_dsn, changed))


def test_a_newer_schema_is_refused(postgres_dsn: str) -> None:
    with pytest.raises(Incompatible, match=f"knows {len(migrations()) - 1}"):
        asyncio.run(migrate(postgres_dsn, migrations()[:-1]))


def test_a_failing_migration_leaves_nothing(postgres_dsn: str) -> None:
    number = migrations()[-1].number + 1
    broken = replace(
        migrations()[0],
        number=number,
        name=f"{number:04}_broken.sql",
        text="CREATE TABLE es.half (a integer); SELECT no_such_column FROM es.half;",
    )
    with pytest.raises(Misconfigured, match="no_such_column"):
        asyncio.run(migrate(postgres_dsn, (*migrations(), broken)))
    with psycopg.connect(postgres_dsn) as connection:
        (found,) = connection.execute("SELECT to_regclass('es.half')").fetchone() or ("?",)
    assert found is None


def test_a_login_without_rights_is_told_so(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("DROP SCHEMA es CASCADE")
        connection.execute("DROP ROLE IF EXISTS powerless")
        connection.execute("CREATE ROLE powerless LOGIN")
    with pytest.raises(Misconfigured, match="permission denied") as caught:
        asyncio.run(migrate(postgres_dsn.replace("postgres@", "powerless@")))
    assert "may create schemas" in caught.value.remedy


def test_a_service_whose_login_owns_nothing_starts_on_a_store_that_is_up_to_date(
    postgres_dsn: str,
) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS tenant")
        connection.execute("CREATE ROLE tenant LOGIN IN ROLE penstock_service")
        database = connection.info.dbname
        connection.execute(
            sql.SQL("REVOKE CREATE, TEMPORARY ON DATABASE {} FROM PUBLIC").format(
                sql.Identifier(database)
            )
        )
    tenant = postgres_dsn.replace("postgres@", "tenant@")
    assert asyncio.run(migrate(tenant)) == []
    with service_in_thread(tenant) as http:
        body = {"events": [{"type": "placed", "data": {"total": 1}}]}
        assert http.post("/v1/streams/order-1", json=body).status_code == 201
        assert http.get("/v1/events").json()["head"] == 1
