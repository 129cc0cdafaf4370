"""How far the event store is ahead, asked of databases that have none or are gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from apps.pipeline.heads import PostgresHeads
from kernel.errors import Unavailable


def test_a_database_without_an_event_store_is_not_behind(new_source: Callable[[str], str]) -> None:
    heads = PostgresHeads(new_source("SELECT 1"))
    try:
        assert [heads.lag({}), heads.lag({"other": 5})] == [("none", 0, 0.0)] * 2
        assert heads._connection is not None
        assert not heads._connection.closed, "the next look needs no new connection"
    finally:
        heads.close()


def test_a_database_that_is_gone_is_unavailable(new_source: Callable[[str], str]) -> None:
    dsn = new_source("SELECT 1")
    heads = PostgresHeads(dsn.rsplit("/", 1)[0] + "/nobody_made_this")
    with pytest.raises(Unavailable, match="does not answer"):
        heads.lag({})
