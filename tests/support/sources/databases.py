"""Databases of other people inside the warm stack: a pytest plugin module."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from apps.settings import Settings


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


@pytest.fixture
def new_source(stack: Settings) -> Iterator[Callable[[str], str]]:
    """Make databases that one test captures."""
    with databases(stack) as make:
        yield make
