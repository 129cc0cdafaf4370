"""What a guarded commit costs over the same commit without its guard.

Appends of 100 rows and merges of 1,000 rows into a table of 200,000, by `ArrowWriter` and by
deltalake alone.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.harness import Context, Figures
from kernel.positions import Epoch
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard

NAME = "commit"
CONDITIONS = (
    "one writer, one commit after another; each commit is handed to the file system before the "
    "next, without waiting for the disk; "
    "the candidate refuses a commit that was made before, the baseline would make it twice"
)
STORED_ROWS, APPENDED_ROWS, MERGED_ROWS, COMMITS = 200_000, 100, 1_000, 20


@dataclass(slots=True)
class Target:
    """Two tables at `path` and how far each application has come."""

    path: str
    tables: Tables = field(default_factory=Tables)
    epoch: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def rows(self, count: int) -> pa.Table:
        keys = self.random.sample(range(STORED_ROWS), count)
        return pa.table({"id": keys, "value": [self.random.random() for _ in keys]})

    def next_epoch(self) -> Epoch:
        self.epoch += 1
        return Epoch(self.epoch)


def run(context: Context) -> Figures:
    """Commit through `ArrowWriter`."""
    target = context.once("guarded", lambda: _target(f"{context.folder}/guarded"))
    writer = ArrowWriter(target.tables)

    def append() -> None:
        guard = Guard("benchmark", target.next_epoch())
        writer.append(f"{target.path}/log", target.rows(APPENDED_ROWS), guard)

    def merge() -> None:
        rows = target.rows(MERGED_ROWS)
        rows = rows.append_column(OP, pa.array([UPSERT] * rows.num_rows))
        guard = Guard("benchmark", target.next_epoch())
        writer.merge(f"{target.path}/state", rows, guard, keys=("id",))

    return _timed(append, merge)


def BASELINE(context: Context) -> Figures:
    """Commit through deltalake, without asking and without a transaction."""
    target = context.once("bare", lambda: _target(f"{context.folder}/bare"))
    log, state = DeltaTable(f"{target.path}/log"), DeltaTable(f"{target.path}/state")

    def append() -> None:
        write_deltalake(log, target.rows(APPENDED_ROWS), mode="append")

    def merge() -> None:
        (
            state.merge(target.rows(MERGED_ROWS), "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )

    return _timed(append, merge)


@contextmanager
def _target(path: str) -> Iterator[Target]:
    target = Target(path=path)
    stored = pa.table({"id": range(STORED_ROWS), "value": [0.0] * STORED_ROWS})
    for name, rows in (("log", stored.slice(0, 0)), ("state", stored)):
        write_deltalake(f"{path}/{name}", rows, configuration=dict(TABLE_SETTINGS))
    yield target


def _timed(append: Callable[[], None], merge: Callable[[], None]) -> Figures:
    return {"append_p50_ms": _median_ms(append), "merge_p50_ms": _median_ms(merge)}


def _median_ms(commit: Callable[[], None]) -> float:
    times = []
    for _ in range(COMMITS):
        started = time.perf_counter()
        commit()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times)
