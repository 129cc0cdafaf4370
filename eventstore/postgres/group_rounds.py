"""Transactions of groups: the connections, the row lock, and how a round is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg

from eventstore.groups.model import is_name
from eventstore.postgres.connect import Connection, Pool
from eventstore.postgres.group_rows import OpenRound, opened, saved_values
from eventstore.postgres.queries import query, results
from kernel.errors import NotFound
from schemas.json_values import shown

_LOCK_TIMEOUT = "SET lock_timeout = '5s'"


class GroupRounds:
    """Lends connections for groups, apart from the store's readers: who holds one may read."""

    def __init__(self, dsn: str, *, connections: int) -> None:
        self._pool = Pool(
            dsn,
            name="groups",
            connections=connections,
            cursor=psycopg.AsyncClientCursor,
            first=_LOCK_TIMEOUT,
        )

    async def open(self) -> None:
        """Begin to connect; does not wait for PostgreSQL."""
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    @asynccontextmanager
    async def round(self, name: str, ids: list[UUID] | None) -> AsyncIterator[OpenRound]:
        """Open a round of a group, about some events or (None) all; keep what it decided.

        Other rounds of the group wait meanwhile. After an error nothing was kept.
        """
        check_known(name)
        async with self.connection("serving a subscription") as connection:
            lock = "group_lock" if ids is None else "group_lock_named"
            rows, progress, entries = await results(connection, lock, group=name, ids=ids)
            if not rows:
                raise unknown(name)
            open_round = opened(connection, rows[0], progress[0], entries)
            yield open_round
            await _save(open_round)

    def connection(self, doing: str) -> AbstractAsyncContextManager[Connection]:
        """Lend a connection; its errors become ours."""
        return self._pool.lend(doing)


async def rows_of(connection: Connection, name: str, values: Mapping[str, object]) -> list[Any]:
    """Run a file of one statement and return its rows."""
    cursor = await connection.execute(query(name), values)
    return await cursor.fetchall()


def check_known(name: str) -> None:
    """Refuse what no group can be called before PostgreSQL has to."""
    if not is_name(name):
        raise unknown(name)


def unknown(name: str) -> NotFound:
    """Return the error for a group that is not there."""
    return NotFound(
        f"no subscription is named {shown(name)}",
        remedy="penstock subscription list shows what there is.",
    )


async def _save(open_round: OpenRound) -> None:
    done = open_round.round
    connection = open_round.connection
    if done.changed or done.finished or done.newly_parked or done.unparked:
        await results(connection, "group_save", **saved_values(open_round))
    elif open_round.scanned_to > open_round.began_at:
        await results(
            connection,
            "group_scanned",
            group=open_round.subscription.name,
            number=open_round.number,
            scanned_to=open_round.scanned_to,
        )
    else:
        await connection.execute("COMMIT")
