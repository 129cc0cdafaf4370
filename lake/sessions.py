"""Sessions of Spark: how shuffles follow the cores there are, and sessions beside the first one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import cast

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kernel.loops import Signs

SHUFFLES, ADAPTIVE = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
FEW = 2
"""Partitions of a shuffle at least, and where the number of cores is not known yet."""
_MANY_CORES = 8
"""With more, what is in a partition of a small shuffle is not worth a task: Spark joins them."""
_JOBS = 3


class SparkOnDemand:
    """A session of Spark that is started when somebody first needs it: that takes seconds.

    For one thread, but for `started`, which any may ask.
    """

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._group: str | None = None
        self.started: SparkSession | None = None

    @classmethod
    def of(cls, spark: Spark) -> SparkOnDemand:
        """Return a session that may be there already as one that is started on demand."""
        if isinstance(spark, SparkOnDemand):
            return spark
        found = cls(lambda: spark)
        found.started = spark
        return found

    @property
    def session(self) -> SparkSession:
        """The session; it is started where it was not."""
        if self.started is None:
            self.started = self._start()
            self._set_group()
        return self.started

    def beside(self) -> SparkOnDemand:
        """Return a session beside this one, see `session_beside`, which starts this one first."""
        return SparkOnDemand(lambda: session_beside(self.session))

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Have this thread's jobs be of a group, also if Spark is only started meanwhile."""
        self._group = name
        self._set_group()
        try:
            yield
        finally:
            self._group = None
            if self.started is not None:
                # Spark's signature leaves out None, which is how a property is taken away.
                context = self.started.sparkContext
                context.setLocalProperty("spark.jobGroup.id", cast(str, None))

    def _set_group(self) -> None:
        if self.started is not None and self._group is not None:
            context = self.started.sparkContext
            context.setJobGroup(self._group, self._group, interruptOnCancel=True)


Spark = SparkSession | SparkOnDemand
"""A session that there is, or one that is started on demand."""


def fit_to_cores(session: SparkSession, asked: Collection[str] = ()) -> None:
    """Have shuffles follow the cores that there are now, but for the settings that are `asked`.

    Executors of a cluster come and go: to be called again now and then.
    """
    cores = session.sparkContext.defaultParallelism
    fitting = {SHUFFLES: str(max(FEW, cores)), ADAPTIVE: str(cores > _MANY_CORES).lower()}
    for name, value in fitting.items():
        if name not in asked and session.conf.get(name) != value:
            session.conf.set(name, value)


def answers(session: SparkSession) -> bool:
    """Say whether Spark works still: a session has one Java process, and cannot get another.

    Nor does Spark begin again once it has stopped itself, as where it gives its cluster up. What is
    asked is nothing that the session would remember, as it does its version.
    """
    try:
        return session.sparkContext.defaultParallelism > 0
    except (Py4JError, OSError):
        return False


def session_beside(session: SparkSession) -> SparkSession:
    """Return a session with views and configuration of its own, whose shuffles are as large.

    A new session has what Spark was started with, and not what was set since.
    """
    beside = session.newSession()
    follow(beside, session)
    return beside


def work_for(session: SparkSession, group: str) -> None:
    """Let Spark know for whom this thread works: pools, one of each thread, share its cores."""
    session.sparkContext.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)
    session.sparkContext.setJobGroup(group, group)


def follow(beside: SparkSession, session: SparkSession) -> None:
    """Make the shuffles of one session as large as those of another."""
    for name in (SHUFFLES, ADAPTIVE):
        beside.conf.set(name, str(session.conf.get(name)))


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
