"""Projections behind one length of history, in a process of their own, and what their runs took.

`python -m benchmarks.operators.trial LAKE ROWS NAMES CHANGED RUNS LATE SCRATCH` prints JSON.
What is told of several, with commas between their names, is of all of them together.
The first run builds the table, the second one makes what is kept between runs; two more are for
warming up. Then each figure is the median of the runs that count.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.operators.queries import TOUCHED_TABLES
from benchmarks.operators.world import OperatorWorld
from benchmarks.replay.usage import usage
from kernel.positions import DeltaVersion, Epoch
from lake.file_merges import Twice
from lake.layout import Lake
from lake.sessions import SparkOnDemand
from lake.spark_session import start_session
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.executor import Executor, ExecutorChoice
from projections.run.projector import Projector
from projections.run.targets import live_target
from replay.subject import Site, subject_of
from stack.jars import resolve
from stack.java import find_java

_WARM_RUNS = 2
_CHANGED_VERSIONS = 20


class _Spent(NamedTuple):
    """What one run took: all of it, and its merge into the projection's table."""

    cpu_s: float
    merge_cpu_s: float
    s: float
    rows: int
    state_bytes: int


def main(
    lake: str, rows: str, names: str, changed: str, runs: str, late: str, scratch: str
) -> None:
    """Run projections over what comes, run by run."""
    world = OperatorWorld(Lake.at(Path(lake)), int(rows), late_part=float(late))
    tables, spark = Tables(), SparkOnDemand(lambda: _session(scratch))
    projector = Projector(
        spark,
        world.lake,
        tables,
        Manifest(world.lake, tables),
        choice=ExecutorChoice(asked=Executor.DRIVER),
    )
    subjects = {
        name: subject_of(Site(lake=world.lake, tables=tables), name) for name in names.split(",")
    }

    def run(epoch: Epoch) -> _Spent:
        merges: list[float] = []
        before, began = usage()["all_cpu_s"], time.perf_counter()
        with _merging(merges):
            done = [
                projector.run(each.plan, live_target(world.lake, name, 1), each.catalog, epoch)
                for name, each in subjects.items()
            ]
        seconds = time.perf_counter() - began
        cpu_s = usage()["all_cpu_s"] - before
        state_bytes = sum(each.state_bytes or 0 for each in done)
        return _Spent(cpu_s, sum(merges), seconds, sum(each.rows for each in done), state_bytes)

    def change() -> Epoch:
        epoch = world.change(int(changed))
        if not subjects.keys().isdisjoint(TOUCHED_TABLES):
            world.change_table(_CHANGED_VERSIONS)
        return epoch

    build, begin = run(Epoch(1)), run(change())
    counted = [run(change()) for _ in range(_WARM_RUNS + int(runs))][_WARM_RUNS:]
    memory = psutil.Process().memory_info()
    found = {
        "build_cpu_s": build.cpu_s,
        "begin_cpu_s": begin.cpu_s,
        "cpu_s": statistics.median(each.cpu_s for each in counted),
        "merge_cpu_s": statistics.median(each.merge_cpu_s for each in counted),
        "compute_cpu_s": statistics.median(each.cpu_s - each.merge_cpu_s for each in counted),
        "s": statistics.median(each.s for each in counted),
        "written_rows": statistics.median(each.rows for each in counted),
        "memory_bytes": float(memory.rss),
        "mapped_bytes": float(memory.shared),
        "state_bytes": float(counted[-1].state_bytes),
        "peak_bytes": usage()["all_peak_bytes"],
        "spark": float(spark.started is not None),
    }
    cost = ", ".join(sorted({each.plan.cost for each in subjects.values()}))
    print(json.dumps({"cost": cost, **found}))


@contextmanager
def _merging(spent: list[float]) -> Iterator[None]:
    """Take down the processor seconds of this process's merges."""
    merge = ArrowWriter.merge

    def timed(
        writer: ArrowWriter,
        path: str,
        rows: pa.Table,
        guard: Guard,
        *,
        keys: Sequence[str],
        newer: Sequence[str] = (),
        twice: Twice | None = None,
    ) -> DeltaVersion:
        before = time.process_time()
        version = merge(writer, path, rows, guard, keys=keys, newer=newer, twice=twice)
        spent.append(time.process_time() - before)
        return version

    with patch.object(ArrowWriter, "merge", timed):
        yield


def _session(scratch: str) -> SparkSession:
    return start_session(
        resolve("spark").spark_jars(),
        scratch=Path(scratch),
        memory="1g",
        java_home=find_java().home,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
