"""How far a build has come, while one Spark query runs: rows, rate, time left, how far behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from pyspark.sql import SparkSession

from kernel.errors import Cancelled

TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """`done` of `rows` input rows. `behind_s`: age of the newest input that it will have."""

    rows: int
    done: int
    rate: float
    eta_s: float | None
    behind_s: float

    @property
    def line(self) -> str:
        """One line for people."""
        left = "-" if self.eta_s is None else f"{self.eta_s:.0f} s"
        return (
            f"{self.done:,} of {self.rows:,} rows, {self.rate:,.0f} rows/s, {left} left, "
            f"{self.behind_s:.0f} s behind"
        )


Tick = Callable[[Progress], bool]
"""Takes note of progress; returns whether to go on."""


@contextmanager
def watched(
    spark: SparkSession, group: str, rows: int, behind_s: float, tick: Tick
) -> Iterator[None]:
    """Call `tick` every second while the block runs Spark jobs, and at the end.

    Raises `Cancelled` when `tick` said so: the jobs were cancelled.
    """
    context = spark.sparkContext
    started = time.monotonic()
    over, stopped = threading.Event(), threading.Event()

    def look() -> None:
        while not over.wait(TICK_S):
            done = int(rows * _share(spark, group))
            if not tick(_progress(rows, done, time.monotonic() - started, behind_s)):
                stopped.set()
                context.cancelJobGroup(group)
                return

    context.setJobGroup(group, group, interruptOnCancel=True)
    watcher = threading.Thread(target=look, name="replay-progress", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if stopped.is_set():
            raise Cancelled(f"{group} was cancelled") from error
        raise
    finally:
        over.set()
        watcher.join()
        # Spark's signature leaves out None, which is how a property is taken away.
        context.setLocalProperty("spark.jobGroup.id", cast(str, None))
    if stopped.is_set() or not tick(_progress(rows, rows, time.monotonic() - started, behind_s)):
        raise Cancelled(f"{group} was cancelled")


def _progress(rows: int, done: int, elapsed_s: float, behind_s: float) -> Progress:
    rate = done / max(elapsed_s, 0.001)
    eta = (rows - done) / rate if done else None
    return Progress(rows=rows, done=done, rate=rate, eta_s=eta, behind_s=behind_s + elapsed_s)


def _share(spark: SparkSession, group: str) -> float:
    """Return the share of finished tasks of all tasks that are known so far."""
    tracker = spark.sparkContext.statusTracker()
    tasks = finished = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            state = tracker.getStageInfo(stage)
            if state is not None:
                tasks += state.numTasks
                finished += state.numCompletedTasks
    return finished / tasks if tasks else 0.0
