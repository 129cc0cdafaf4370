"""Executors for commands that compare tables: a session of the command's own, once it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from apps.pipeline.shipment import is_elsewhere
from apps.settings import Settings
from lake.collecting import Limit
from lake.executor_rows import BucketRows, PartBuckets, PartRows, RowTasks, SparkRows
from pipeline.executor import Executor, ExecutorChoice
from pipeline.verification.large_states import LargeStates

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def large_states(found: Settings) -> LargeStates | None:
    """Return who hashes tables that are too large for a command; None where it does it itself."""
    choice = ExecutorChoice(
        asked=Executor.named(found.text("pipeline.executor")),
        driver_bytes=found.number("pipeline.driver_bytes"),
    )
    master = found.text("replay.spark_master")

    def start() -> SparkSession:
        from apps.pipeline.session import session_for

        print("starting Spark", file=sys.stderr, flush=True)
        return session_for(found, "replay-spark", master=master)

    return choice.large_states(OwnRows(start), elsewhere=is_elsewhere(master))


class OwnRows:
    """Has executors of a session make rows; it starts when rows are asked for. See `RowTasks`."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    @cached_property
    def _rows(self) -> RowTasks:
        return SparkRows(self._start())

    def of_parts(self, task: PartRows, parts: int, limit: Limit) -> Mapping[int, pa.Table] | None:
        """See `RowTasks`."""
        return self._rows.of_parts(task, parts, limit)

    def of_buckets(
        self,
        task: PartBuckets,
        parts: int,
        join: BucketRows,
        buckets: int,
        limit: Limit,
        take: Callable[[pa.Table], None],
    ) -> bool:
        """See `RowTasks`."""
        return self._rows.of_buckets(task, parts, join, buckets, limit, take)
