"""Snapshots that stay open: meanwhile PostgreSQL can remove no superseded version of any row.

Rows that change often, those of streams and of deliveries, then leave more and more versions
behind, and whoever looks for the newest one passes them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.postgres.connect import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSnapshot:
    """Who keeps a snapshot open, since how many seconds, and the statement that ends it."""

    holder: str
    age_s: float
    ended_by: str


async def oldest_snapshot(connection: Connection) -> OpenSnapshot | None:
    """Return the oldest snapshot that others keep open in this database, None for none.

    Where the store was migrated by a login that may not see other users' sessions, theirs are not
    among them.
    """
    cursor = await connection.execute("SELECT holder, age_s, ended_by FROM es.oldest_snapshot()")
    row = await cursor.fetchone()
    if row is None or row[0] is None:
        return None
    return OpenSnapshot(holder=row[0], age_s=row[1], ended_by=row[2])
