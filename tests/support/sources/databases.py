"""Databases of other people inside the warm stack: a pytest plugin module."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from apps.settings import Settings
from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.removal import retire_slot
from kernel.errors import PenstockError, Unavailable
from tests.support.services.waiting import until


@contextmanager
def databases(stack: Settings) -> Iterator[Callable[[str], str]]:
    """Make ordinary databases that know nothing of Penstock; each call runs SQL in a new one."""
    made: list[str] = []
    admin = stack.required("postgres.dsn")

    def make(statements: str) -> str:
        name = f"source_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        made.append(name)
        dsn = make_conninfo(admin, dbname=name)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statements.encode())
        return dsn

    yield make
    with psycopg.connect(admin, autocommit=True) as connection:
        for name in made:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())


def leave(stack: Settings, workspace: str, source: str, dsn: str) -> None:
    """Take away a test's connector and slot; all else goes with the database.

    `cdc.removal` has Connect forget how far it has read, too, for which it stops the connector and
    fences its producers first. Names are a test's own: nobody asks for that again.
    """
    with ConnectClient(stack.required("connect.url")) as connect:
        connect.delete(f"{workspace}-{source}")
        connect.await_gone(f"{workspace}-{source}", timeout_s=120)
    until(lambda: _is_free(dsn, replication_name(workspace, source)), "the slot's reader leaves")


def _is_free(dsn: str, slot: str) -> bool:
    """Drop a slot, unless its reader is there still: Connect forgets a connector that it stops.

    A database that does not answer is named where it is to go.
    """
    try:
        retire_slot(dsn, slot)
    except Unavailable as error:
        return "is still read by" not in error.message
    except PenstockError:
        return True
    return True


@pytest.fixture
def new_source(stack: Settings) -> Iterator[Callable[[str], str]]:
    """Make databases that one test captures."""
    with databases(stack) as make:
        yield make
