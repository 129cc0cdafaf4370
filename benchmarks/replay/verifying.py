"""One comparison of two tables in a process of its own, so that its peak of memory is its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from replay.comparison import row_differences
from replay.table_types import type_differences

CASES: Mapping[str, int | None] = {"equal": None, "hundredth": 100, "all": 1}
"""Every how many rows one differs."""
COLUMNS = ("id", "carrier", "delay", "at", "passengers")
_FILE_ROWS = 500_000


def measure(folder: Path, rows: int, every: int | None) -> Mapping[str, float]:
    """Make the tables that are not there yet, compare them, return seconds and peak of memory."""
    paths = [
        _made(folder / f"{rows}-none", rows, None),
        _made(folder / f"{rows}-{every}", rows, every),
    ]
    if every is None:
        paths[1] = _made(folder / f"{rows}-again", rows, None)
    command = [sys.executable, "-m", "benchmarks.replay.verifying", *map(str, paths)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(told)
    return found


def _made(path: Path, rows: int, every: int | None) -> Path:
    if path.exists():
        return path
    chance = np.random.default_rng(rows)
    for first in range(0, rows, _FILE_ROWS):
        ids = np.arange(first, min(first + _FILE_ROWS, rows))
        delays = chance.normal(size=ids.size)
        if every is not None:
            delays = np.where(ids % every == 0, delays + 0.25, delays)
        table = pa.table(
            {
                "id": ids,
                "carrier": pa.array(chance.integers(0, 20, ids.size)).cast(pa.string()),
                "delay": delays,
                "at": pa.array(ids * 1_000_000, pa.timestamp("us", "UTC")),
                "passengers": chance.integers(0, 400, ids.size),
                "_epoch": np.ones(ids.size, np.int64),
            }
        )
        write_deltalake(path, table, mode="append")
    return path


def main(live: str, built: str) -> None:
    """Compare two tables and print what it took."""
    started = time.perf_counter()
    tables = DeltaTable(live), DeltaTable(built)
    type_differences(*tables)
    found = row_differences(*tables, key=["id"], columns=COLUMNS)
    seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "s": seconds,
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
        "differing_rows": found.differing,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
