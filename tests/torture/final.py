"""What is stored in the end, read from PostgreSQL itself: no service can colour it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from tests.torture.verification.history import Seen

_FETCH = 5_000
_ALL = """
    SELECT position, id, stream, version, type, tags,
           (extract(epoch FROM recorded_at) * 1000000)::bigint
    FROM es.events ORDER BY position
"""


def stored_events(dsn: str) -> Iterator[Seen]:
    """Yield all events by position, as of one moment."""
    with (
        psycopg.connect(dsn) as connection,
        connection.cursor(name="all_events", binary=True) as cursor,
    ):
        cursor.itersize = _FETCH
        cursor.execute(_ALL)
        for position, id_, stream, version, type_, tags, recorded_at_us in cursor:
            yield Seen(
                position, id_.int, stream, version, type_, tuple(tags) if tags else (),
                recorded_at_us,
            )  # fmt: skip


def head(dsn: str) -> int:
    """Return the last position."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT position FROM es.counter").fetchone()
    return 0 if row is None else int(row[0])
