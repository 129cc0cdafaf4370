"""How far the event store has come, read from PostgreSQL itself.

Kafka's end offsets would understate the lag: what Debezium has not read yet is not in Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import psycopg

from kernel.errors import Unavailable, first_line

CONNECT_TIMEOUT_S = 10
"""A server that is stopped, or behind a broken network, never refuses: it says nothing."""
_LAG = """
SELECT (SELECT store_id::text FROM es.store),
       (SELECT coalesce(max(position), 0) FROM es.events),
       (SELECT extract(epoch FROM clock_timestamp() - recorded_at)::float8
          FROM es.events WHERE position = %(next)s)
"""
_HEAD = (
    "SELECT (SELECT store_id::text FROM es.store), "
    "(SELECT coalesce(max(position), 0) FROM es.events)"
)


def head_of_store(dsn: str) -> tuple[str | None, int]:
    """Return the store's id and its last position, 0 for an empty one. Raises `Unavailable`."""
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
            row = connection.execute(_HEAD).fetchone()
    except psycopg.Error as error:
        raise Unavailable(
            f"the event store's database does not answer: {first_line(error)}"
        ) from error
    return (None, 0) if row is None else (row[0], int(row[1]))


class PostgresHeads:
    """Reads the store's head over one connection, made anew when it breaks."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[tuple[str, int, float | None]] | None = None
        self._behind_since: float | None = None

    def lag(self, heads: Mapping[str, int]) -> tuple[str, int, float]:
        """Return (store, events behind, age in seconds of the oldest one missing).

        `heads` are the log's contiguous heads. The store's name is "none" where the database has
        no event store, as beside a pipeline that captures tables only. Raises `Unavailable`.
        """
        try:
            if self._connection is None or self._connection.closed:
                self._connection = psycopg.connect(
                    self._dsn, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S
                )
            have = max(heads.values(), default=0)
            row = self._connection.execute(_LAG, {"next": have + 1}).fetchone()
        except psycopg.errors.UndefinedTable:
            return "none", 0, 0.0
        except psycopg.Error as error:
            self.close()
            raise Unavailable(f"the event store's database does not answer: {error}") from error
        if row is None or row[0] is None:
            return "none", 0, 0.0
        store, head, age = str(row[0]), int(row[1]), row[2]
        behind = max(0, head - heads.get(store, 0))
        if not behind:
            self._behind_since = None
            return store, 0, 0.0
        if self._behind_since is None:
            self._behind_since = time.monotonic()
        # Of a store that has another id by now, or less than the log, the oldest is not known.
        seen_s = time.monotonic() - self._behind_since
        return store, behind, float(seen_s if age is None else age)

    def close(self) -> None:
        """Leave the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
