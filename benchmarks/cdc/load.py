"""Random updates at a steady rate, as an application's connections would make them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

TRANSACTIONS_PER_S = 100
_UPDATE = """
UPDATE {table} SET status = 's' || (random() * 9)::int, updated_at = clock_timestamp()
WHERE id = ANY (ARRAY(SELECT (1 + random() * {last})::bigint FROM generate_series(1, {rows})))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What a load did: rows asked for, seconds that it took, when it began and ended (epoch s)."""

    rows: int
    seconds: float
    began: float
    ended: float

    @property
    def per_s(self) -> float:
        """Rows per second, really."""
        return self.rows / self.seconds


def update_steadily(
    dsn: str, tables: Sequence[str], *, table_rows: int, rate: float, seconds: float
) -> Updated:
    """Update random rows, `rate` a second over all tables in turns, for `seconds`.

    Each transaction touches one table. One that comes late is not left out: the rate holds over
    the whole time, or `Updated.per_s` says that the source could not keep it.
    """
    per_transaction = max(1, round(rate / TRANSACTIONS_PER_S))
    pause = per_transaction / rate
    total = round(rate * seconds)
    statements = [
        _UPDATE.format(table=table, last=table_rows - 1, rows=per_transaction).encode()
        for table in tables
    ]
    began, due, done = time.time(), time.monotonic(), 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        while done < total:
            connection.execute(statements[done // per_transaction % len(statements)])
            done += per_transaction
            due += pause
            time.sleep(max(0.0, due - time.monotonic()))
    ended = time.time()
    return Updated(rows=done, seconds=ended - began, began=began, ended=ended)
