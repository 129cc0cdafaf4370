"""One comparison of two tables in a process of its own, so that its peak of memory is its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.replay.usage import usage
from lake.executor_rows import SparkRows
from lake.spark_session import start_session
from pipeline.verification.large_states import LargeStates
from replay.comparison import row_differences
from replay.table_types import type_differences
from stack.jars import resolve
from stack.java import find_java

CASES: Mapping[str, int | None] = {"equal": None, "hundredth": 100, "all": 1}
"""Every how many rows one differs."""
COLUMNS = ("id", "carrier", "delay", "at", "passengers")
_FILE_ROWS = 500_000


def measure(
    folder: Path, rows: int, every: int | None, *, on_executors: bool = False
) -> Mapping[str, float]:
    """Make the tables that are not there yet, compare them, return seconds and peak of memory."""
    paths = [
        _made(folder / f"{rows}-none", rows, None),
        _made(folder / f"{rows}-{every}", rows, every),
    ]
    if every is None:
        paths[1] = _made(folder / f"{rows}-again", rows, None)
    command = [sys.executable, "-m", "benchmarks.replay.verifying", *map(str, paths)]
    if on_executors:
        command.append(str(folder / "spark"))
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


def main(live: str, built: str, scratch: str | None = None) -> None:
    """Compare two tables and print what it took; with a place for its `scratch`, on executors.

    `all_cpu_s` and `all_peak_bytes` are of this process and all that it started. The start of Spark
    is in the figures.
    """
    started = time.perf_counter()
    large = None if scratch is None else LargeStates(most_bytes=0, tasks=_executors(Path(scratch)))
    tables = DeltaTable(live), DeltaTable(built)
    type_differences(*tables)
    found = row_differences(*tables, key=["id"], columns=COLUMNS, large=large)
    seconds = time.perf_counter() - started
    figures = {
        "s": seconds,
        **usage(),
        "differing_rows": found.differing,
    }
    print(json.dumps(figures))


def _executors(scratch: Path) -> SparkRows:
    session = start_session(
        resolve("spark").spark_jars(),
        scratch=scratch,
        memory="1g",
        java_home=find_java().home,
    )
    return SparkRows(lambda: session)


if __name__ == "__main__":
    main(*sys.argv[1:])
