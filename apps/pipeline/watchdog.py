"""The watchdog of the pipeline's loops: what stands still is said, and in the end started again.

Progress is what a loop itself passes (steps of an epoch, tables, chunks), and what a probe sees
from outside (tasks that Spark's executors end). A long epoch that gets on is no standstill.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from apps.settings import Settings
from apps.standstills import FIX
from kernel.loops import Loop

LOOK_S = 1.0
EXIT_STANDSTILL = 70
"""The exit code of a process that the watchdog ended."""
_SLOW = 10
_JOBS = 3

log = logging.getLogger("penstock.watchdog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What a probe sees of a loop: work that `waits` for it, and `progress`: it moves on whenever
    that is another value than before.
    """

    waits: str | None = None
    progress: object = None


Probe = Callable[[], Signs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A loop with its bound. `vital`: without it no rows move, so that the process ends with it."""

    loop: Loop
    bound_s: float
    vital: bool = False
    probe: Probe | None = None


def end_process(reason: str) -> None:
    """End this process at once, with the stacks of all threads in its log.

    Its supervisor starts it again. Epochs are guarded: it may end at any moment.
    """
    log.critical("%s: this process ends, to be started again", reason)
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    sys.stderr.flush()
    os._exit(EXIT_STANDSTILL)


class Watchdog:
    """Compares what each loop did last with its bound, once a second.

    Probes ask others (the broker, Spark), which may hang: they have a thread of their own.
    """

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        end_after_s: float,
        end: Callable[[str], None] = end_process,
    ) -> None:
        """A vital loop that stands still for `end_after_s` ends the process; 0 stands for never."""
        self._watched = watched
        self._end_after_s = end_after_s
        self._end = end
        self._seen: dict[str, object] = {}
        self.still: dict[str, str] = {}
        """What stands still, by the name of the loop: since when, where, and what to do."""

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set."""
        threading.Thread(target=self._probe, args=(stop,), name="probes", daemon=True).start()
        while not stop.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Compare once."""
        still = {}
        for watched in self._watched:
            name = watched.loop.name
            seconds, where = watched.loop.still()
            if seconds < watched.bound_s:
                continue
            reason = f"{name} has not moved on for {seconds:.0f} s, {where}"
            still[name] = f"{reason}{FIX}penstock restart pipeline"
            if name not in self.still:
                log.error("%s", reason)
            if watched.vital and 0 < self._end_after_s <= seconds:
                self._end(reason)
        for name in self.still.keys() - still.keys():
            log.info("%s moves on", name)
        self.still = still

    def probe(self) -> None:
        """Ask once what the loops do not say themselves."""
        for watched in self._watched:
            name = watched.loop.name
            if watched.probe is None:
                continue
            try:
                signs = watched.probe()
            except Exception as error:
                # Who does not answer is named elsewhere. It is no progress either.
                log.debug("probe of %s: %s", name, error)
                continue
            watched.loop.waits(signs.waits)
            if name in self._seen and self._seen[name] != signs.progress:
                watched.loop.moved()
            self._seen[name] = signs.progress

    def _probe(self, stop: threading.Event) -> None:
        pause_s = max(LOOK_S, min(each.bound_s for each in self._watched) / 4)
        while not stop.wait(pause_s):
            self.probe()


def watchdog_of(
    settings: Settings,
    *,
    vital: Mapping[Loop, Probe],
    others: Iterable[Loop],
    slow: Iterable[Loop],
) -> Watchdog:
    """Return the watchdog of a pipeline's loops, with the bounds that the settings have.

    `slow` are those of which one step may take long, and which nothing waits for.
    """
    bound_s = float(settings.number("pipeline.standstill_seconds"))
    watched = [
        *(Watched(loop=each, bound_s=bound_s, vital=True, probe=vital[each]) for each in vital),
        *(Watched(loop=each, bound_s=bound_s) for each in others),
        *(Watched(loop=each, bound_s=_SLOW * bound_s) for each in slow),
    ]
    return Watchdog(watched, end_after_s=settings.number("pipeline.standstill_end_seconds"))


def spark_signs(spark: SparkSession, *groups: str | None) -> Signs:
    """Return as progress what changes whenever Spark began a job or ended a task of its groups."""
    tracker = spark.sparkContext.statusTracker()
    jobs = sorted(job for group in groups for job in tracker.getJobIdsForGroup(group))[-_JOBS:]
    ended = 0
    for job in jobs:
        known = tracker.getJobInfo(job)
        for stage in known.stageIds if known is not None else ():
            told = tracker.getStageInfo(stage)
            ended += told.numCompletedTasks if told is not None else 0
    return Signs(progress=(jobs, ended))
