"""After an outage: how quickly changes that pile up in Kafka come into the tables."""

from __future__ import annotations

import time

import psycopg

from benchmarks.cdc.lines import Scale
from benchmarks.cdc.updates import Memory, await_rows
from benchmarks.cdc.visibility import steps
from benchmarks.cdc.world import SOURCE, World
from benchmarks.eventstore.cost import cpu_seconds
from cdc.connectors import replication_name
from kernel.errors import Unavailable
from kernel.positions import Epoch, lsn_from_text
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed

TABLE = "orders"
_PER_TRANSACTION = 1_000
_CONNECTOR_S = 900.0
_CATCH_UP_S = 900.0
_UPDATE = f"""
UPDATE {TABLE} SET status = 's' || (random() * 9)::int, updated_at = clock_timestamp()
WHERE id BETWEEN %s AND %s
"""


def measure(world: World, scale: Scale) -> dict[str, float]:
    """Stop the pipeline, change rows, wait until Kafka has them, start the pipeline again."""
    rows = scale.table_rows
    world.make_tables([TABLE], rows)
    world.capture([TABLE])
    with world.pipeline():
        await_rows(world, [f"public.{TABLE}"], rows)
    before = _last(world)
    began = time.monotonic()
    target = _change(world, rows, scale.catch_up_changes)
    _await_connector(world, target)
    connector_s = time.monotonic() - began
    with world.pipeline() as process:
        memory, started = Memory(process), time.time()
        done = await_cut(world, target)
        cpu = cpu_seconds((process.pid,))
        resident = memory.end()
    first = Manifest(world.lake, Tables()).at(Epoch(before.epoch + 1))
    began_at = first.at.timestamp() - sum(first.timings_ms.values()) / 1000
    seconds = done.at.timestamp() - began_at
    figures = {
        "changes_per_s": scale.catch_up_changes / seconds,
        "seconds": seconds,
        "seconds_with_start": done.at.timestamp() - started,
        "connector_changes_per_s": scale.catch_up_changes / connector_s,
        "pipeline_cpu_us_per_change": cpu * 1e6 / scale.catch_up_changes,
    }
    figures |= resident | steps(world.lake, began=began_at, ended=done.at.timestamp())
    world.forget()
    return figures


def _change(world: World, rows: int, changes: int) -> int:
    """Update every row in turn, in transactions of a thousand; return the LSN behind the last."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        for start in range(0, changes, _PER_TRANSACTION):
            low = start % rows + 1
            connection.execute(_UPDATE.encode(), (low, low + _PER_TRANSACTION - 1))
    return head(world)


def _await_connector(world: World, target: int) -> None:
    slot = replication_name(world.settings.name, SOURCE)
    deadline = time.monotonic() + _CONNECTOR_S
    ask = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute(ask, (slot,)).fetchone()
            if row is not None and lsn_from_text(row[0]) >= target:
                return
            time.sleep(0.2)
    raise Unavailable("the connector did not read what was changed")


def head(world: World) -> int:
    """Return an LSN behind everything that is committed, and make sure that the cut passes it."""
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        row = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        connection.execute("SELECT pg_logical_emit_message(true, 'penstock.wait', '')")
        return int(lsn_from_text(row[0]))


def await_cut(world: World, target: int) -> Committed:
    """Return the first epoch whose cut has passed an LSN."""
    deadline = time.monotonic() + _CATCH_UP_S
    manifest = Manifest(world.lake, Tables())
    while time.monotonic() < deadline:
        last = manifest.last()
        if last is not None and last.cuts.get(SOURCE, 0) >= target:
            return last
        time.sleep(0.1)
    raise Unavailable("the pipeline did not catch up")


def _last(world: World) -> Committed:
    last = Manifest(world.lake, Tables()).last()
    assert last is not None, "there was a snapshot"
    return last
