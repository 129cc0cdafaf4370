"""Other pipelines beside Penstock's: over the same source tables, on a copy of their rows."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.cdc.lines import Scale
from benchmarks.cdc.load import update_steadily
from benchmarks.cdc.rival import Work
from benchmarks.cdc.visibility import quantile
from benchmarks.cdc.world import ROOT, SOURCE, World
from kernel.errors import Unavailable
from lake.layers import read_whole
from lake.layout import current_name
from lake.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A pipeline that runs as `python -m MODULE WORK` and prints a line of JSON per batch.

    `capture` brings the tables' changes into topics `<prefix>.<table>` for the time of a block;
    `start` writes a table's first rows at a path. `environment` are variables of its process.
    """

    module: str
    prefix: str
    capture: Callable[[World], AbstractContextManager[None]]
    start: Callable[[str, pa.Table], None]
    environment: Callable[[World], Mapping[str, str]]


NAIVE_MERGE = Rival(
    module="benchmarks.cdc.naive_merge",
    prefix=SOURCE,
    capture=lambda world: nullcontext(),
    start=write_deltalake,
    environment=lambda world: {},
)

_READY_S = 240.0
_WARM_S = 10.0
_LAST_S = 30.0


def measure(
    world: World,
    scale: Scale,
    rival: Rival,
    *,
    tables: Sequence[str],
    rate: float,
    seconds: float,
) -> dict[str, float]:
    """Measure another pipeline at the same load; the tables start as Penstock's ended."""
    names = [f"public.{table}" for table in tables]
    folder = world.folder / "beside"
    shutil.rmtree(folder, ignore_errors=True)
    work = Work(
        bootstrap=world.settings.required("kafka.bootstrap"),
        registry=world.settings.required("registry.url"),
        source=rival.prefix,
        tables=tuple(names),
        folder=str(folder / "tables"),
        scratch=str(folder / "scratch"),
    )
    for name in names:
        rows = read_whole(world.lake, Tables(), current_name(SOURCE, name))
        rival.start(work.path(name), rows)
    told = folder / "told.jsonl"
    with rival.capture(world), told.open("w") as out, (folder / "log").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", rival.module, work.render()],
            stdout=out,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, **rival.environment(world)},
        )
        try:
            _await(told, process)
            rows_each = scale.table_rows // len(tables)
            load = partial(update_steadily, world.dsn, tables, table_rows=rows_each, rate=rate)
            load(seconds=_WARM_S)
            before = time.time()
            updated = load(seconds=seconds)
            _await_last(told, process, updated.ended)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
    return _figures(told, before, updated.ended) | {"updates_per_s": updated.per_s}


def _figures(told: Path, began: float, ended: float) -> dict[str, float]:
    batches = [b for b in _batches(told) if "rows" in b]
    ages = sorted(
        b["ended"] - at / 1e6 for b in batches for at in b["at"] if began <= at / 1e6 <= ended
    )
    own = [b for b in batches if b["ended"] >= began]
    took = sorted(b["ms"] for b in own)
    return {
        "path_p50_s": quantile(ages, 0.5),
        "path_p95_s": quantile(ages, 0.95),
        "path_p99_s": quantile(ages, 0.99),
        "batches": float(len(own)),
        "batch_p50_ms": quantile(took, 0.5),
        "changes_per_batch": sum(b["rows"] for b in own) / max(1, len(own)),
    }


def _batches(told: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told.read_text().splitlines() if line.startswith("{")]


def _await(told: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _READY_S
    while not _batches(told):
        if process.poll() is not None or time.monotonic() > deadline:
            raise Unavailable("the other pipeline does not start: see beside/log in its folder")
        time.sleep(0.2)


def _await_last(told: Path, process: subprocess.Popen[bytes], ended: float) -> None:
    """Wait until a batch ends that began after the load did, or a while."""
    deadline = time.monotonic() + _LAST_S
    while process.poll() is None and time.monotonic() < deadline:
        done = [b for b in _batches(told) if "rows" in b]
        if done and done[-1]["ended"] - done[-1]["ms"] / 1000 > ended:
            return
        time.sleep(0.5)
