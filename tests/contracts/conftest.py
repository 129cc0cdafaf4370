"""Stores of either kind for the contract suites."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from eventstore.postgres.store import PostgresEventStore
from tests.support.store.memory import MemoryEventStore

Store = MemoryEventStore | PostgresEventStore
Run = Callable[..., None]


@pytest.fixture(params=["memory", "postgres"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store that a test runs with."""
    name: str = request.param
    return name


@pytest.fixture
def run(request: pytest.FixtureRequest, kind: str) -> Run:
    """Run a coroutine function with a fresh store of either kind."""
    dsn = request.getfixturevalue("postgres_dsn") if kind == "postgres" else None

    def run(body: Callable[[Store], Awaitable[None]], **options: Any) -> None:
        async def inside() -> None:
            store = (
                MemoryEventStore(**options) if dsn is None else PostgresEventStore(dsn, **options)
            )
            async with store:
                await body(store)

        asyncio.run(inside())

    return run
