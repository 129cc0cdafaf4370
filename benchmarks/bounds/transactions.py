"""One source transaction of many rows: how long its fold takes, and how much memory.

`slices` reads, decodes and stages all rows, and leaves the merge out: no Spark. `stream` has the
merge as well, `copy` folds the transaction over a copy of its table that goes on meanwhile,
`left_alone` does so where each update leaves a value alone, which the copy alone has. Each runs in
a process of its own: `python -m benchmarks.bounds.transactions 200000 slices`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.bounds.source import (
    AT,
    FIRST_ID,
    SOURCE,
    Numbers,
    columns_of,
    decoded,
    end_of,
    registry,
    table_name,
)
from benchmarks.machine import children_cpu_s
from kernel.positions import DeltaVersion
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, SparkTasks
from lake.layout import Lake
from lake.spark_session import start_session, warm
from lake.table_columns import DECODED
from lake.tables import Tables
from lake.writer import Guard
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.current.bucketed_merge import large_merge
from pipeline.current.staged_images import StagedMerge
from pipeline.current.tables import CurrentTables, current_name
from pipeline.installs.install_book import ALL, Install, InstallBook, hold
from pipeline.installs.staging import Staging
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible
from schemas.pg_types import SourceColumn
from stack.jars import resolve
from stack.java import find_java

DURING = ("slices", "stream", "copy", "left_alone")
SIZES = (200_000, 400_000, 800_000, 1_600_000)
PER_EPOCH = 40_000
"""Records of one epoch."""
TABLE = table_name(0)
LSN = 1_000_000
_ROWS, _ENDS = f"{SOURCE}.{TABLE}", f"{SOURCE}.transaction"
_COLUMNS = (
    SourceColumn(name="id", type="int8", not_null=True),
    SourceColumn(name="size", type="int8"),
)
_NOTE = SourceColumn(name="note", type="text", not_null=True)


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this line."""
    parser.add_argument(
        "--bounds-rows", help=f"bounds: rows of transactions; {','.join(map(str, SIZES))}"
    )
    parser.add_argument(
        "--bounds-during", help=f"bounds: when transactions come; {','.join(DURING)}"
    )


def measure(folder: Path, options: Namespace, progress: Callable[[str], None]) -> dict[str, float]:
    """Measure each size in each of the chosen ways."""
    chosen = getattr(options, "bounds_rows", None)
    sizes = [int(size) for size in chosen.split(",")] if chosen else SIZES
    named = getattr(options, "bounds_during", None)
    ways = named.split(",") if named else DURING
    found: dict[str, float] = {}
    for rows in sizes[:1] if getattr(options, "quick", False) else sizes:
        for during in ways:
            call = [sys.executable, "-m", "benchmarks.bounds.transactions", str(rows), during]
            done = subprocess.run(call, check=True, capture_output=True, text=True)
            figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            found |= {f"{during}_{rows}_rows.{name}": value for name, value in figures.items()}
            told = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
            progress(f"  {rows:,} rows, {during}: {told}")
    return found


