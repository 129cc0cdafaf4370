"""How far a build has come: rows, rate, time left as a range, how far behind its input it is."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import SparkSession

from kernel.errors import Cancelled
from lake.sessions import SparkOnDemand

TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """`done` of `rows` input rows, `slice` of `slices` finished; `rate` in rows a second, lately.

    `eta_s`: seconds left, at least and at most; None before the first slice is done, unless former
    builds of the projection tell. Of a build from a base they are those of its copy; `since` rows
    came since then, and are taken in at the end, of which nothing tells how long it takes.
    `behind_rows`: input rows that there are and the generation has not yet, those after its epoch
    included. `behind_s`: age of the newest input that it will have; None where the manifest has
    forgotten when that was. `laid`: rows that were read so far to lay them apart by slice, before
    slices are computed; None while that is not what is done.
    """

    rows: int
    done: int
    slice: int
    slices: int
    rate: float
    eta_s: tuple[float, float] | None
    behind_rows: int
    behind_s: float | None
    since: int = 0
    laid: int | None = None

    @property
    def line(self) -> str:
        """One line for people."""
        told = [f"{self.done:,} of {self.rows:,} rows, slice {self.slice} of {self.slices}"]
        if self.laid is not None:
            told.append(f"{self.laid:,} laid apart for them")
        if self.rate >= 1:
            told.append(f"{self.rate:,.0f} rows/s")
        came = f"{self.since:,} rows that came since its base"
        if self.since and self.slice == self.slices:
            told.append(f"taking in {came}")
        elif self.eta_s is not None:
            then = f", then {came}" if self.since else ""
            told.append(f"{self.eta_s[0]:.0f} to {self.eta_s[1]:.0f} s left{then}")
        elif self.slices > 1:
            told.append("time left: known after the first slice")
        age = "" if self.behind_s is None else f" and {self.behind_s:.0f} s"
        told.append(f"{self.behind_rows:,} rows{age} behind its input")
        return ", ".join(told)


Tick = Callable[[float], bool]
"""Takes note of the share of a slice that is done; returns whether to go on."""


class Work(Protocol):
    """Work in this process, as another thread sees it."""

    def share(self) -> float | None:
        """Return how much of it is done, from 0 to 1; None while there is none."""
        ...

    def stop(self) -> None:
        """End it, if there is any; it raises an error then."""
        ...


@contextmanager
def watched(spark: SparkOnDemand, group: str, tick: Tick, work: Work) -> Iterator[None]:
    """Call `tick` every second while the block runs Spark jobs, or `work` in this process.

    Raises `Cancelled` when `tick` said so: jobs and work were stopped; `KeyboardInterrupt` as
    any code does.
    """
    over, stopped, interrupted = threading.Event(), threading.Event(), threading.Event()

    def look(pressed: Callable[[], bool]) -> None:
        while not over.wait(TICK_S):
            share, session = work.share(), spark.started
            if share is None:
                share = 0.0 if session is None else _share(session, group)
            if pressed():
                interrupted.set()
            elif not (stopped.is_set() or interrupted.is_set() or tick(share)):
                stopped.set()
            if stopped.is_set() or interrupted.is_set():
                # Each time again: what only begins now, as Spark or a query, did not hear of it.
                work.stop()
                if session is not None:
                    session.sparkContext.cancelJobGroup(group)

    try:
        with spark.group(group), _keyboard() as pressed:
            watcher = threading.Thread(
                target=look, args=(pressed,), name="replay-progress", daemon=True
            )
            watcher.start()
            try:
                yield
            finally:
                over.set()
                watcher.join()
    except Exception as error:
        if stopped.is_set():
            raise Cancelled(f"{group} was cancelled") from error
        if interrupted.is_set() or "Query interrupted" in str(error):
            # DuckDB makes an error of its own of it.
            raise KeyboardInterrupt from error
        raise
    if stopped.is_set():
        raise Cancelled(f"{group} was cancelled")


@contextmanager
def _keyboard() -> Iterator[Callable[[], bool]]:
    """Yield what tells other threads of a Ctrl-C since they asked last.

    Python hands it to the main thread alone, which hears nothing while DuckDB computes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    ear, mouth = socket.socketpair()
    with ear, mouth:
        ear.setblocking(False)
        mouth.setblocking(False)
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)

        def pressed() -> bool:
            with suppress(BlockingIOError):
                return signal.SIGINT in ear.recv(4096)
            return False

        try:
            yield pressed
        finally:
            signal.set_wakeup_fd(before)


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
