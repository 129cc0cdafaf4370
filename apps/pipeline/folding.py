"""Builds what folds changes into `current` tables: in ingest's turn, and beside it."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from apps.settings import Settings
from lake.executor_tasks import Executors
from lake.layout import Lake
from lake.shipment import is_elsewhere
from lake.tables import Tables
from lake.task_processes import TaskProcesses
from pipeline.commit import folds_beside as beside
from pipeline.current.bucketed_merge import large_merge
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.merging import MergeBeside
from pipeline.current.tables import CurrentTables, SoftDeletes
from schemas.registry import SchemaLookup

_POOL = "beside"
"""What the jobs of folds beside ingest are called in Spark: they share the cores, and no queue."""


def current_tables(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    schemas: SchemaLookup,
    executors: Executors,
    soft_deletes: SoftDeletes,
) -> CurrentTables:
    """Return what folds into the tables of a workspace."""
    return CurrentTables(
        Lake.at(settings.lake),
        tables,
        schemas,
        soft_deletes=soft_deletes,
        large=large_merge(spark, tables, executors.tasks),
        policy=FoldPolicy(freshness_s=settings.number("lake.fold_freshness_ms") / 1000),
        beside=MergeBeside(),
        executors=executors,
    )


def folds_beside(
    spark: SparkSession, lake: Lake, schemas: SchemaLookup, current: CurrentTables
) -> beside.FoldsBeside:
    """Return what does large folds of `current` beside ingest, with table handles of its own.

    Executors that have this machine's cores leave their work to processes of low priority.
    """
    tables, executors = Tables(), current.executors
    own = TaskProcesses()
    if executors.tasks is not None and not is_elsewhere(str(spark.sparkContext.master)):
        executors = replace(executors, tasks=own)

    def begins() -> None:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)

    merge = large_merge(spark, tables, executors.tasks)
    return beside.folds_beside(
        lake, tables, schemas, current, executors, merge, begins=begins, ends=own.close
    )
