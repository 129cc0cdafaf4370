"""A shop with three tables of different keys, and writers who never rest."""

from __future__ import annotations

import threading
from contextlib import suppress

import psycopg

ORDERS, TAGS, MOODS = "public.orders", "public.tags", "public.moods"
TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'happy');
CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12, 2), at timestamptz
    DEFAULT '2024-01-01', memo text);
ALTER TABLE orders ALTER memo SET STORAGE EXTERNAL;
CREATE TABLE tags (shop text, tag text, n int, PRIMARY KEY (shop, tag));
CREATE TABLE moods (mood mood PRIMARY KEY, n double precision);
INSERT INTO orders SELECT g, 'customer ' || g % 97, g / 100.0, '2024-01-01', repeat('m', 3000)
  FROM generate_series(1, 200) g;
INSERT INTO orders SELECT g, 'customer ' || g % 97, g / 100.0, '2024-01-01', NULL
  FROM generate_series(201, 5000) g;
INSERT INTO tags SELECT chr(64 + g % 7), chr(200 + g), g FROM generate_series(1, 300) g;
INSERT INTO moods VALUES ('sad', 'NaN'), ('happy', -0.0);
"""
KEYS = {ORDERS: ("id",), TAGS: ("shop", "tag"), MOODS: ("mood",)}


class Writers:
    """Writes in several connections until told to stop, as fast as it can without `pause_s`."""

    def __init__(self, dsn: str, *, connections: int = 2, pause_s: float = 0.0) -> None:
        self._dsn = dsn
        self._pause_s = pause_s
        self._stop = threading.Event()
        self.commits = 0
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(connections)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            at = 0
            while not self._stop.is_set():
                at += 1
                id_ = (at * 2 + number) % 5200
                # Two writers may wait for each other; the one that is refused goes on.
                with suppress(psycopg.errors.DeadlockDetected), connection.transaction():
                    connection.execute(
                        "INSERT INTO orders VALUES (%s, 'new', %s) ON CONFLICT (id) DO UPDATE"
                        " SET amount = excluded.amount",
                        (id_, at),
                    )
                    connection.execute(
                        "UPDATE tags SET n = n + 1 WHERE shop = %s", (chr(64 + at % 7),)
                    )
                    if at % 5 == 0:
                        connection.execute("DELETE FROM orders WHERE id = %s", ((id_ * 7) % 5200,))
                    if at % 50 == 0:
                        moved = -(at * 2 + number)
                        connection.execute("UPDATE orders SET id = %s WHERE id = %s", (moved, id_))
                self.commits += 1
                self._stop.wait(self._pause_s)
