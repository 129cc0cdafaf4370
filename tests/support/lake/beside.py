"""Folds beside ingest, for lakes that a test writes by hand: executors are here, or processes."""

from __future__ import annotations

from lake.executor_tasks import Executors, Tasks, TasksHere
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit import folds_beside as product
from pipeline.current.bucketed_merge import BucketedMerge
from pipeline.current.staged_images import ArrowStagedMerge
from pipeline.current.tables import CurrentTables
from schemas.registry import SchemaLookup


def folds_beside(
    lake: Lake,
    schemas: SchemaLookup,
    current: CurrentTables,
    most_rows: int,
    tasks: Tasks | None = None,
    most_bytes: int = product.BESIDE_BYTES,
    most_row_bytes: int = product.BESIDE_ROW_BYTES,
) -> product.FoldsBeside:
    """Return what folds more than so many rows, or bytes of rows, beside the epochs of `current`.

    Larger files than `most_bytes` are brought to new columns there, too.
    """
    tables, tasks = Tables(), tasks or TasksHere()
    executors = Executors(tasks=tasks)
    merge = BucketedMerge(tables, tasks, otherwise=ArrowStagedMerge(tables))
    bounds = {"most_rows": most_rows, "most_bytes": most_bytes, "most_row_bytes": most_row_bytes}
    return product.folds_beside(lake, tables, schemas, current, executors, merge, **bounds)
