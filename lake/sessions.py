"""Sessions of Spark: how shuffles follow the cores there are, and sessions beside the first one."""

from __future__ import annotations

import threading
from collections.abc import Collection

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from kernel.loops import Signs

SHUFFLES, ADAPTIVE = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
FEW = 2
"""Partitions of a shuffle at least, and where the number of cores is not known yet."""
_MANY_CORES = 8
"""With more, what is in a partition of a small shuffle is not worth a task: Spark joins them."""
_JOBS = 3


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
