"""What comes at once: one source transaction of many rows, and a burst far above the usual rate."""

from __future__ import annotations

import time

import psycopg

from benchmarks.cdc.catch_up import TABLE, await_cut, head
from benchmarks.cdc.lines import Scale
from benchmarks.cdc.load import update_steadily
from benchmarks.cdc.updates import Memory, await_rows
from benchmarks.cdc.visibility import steps
from benchmarks.cdc.world import World

USUAL, TIMES = 500, 20
_BURST_S = 60.0


def one_transaction(world: World, scale: Scale) -> dict[str, float]:
    """Update every row of a table in one transaction; wait until the table shows it."""
    rows = scale.table_rows
    world.make_tables([TABLE], rows)
    world.capture([TABLE])
    with world.pipeline() as process:
        await_rows(world, [f"public.{TABLE}"], rows)
        memory = Memory(process)
        with psycopg.connect(world.dsn, autocommit=True) as connection:
            connection.execute(f"UPDATE {TABLE} SET status = 'all', updated_at = now()".encode())
        began = time.time()
        done = await_cut(world, head(world))
        seconds = done.at.timestamp() - began
        figures = memory.end()
    figures |= {"rows": float(rows), "seconds": seconds, "changes_per_s": rows / seconds}
    figures |= {"fold_s": done.timings_ms.get("fold", 0.0) / 1000}
    world.forget()
    return figures


def burst(world: World, scale: Scale) -> dict[str, float]:
    """Update at twenty times a usual rate for a minute; wait until the tables have caught up."""
    rows = scale.table_rows
    world.make_tables([TABLE], rows)
    world.capture([TABLE])
    load = {"table_rows": rows}
    with world.pipeline() as process:
        await_rows(world, [f"public.{TABLE}"], rows)
        update_steadily(world.dsn, [TABLE], **load, rate=USUAL, seconds=5.0)
        memory = Memory(process)
        seconds = _BURST_S * scale.seconds / 60
        updated = update_steadily(world.dsn, [TABLE], **load, rate=USUAL * TIMES, seconds=seconds)
        done = await_cut(world, head(world))
        figures = memory.end()
    figures |= {
        "updates_per_s": updated.per_s,
        "behind_at_the_end_s": max(0.0, done.at.timestamp() - updated.ended),
    }
    figures |= steps(world.lake, began=updated.began, ended=done.at.timestamp())
    world.forget()
    return figures
