"""Rows that are there before the stream: from the source to a table that can be queried.

Ours reads by COPY beside the stream, Debezium's own snapshot goes through Kafka. Both are measured
from the moment at which the connector runs to the commit of the epoch that shows all rows. Beside
them stands COPY alone, by as many connections, into nothing: no way is faster.
"""

from __future__ import annotations

import threading
import time

import psycopg

from benchmarks.cdc.lines import DEBEZIUM, OURS, Scale
from benchmarks.cdc.updates import Memory
from benchmarks.cdc.world import SOURCE, World
from benchmarks.eventstore.cost import cpu_seconds
from cdc import sources
from kernel.errors import Unavailable
from lake.layout import current_name
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.installs.install_book import RUN, InstallBook

TABLE = "readings"
_DONE_S = 1_800.0
_MAKE = f"""
DROP TABLE IF EXISTS {TABLE};
CREATE TABLE {TABLE} (
    id bigint PRIMARY KEY,
    customer_id int NOT NULL,
    status text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    score double precision,
    flag boolean,
    note text,
    created_at timestamptz NOT NULL
);
INSERT INTO {TABLE}
SELECT i, (i * 7919 % 100003)::int, (ARRAY['new', 'paid', 'sent', 'done'])[1 + i % 4],
       (i % 100000) / 100.0, i / 3.0, i % 2 = 0,
       CASE WHEN i % 10 > 0 THEN md5(i::text) || md5((i + 1)::text) || 'and then some more' END,
       '2024-01-01'::timestamptz + i * interval '1 second'
  FROM generate_series(1::bigint, {{rows}}) i;
VACUUM ANALYZE {TABLE}
"""


def measure(world: World, scale: Scale) -> dict[str, float]:
    """Copy a table by both ways, and by COPY alone."""
    rows = scale.snapshot_rows
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        for statement in _MAKE.format(rows=rows).split(";"):
            connection.execute(statement.encode())
        row = connection.execute(f"SELECT pg_table_size('{TABLE}') / {rows}.0".encode()).fetchone()
    assert row is not None
    figures = {
        "copy_alone.rows_per_s": rows / _copy_alone(world, rows),
        "copy_alone.bytes_per_row": float(row[0]),
    }
    for product, snapshot in ((OURS, sources.COPY), (DEBEZIUM, sources.CONNECTOR)):
        if scale.wants("snapshot", product):
            found = _one(world, snapshot, rows)
            figures |= {f"{product}.{name}": value for name, value in found.items()}
    ours, theirs = (figures.get(f"{p}.rows_per_s") for p in (OURS, DEBEZIUM))
    if ours and theirs:
        figures[f"{OURS}.times_{DEBEZIUM}"] = ours / theirs
    return figures


def _one(world: World, snapshot: str, rows: int) -> dict[str, float]:
    with world.pipeline() as process:
        world.capture([TABLE], snapshot=snapshot)
        memory, began, cpu = Memory(process), time.time(), cpu_seconds((process.pid,))
        done = _await_rows(world, rows)
        figures = {
            "rows_per_s": rows / (done - began),
            "seconds": done - began,
            "pipeline_cpu_us_per_row": (cpu_seconds((process.pid,)) - cpu) * 1e6 / rows,
        }
        figures |= memory.end()
        if snapshot == sources.COPY:
            figures["copying_rows_per_s"] = rows / _copying_seconds(world, done)
    world.forget()
    return figures


def _await_rows(world: World, rows: int) -> float:
    """Wait until an epoch shows all rows; return when it was committed."""
    deadline = time.monotonic() + _DONE_S
    manifest, tables = Manifest(world.lake, Tables()), Tables()
    name = current_name(SOURCE, f"public.{TABLE}")
    while time.monotonic() < deadline:
        last = manifest.last()
        if last is not None and name in last.tables:
            table = tables.open(world.lake.path(name))
            if table is not None and table.count() == rows:
                return last.at.timestamp()
        time.sleep(0.1)
    raise Unavailable(f"the snapshot did not end within {_DONE_S:g} s")


def _copying_seconds(world: World, done: float) -> float:
    """Return how long the copy itself took: from its plan in the book to the epoch's commit."""
    entries = InstallBook(world.lake, Tables()).entries()
    (begun,) = [entry.at for entry in entries if entry.kind == RUN]
    assert begun is not None, "the book has times"
    return done - begun.timestamp()


def _copy_alone(world: World, rows: int) -> float:
    """Return how long two connections take that read halves of the table and drop them."""

    def half(low: int, high: int) -> None:
        rows_of = f"SELECT * FROM {TABLE} WHERE id > {low} AND id <= {high}"
        query = f"COPY ({rows_of}) TO STDOUT (FORMAT csv)"
        with (
            psycopg.connect(world.dsn) as connection,
            connection.cursor().copy(query.encode()) as copy,
        ):
            for _ in copy:
                pass

    began = time.monotonic()
    halves = [
        threading.Thread(target=half, args=bounds) for bounds in ((0, rows // 2), (rows // 2, rows))
    ]
    for thread in halves:
        thread.start()
    for thread in halves:
        thread.join()
    return time.monotonic() - began
