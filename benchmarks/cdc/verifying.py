"""Verification: how long `source verify` takes, and what the continuous verifier costs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.cdc.catch_up import TABLE
from benchmarks.cdc.lines import Scale
from benchmarks.cdc.load import update_steadily
from benchmarks.cdc.updates import await_rows
from benchmarks.cdc.world import SOURCE, World
from benchmarks.eventstore.cost import cpu_seconds
from kernel.errors import Unavailable

RATE = 1_000.0
_TIMES = 3
_WARM_S = 15.0


def measure(world: World, scale: Scale) -> dict[str, float]:
    """Run the command on a table at rest and under updates; watch an idle pipeline's cores.

    Figures are of the whole command, with the start of its process. The continuous verifier's
    share is the pipeline's processor time with it less that without it, in a time without changes.
    """
    rows = scale.table_rows
    world.make_tables([TABLE], rows)
    world.capture([TABLE])
    with world.pipeline(PENSTOCK_VERIFY_ROWS_PER_SECOND="0") as process:
        await_rows(world, [f"public.{TABLE}"], rows)
        time.sleep(_WARM_S)
        at_rest = [_verify(world, rows) for _ in range(_TIMES)]
        with _updates(world, rows):
            updated = [_verify(world, rows) for _ in range(_TIMES)]
        time.sleep(_WARM_S)
        without = _share(process.pid, scale.seconds)
    with world.pipeline() as process:
        time.sleep(_WARM_S)
        share = _share(process.pid, scale.seconds)
    world.forget()
    millions = rows / 1e6
    return {
        "rows": float(rows),
        "at_rest_s_per_million": sorted(at_rest)[_TIMES // 2] / millions,
        "under_updates_s_per_million": sorted(updated)[_TIMES // 2] / millions,
        "under_updates_most_s_per_million": max(updated) / millions,
        "idle_share_of_a_core_without": without,
        "idle_share_of_a_core": share,
    }


def _verify(world: World, rows: int) -> float:
    """Return the seconds of one `source verify`; raises unless every row was found equal."""
    began = time.monotonic()
    penstock = Path(sys.executable).with_name("penstock")
    done = subprocess.run(
        [penstock, "source", "verify", SOURCE, "--json", "--workspace", world.folder],
        capture_output=True,
        text=True,
    )
    seconds = time.monotonic() - began
    if done.returncode:
        raise Unavailable(f"source verify ended with {done.returncode}: {done.stdout}{done.stderr}")
    compared = sum(report["rows"] for report in json.loads(done.stdout)["tables"])
    if compared != rows:
        raise Unavailable(f"source verify compared {compared} rows of {rows}")
    return seconds


@contextmanager
def _updates(world: World, rows: int) -> Iterator[None]:
    """Update rows all the time, in a thread."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            update_steadily(world.dsn, [TABLE], table_rows=rows, rate=RATE, seconds=5.0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _share(pid: int, seconds: float) -> float:
    spent = cpu_seconds((pid,))
    time.sleep(seconds)
    return (cpu_seconds((pid,)) - spent) / seconds
