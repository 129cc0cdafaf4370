"""Freshness under a steady load of random updates, and how the time is spent."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import psutil

from benchmarks.cdc import kafka2delta
from benchmarks.cdc.beside import NAIVE_MERGE
from benchmarks.cdc.beside import measure as measure_beside
from benchmarks.cdc.lines import KAFKA2DELTA, NAIVE, OURS, Scale
from benchmarks.cdc.load import update_steadily
from benchmarks.cdc.visibility import freshness, quantile, steps
from benchmarks.cdc.world import SOURCE, World
from benchmarks.eventstore.cost import cpu_seconds
from kernel.errors import Unavailable
from lake.layout import current_name
from lake.tables import Tables

WARM_S = 30.0
SETTLE_S = 4.0
NAIVE_S = 45.0
"""Other pipelines are measured for so long at the most."""
_SNAPSHOT_S = 600.0
_LONG_S = 600


def measure(
    world: World, scale: Scale, line: str, *, tables: Sequence[str], rate: float, seconds: float
) -> dict[str, float]:
    """Measure Penstock, then the others, on tables of `scale.table_rows` rows in all."""
    rows = scale.table_rows // len(tables)
    names = [f"public.{table}" for table in tables]
    world.make_tables(tables, rows)
    world.capture(tables)
    with world.pipeline() as process:
        await_rows(world, names, rows)
        update_steadily(world.dsn, tables, table_rows=rows, rate=rate, seconds=WARM_S)
        memory = Memory(process)
        spent = cpu_seconds((process.pid,))
        load = update_steadily(world.dsn, tables, table_rows=rows, rate=rate, seconds=seconds)
        spent = cpu_seconds((process.pid,)) - spent
        time.sleep(SETTLE_S)
        resident = memory.end()
    figures = freshness(world.lake, SOURCE, names, began=load.began, ended=load.ended)
    figures |= steps(world.lake, began=load.began, ended=load.ended)
    figures |= resident | {
        "updates_per_s": load.per_s,
        "pipeline_cpu_share_of_a_core": spent / load.seconds,
    }
    found = {f"{OURS}.{name}": value for name, value in figures.items()}
    for product, rival in ((NAIVE, NAIVE_MERGE), (KAFKA2DELTA, kafka2delta.RIVAL)):
        if scale.wants(line, product):
            beside = measure_beside(
                world, scale, rival, tables=tables, rate=rate, seconds=min(NAIVE_S, seconds)
            )
            found |= {f"{product}.{name}": value for name, value in beside.items()}
    world.forget()
    return found


def await_rows(world: World, names: Sequence[str], rows: int) -> None:
    """Return when the `current` tables have their first rows, all of them."""
    tables = Tables()
    deadline = time.monotonic() + _SNAPSHOT_S
    for name in names:
        while True:
            found = tables.open(world.lake.path(current_name(SOURCE, name)))
            if found is not None and found.count() >= rows:
                break
            if time.monotonic() > deadline:
                raise Unavailable(f"{name} has no snapshot after {_SNAPSHOT_S:g} s")
            time.sleep(0.5)


class Memory:
    """Looks at the resident memory of a process with its children, once a second."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._stop = threading.Event()
        self._seen: list[float] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, float]:
        """Stop looking; return megabytes at the most, and of the last tenth over the first.

        Of a long run the median of each tenth as well: what grows and what only warms up.
        """
        self._stop.set()
        self._thread.join()
        tenth = max(1, len(self._seen) // 10)
        parts = [self._seen[i * tenth : (i + 1) * tenth] for i in range(9)]
        medians = [quantile(sorted(part), 0.5) for part in (*parts, self._seen[-tenth:])]
        figures = {
            "memory_mb_max": max(self._seen, default=0.0),
            "memory_last_over_first": medians[-1] / medians[0] if medians[0] else 0.0,
        }
        if len(self._seen) >= _LONG_S:
            figures |= {f"memory_mb_tenth_{i}": mb for i, mb in enumerate(medians, start=1)}
        return figures

    def _look(self) -> None:
        while not self._stop.wait(1.0):
            total = 0
            for process in (self._process, *self._process.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            self._seen.append(total / 1e6)
