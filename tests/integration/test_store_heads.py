"""How far the event store is ahead, asked of databases that have none or are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from eventstore.postgres.heads import PostgresHeads
from eventstore.postgres.store import PostgresEventStore
from kernel.errors import Unavailable
from tests.contracts.events import event, request, to


def test_a_database_without_an_event_store_is_not_behind(new_source: Callable[[str], str]) -> None:
    heads = PostgresHeads(new_source("SELECT 1"))
    try:
        assert [heads.lag({}), heads.lag({"other": 5})] == [("none", 0, 0.0)] * 2
        assert heads._connection is not None
        assert not heads._connection.closed, "the next look needs no new connection"
    finally:
        heads.close()


def test_what_is_behind_has_an_age_though_the_next_event_is_not_where_it_was_expected(
    postgres_dsn: str,
) -> None:
    """A store that was restored has positions again that the log has under its id of before."""

    async def appended() -> str:
        async with PostgresEventStore(postgres_dsn) as store:
            await store.append(request(to("order-1", [event(), event()])))
            return await store.store_id()

    store = asyncio.run(appended())
    heads = PostgresHeads(postgres_dsn)
    try:
        assert heads.lag({store: 2}) == (store, 0, 0.0)
        for have in ({store: 1}, {"before": 9}):
            _, behind, first_s = heads.lag(have)
            assert behind == 2 - have.get(store, 0)
            assert heads.lag(have)[2] > first_s >= 0.0
    finally:
        heads.close()


def test_a_database_that_is_gone_is_unavailable(new_source: Callable[[str], str]) -> None:
    dsn = new_source("SELECT 1")
    heads = PostgresHeads(dsn.rsplit("/", 1)[0] + "/nobody_made_this")
    with pytest.raises(Unavailable, match="does not answer"):
        heads.lag({})
