"""A pool that has no connection to lend says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest

from eventstore.postgres import connect
from eventstore.postgres.connect import Pool
from kernel.errors import Misconfigured, PenstockError, Unavailable


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_POOL_TIMEOUT_S", 1.0)


@pytest.fixture
def stranger(postgres_dsn: str) -> Iterator[str]:
    """Return the DSN of a login that may not become the service's role."""
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE stranger LOGIN")
        yield postgres_dsn.replace("postgres@", "stranger@")
        admin.execute("DROP ROLE stranger")


async def lent(dsn: str, *, connections: int = 1, held: int = 0) -> PenstockError | None:
    """Return how a pool of which some connections are in use refuses one more."""
    pool = Pool(dsn, name="tried", connections=connections)
    await pool.open()
    try:
        async with asyncio.timeout(20):
            try:
                async with pool.lend("reading"):
                    if held:
                        async with pool.lend("reading more"):
                            return None
                return None
            except PenstockError as error:
                return error
    finally:
        await pool.close()


def test_a_login_without_its_role_is_told_what_it_lacks(stranger: str) -> None:
    error = asyncio.run(lent(stranger))
    assert isinstance(error, Misconfigured)
    assert "permission denied to set role" in error.message
    assert "GRANT penstock_service TO" in str(error.remedy)


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ('FATAL:  permission denied to set role "penstock_service"', Misconfigured),
        ("FATAL:  keine Berechtigung, um Rolle »penstock_service« zu setzen", Misconfigured),
        ('FATAL:  role "penstock_service" does not exist', Unavailable),
        ("FATAL:  Datenbank »nirgends« existiert nicht", Unavailable),
    ],
)
def test_a_role_that_a_login_lacks_is_told_in_any_language(
    told: str, kind: type[PenstockError]
) -> None:
    with pytest.raises(kind), connect.wrapped("reading"):
        raise psycopg.OperationalError(f"connection failed: {told}")


@pytest.fixture
def foreign(postgres_dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Lend a connection that refuses what it is asked as a server of another language would."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    ("told", "kind"),
    [
        ("permission denied for schema es", Unavailable),
        ("keine Berechtigung für Schema es", Unavailable),
        ("keine Berechtigung für Tabelle events", Misconfigured),
    ],
)
def test_a_store_that_is_filled_is_told_in_any_language(
    foreign: psycopg.Connection[tuple[object, ...]], told: str, kind: type[PenstockError]
) -> None:
    raising = f"DO $$ BEGIN RAISE '{told}' USING ERRCODE = '42501'; END $$"
    with pytest.raises(kind), connect.wrapped("reading"):
        foreign.execute(raising.encode())


def test_a_server_that_refuses_is_told_in_its_words(postgres_dsn: str) -> None:
    error = asyncio.run(lent(f"{postgres_dsn.rpartition('/')[0]}/nowhere"))
    assert isinstance(error, Unavailable)
    assert 'database "nowhere" does not exist' in error.message


def test_connections_that_are_all_in_use_are_no_dead_server(postgres_dsn: str) -> None:
    assert asyncio.run(lent(postgres_dsn, connections=2, held=1)) is None
    error = asyncio.run(lent(postgres_dsn, held=1))
    assert isinstance(error, Unavailable)
    assert "each of 1 connections was in use" in error.message
