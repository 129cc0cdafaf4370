"""What it costs by the hour to keep a large base near its tail while few of its rows change.

One merge of random keys is measured; how many of them an hour has, the policy says.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from kernel.positions import Epoch
from lake.file_actions import size_of
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.merging import MergeHere

NAME = "current/bench.public.large"
SIZES = (2_000_000, 10_000_000)
MERGED, PER_S, HOUR_S = 1_000, 10, 3_600
_CHUNK = 1_000_000


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this line."""
    parser.add_argument(
        "--bounds-base-rows", help=f"bounds: rows of bases; {','.join(map(str, SIZES))}"
    )


def measure(folder: Path, options: Namespace, progress: Callable[[str], None]) -> dict[str, float]:
    """Measure one merge into each base, and count those of an hour with ten changed rows a second.

    `minutely_…` is what a merge every minute would take, whatever it costs.
    """
    chosen = getattr(options, "bounds_base_rows", None)
    sizes = [int(size) for size in chosen.split(",")] if chosen else SIZES
    found: dict[str, float] = {}
    for rows in sizes[:1] if getattr(options, "quick", False) else sizes:
        lake = Lake.at(folder / str(rows))
        base_bytes = _filled(lake.path(NAME), rows)
        # In a process of its own, as in the pipeline: its memory is that of the merge.
        call = [sys.executable, "-m", "benchmarks.bounds.bases", lake.path(NAME), str(rows)]
        done = subprocess.run(call, check=True, capture_output=True, text=True)
        merge: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        shutil.rmtree(lake.root)
        spent_s, written = merge["merge_s"], merge["merge_bytes"]
        merges = _merges(rows, base_bytes, spent_s)
        figures = {
            "base_bytes": base_bytes,
            **merge,
            "merges_per_hour": merges,
            "bytes_per_hour": merges * written,
            "merging_s_per_hour": merges * spent_s,
            "merging_cpu_s_per_hour": merges * merge["merge_cpu_s"],
            "minutely_bytes_per_hour": HOUR_S / 60 * written,
            "minutely_merging_s_per_hour": HOUR_S / 60 * spent_s,
        }
        found |= {f"{rows}_rows.{name}": value for name, value in figures.items()}
        told = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
        progress(f"  {rows:,} rows: {told}")
    return found


def _filled(path: str, rows: int) -> float:
    """Make a base of so many rows; return the bytes of its files."""
    tables = Tables()
    writer = ArrowWriter(tables)
    for part, first in enumerate(range(0, rows, _CHUNK), start=1):
        frame = _rows(np.arange(first, min(rows, first + _CHUNK)))
        writer.append(path, frame, Guard("fill", Epoch(part)))
    table = tables.open(path)
    assert table is not None
    return float(size_of(table)[1])


def main(path: str, rows: int) -> dict[str, float]:
    """Merge random keys into a base; return what that takes: time, bytes, and most memory."""
    before = _files(path)
    chosen = np.sort(np.random.default_rng(7).choice(rows, MERGED, replace=False))
    changed = _rows(chosen).append_column(OP, pa.array([UPSERT] * MERGED))
    began, worked = time.perf_counter(), time.process_time()
    MergeHere()(path, changed, Guard(NAME, Epoch(1)), ["id"])
    return {
        "merge_s": time.perf_counter() - began,
        "merge_cpu_s": time.process_time() - worked,
        "merge_bytes": _files(path) - before,
        "merge_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
    }


def _merges(rows: int, base_bytes: float, spent_s: float) -> float:
    """Count the merges of an hour."""
    policy, count, since = FoldPolicy(), 0, 0.0
    for second in range(1, HOUR_S + 1):
        age = second - since
        changed = int(age * PER_S)
        due = policy.due(
            age_s=age,
            rows=changed,
            size=changed * 100,
            base_rows=rows,
            base_bytes=int(base_bytes),
            spent_s=spent_s,
        )
        if due:
            count, since = count + 1, second + spent_s
    return float(count)


def _rows(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    mixed = ids * 2654435761 % 2**40
    return pa.table({"id": ids, "seen": mixed, "note": pa.array(mixed).cast(pa.string())})


def _files(path: str) -> float:
    return float(sum(file.stat().st_size for file in Path(path).glob("*.parquet")))


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