def main(rows: int, during: str) -> dict[str, float]:
    """Take one transaction in and fold it; return seconds, and bytes of all processes."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        lake = Lake.at(Path(folder) / "lake")
        tables = Tables(owned=lake.written_by_ingest)
        if during == "slices":
            return _measured(lake, tables, _NotMerged(), Executors(), rows, during)
        spark = start_session(
            resolve("spark").spark_jars(),
            scratch=Path(folder) / "spark",
            memory="1536m",
            java_home=find_java().home,
        )
        try:
            warm(spark)
            executors = Executors(tasks=SparkTasks(spark))
            merge = large_merge(spark, tables, executors.tasks)
            return _measured(lake, tables, merge, executors, rows, during)
        finally:
            spark.stop()


def _measured(
    lake: Lake, tables: Tables, merge: StagedMerge, executors: Executors, rows: int, during: str
) -> dict[str, float]:
    noted = during == "left_alone"
    known, copying = registry(), noted or during == "copy"
    current = CurrentTables(lake, tables, known, large=merge, executors=executors)
    hold(lake, tables, SOURCE)
    copied = _copied(lake, rows, noted=noted)
    ingest = Ingest(
        lake,
        tables,
        Manifest(lake, tables),
        known,
        lateness=lambda _: timedelta(0),
        broker=_Nobody(),
        current=current,
    )
    if not copying:
        InstallBook(lake, tables).put([copied.entry()])
        _epoch(ingest, 0, DECODED.empty_table(), ended=False)
    began, worked = time.perf_counter(), _worked()
    for first in range(0, rows, PER_EPOCH):
        ids = FIRST_ID + np.arange(first, min(rows, first + PER_EPOCH))
        columns = columns_of(
            TABLE,
            ids,
            ids,
            transaction="t",
            lsn=LSN + 10 * first,
            order=LSN - 10,
            first=first,
            noted=noted,
        )
        _epoch(ingest, first, decoded(columns), ended=False)
    figures = {"arrived_s": time.perf_counter() - began} | _per_row("arrived", worked, rows)
    # The most that it ever held, the staging of the copy included.
    most_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures["arrived_driver_peak_bytes"] = float(most_kib * 1024)
    if copying:
        InstallBook(lake, tables).put([copied.entry()])
    end = LSN + 10 * rows
    with _peak() as peak:
        began, worked = time.perf_counter(), _worked()
        done = _epoch(ingest, rows, end_of("t", end, {TABLE: rows}, 0), ended=True)
        figures |= {"folded_s": time.perf_counter() - began} | _per_row("folded", worked, rows)
    current.close()
    _check(lake, rows, noted=noted)
    figures |= {f"{part}_peak_bytes": size for part, size in peak.items()}
    if not copying:
        began = time.perf_counter()
        with _peak() as peak:
            visible = Visible(LSN - 10, [(done.epoch, end)])
            TypedChanges(lake, Tables(), known).add(
                SOURCE, visible, done.epoch, pending_from=1, snapshot_lsn=0, current=done.tables
            )
        figures |= {"typed_s": time.perf_counter() - began, "typed_peak_bytes": peak["all"]}
    return figures


def _worked() -> tuple[float, float]:
    """Return the seconds of processors that this process took so far, and its children."""
    return time.process_time(), children_cpu_s()


def _per_row(step: str, before: tuple[float, float], rows: int) -> dict[str, float]:
    """Return the microseconds of processors that a step took for each row."""
    own, others = (now - then for now, then in zip(_worked(), before, strict=True))
    return {
        f"{step}_driver_cpu_us_per_row": own / rows * 1e6,
        f"{step}_cpu_us_per_row": (own + others) / rows * 1e6,
    }


def _epoch(ingest: Ingest, first: int, batch: pa.Table, *, ended: bool) -> Committed:
    changes = 0 if ended else batch.num_rows
    bound = Bound(
        epoch=ingest.next_epoch,
        run_id="b",
        batch_id=first,
        start={_ROWS: {"0": first}, _ENDS: {"0": 0}},
        end={_ROWS: {"0": first + changes}, _ENDS: {"0": int(ended)}},
    )
    return ingest.run_epoch(bound, lambda: batch)


def _copied(lake: Lake, rows: int, *, noted: bool) -> Install:
    """Stage a copy of the table, as read before the transaction."""
    columns = (*_COLUMNS, _NOTE) if noted else _COLUMNS
    staging = Staging(lake, id="copy", source=SOURCE, table=TABLE, columns=columns)
    staging.stage(0, LSN - 10, (_block(ids, noted=noted) for ids in _ranges(rows)))
    return Install(
        id="copy",
        source=SOURCE,
        table=TABLE,
        kind=ALL,
        low=None,
        high=None,
        lsn=LSN - 10,
        columns=columns,
        keys=("id",),
        rows=rows,
        read_at=AT,
        lsns=(LSN - 10,),
        releases=True,
    )


def _block(ids: Numbers, *, noted: bool) -> pa.Table:
    """Return rows as a copy has them: all is text. A note has forty characters."""
    texts = pa.array(ids.astype(str))
    rows = {"id": texts, "size": np.full(len(ids), "0")}
    return pa.table(rows | ({"note": pc.utf8_lpad(texts, 40, "·")} if noted else {}))


def _ranges(rows: int) -> Iterator[Numbers]:
    for first in range(0, rows, PER_EPOCH):
        yield FIRST_ID + np.arange(first, min(rows, first + PER_EPOCH))


def _check(lake: Lake, rows: int, *, noted: bool) -> None:
    table = Tables().open(lake.path(current_name(SOURCE, TABLE)))
    assert table is not None
    assert table.count() == rows, f"{table.count()} rows and not {rows}"
    if noted:
        kept = dataset_of(table).count_rows(filter=pc.field("note").is_valid())
        assert kept == rows, f"{kept} rows of {rows} have the value that was left alone"


@contextmanager
def _peak() -> Iterator[dict[str, float]]:
    """Look ten times a second at the memory of this process and its children, by part."""
    found = dict.fromkeys(("all", "driver", "java", "workers"), 0.0)
    over, own = threading.Event(), psutil.Process()

    def look() -> None:
        while not over.wait(0.1):
            now = {"driver": float(own.memory_info().rss), "java": 0.0, "workers": 0.0}
            for child in own.children(recursive=True):
                try:
                    part = "java" if child.name().startswith("java") else "workers"
                    # A worker is forked: most of its pages are its parent's, and counted there.
                    size = (
                        child.memory_info().rss if part == "java" else child.memory_full_info().pss
                    )
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
                now[part] += size
            now["all"] = sum(now.values())
            found.update({part: max(found[part], size) for part, size in now.items()})

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


class _NotMerged:
    """Leaves what was staged where it is."""

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        """Return the version that the table had before."""
        return DeltaVersion(0)


class _Nobody:
    """Stands for the broker: nothing is asked of it here."""

    def publish(self, offsets: object) -> None:
        """Nobody looks at the lag."""

    def ends(self, source: str) -> dict[str, dict[str, int]]:
        """No transaction was begun twice."""
        raise AssertionError(source)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))
