"""Folds beside ingest, for lakes that a test writes by hand: executors are here, or processes."""

from __future__ import annotations

from lake.executor_tasks import Executors, Tasks, TasksHere
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.foldable_rows import FoldableRows
from pipeline.commit.folds_beside import FoldsBeside
from pipeline.current.bucketed_merge import BucketedMerge
from pipeline.current.fold_ahead import FoldAhead
from pipeline.current.staged_images import ArrowStagedMerge
from pipeline.current.tables import CurrentTables
from pipeline.ddl.table_plans import SchemaFollower
from schemas.registry import SchemaLookup


def folds_beside(
    lake: Lake,
    schemas: SchemaLookup,
    current: CurrentTables,
    most_rows: int,
    tasks: Tasks | None = None,
) -> FoldsBeside:
    """Return what folds more than so many rows beside the epochs of `current`."""
    tables, tasks = Tables(), tasks or TasksHere()
    executors = Executors(tasks=tasks)
    fold = FoldAhead(
        lake,
        tables,
        schemas,
        current.tails,
        keeps_deleted=current.keeps_deleted,
        executors=executors,
        merge=BucketedMerge(tables, tasks, otherwise=ArrowStagedMerge(tables)),
    )
    rows = FoldableRows(
        lake=lake,
        tables=tables,
        follower=SchemaFollower(lake, tables, schemas),
        rows_at_once=executors.rows_at_once,
    )
    return FoldsBeside(rows, fold, most_rows=most_rows)
