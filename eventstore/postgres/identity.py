"""A store that was restored is another store: it gets an id of its own."""

from __future__ import annotations

import psycopg

from eventstore.postgres.connect import connect, half_filled, wrapped
from eventstore.postgres.locks import APPEND_LOCK
from eventstore.postgres.queries import results


async def renew_id(dsn: str) -> str:
    """Give the store a new id and return it. Needs a login that owns the store.

    Positions behind the restored head will stand for other events than before. Under the new id
    nobody downstream takes them for those, and each stops by name until it has been rebuilt.
    Raises `Unavailable` for a store that is being filled.
    """
    async with await connect(dsn, role=None, cursor=psycopg.AsyncClientCursor) as connection:
        with wrapped("renewing the id of the store"):
            *_, rows = await results(connection, "renew_store_id", append_lock=APPEND_LOCK)
    if not rows:
        raise half_filled()
    return str(rows[0][0])
