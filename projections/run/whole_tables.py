"""Writes a projection's table as a whole: its first rows, and all of them where columns changed.

Who computes them is the first of these that can; `pipeline.executor` forces this process or Spark:
1. what keeps the projection up to date, of few files: what it holds is then there for the next run;
2. DuckDB, of the files of the inputs and part by part, as builds are (`driver_builds`);
3. Spark, which collects few rows here, and has its executors write many.
All give the same rows (P6), which replace what lies at the target in one guarded commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import DataFrame, functions

from kernel import failpoints
from kernel.errors import BeyondThisProcess, TooLarge
from kernel.positions import DeltaVersion, Epoch
from lake.collecting import RESULT, collected
from lake.layout import Lake
from lake.ranges import Range
from lake.sessions import SparkOnDemand
from lake.spark_writer import SparkWriter
from lake.streamed_writes import overwrite_parts
from lake.tables import Tables
from lake.views import DeltaFrames
from lake.writer import ArrowWriter, Guard
from pipeline.executor import Executor
from pipeline.typed.columns import EPOCH
from projections.run.driver_builds import DriverBuilds
from projections.run.engines import PlanSessions
from projections.run.input_rows import input_bytes, table_of
from projections.run.key_runs import KEPT_BY_KEYS, all_rows
from projections.run.matchers import register_functions
from projections.run.region_runs import Reading, RegionRuns
from projections.run.relations import LakeCatalog
from projections.run.result_rows import keyed, stamped
from projections.run.stream_frames import input_frame
from projections.sql.plans.plan import InputKind, Plan

BOUNDED_BYTES = 64 * 2**20
"""Of input files up to this size the rows that Spark computes are collected and committed here."""
SMALL_BYTES = 8 * 2**20
"""Input files up to this size are read here, for a projection that holds nothing, even as a whole.

What a join as of a time compares grows with the product of both sides: of more, its first rows are
computed beside the rounds, and nobody waits for them."""


class WholeTables:
    """Writes whole tables for one projector, with what it keeps in `regions` and `sessions`."""

    def __init__(
        self,
        spark: SparkOnDemand,
        lake: Lake,
        tables: Tables,
        regions: RegionRuns,
        sessions: PlanSessions,
        builds: DriverBuilds,
        *,
        bounded_bytes: int = BOUNDED_BYTES,
        begins_long: Callable[[], None] = lambda: None,
    ) -> None:
        """`begins_long` is called before what takes long, and may raise to refuse it."""
        self._spark = spark
        self._lake = lake
        self._tables = tables
        self._regions = regions
        self._sessions = sessions
        self._builds = builds
        self._frames = DeltaFrames(spark, tables)
        self._writer = ArrowWriter(tables)
        self._spark_writer = SparkWriter(spark, tables)
        self._bounded_bytes = bounded_bytes
        self._begins_long = begins_long

    def is_small(self, plan: Plan, catalog: LakeCatalog) -> bool:
        """Say whether a round may read all that a plan reads."""
        return self._bytes(plan, catalog) <= min(SMALL_BYTES, self._bounded_bytes)

    def write(self, reading: Reading, guard: Guard) -> tuple[DeltaVersion, int]:
        """Compute everything and replace what lies at the target; return version and rows."""
        self._regions.forget()
        found = self._as_kept(reading, guard.epoch)
        if found is not None:
            return self._replaced(reading, found, guard)
        self._regions.forget()
        self._begins_long()
        return self._by_duckdb(reading, guard) or self._by_spark(reading, guard)

    def frame(self, reading: Reading, up_to: Epoch) -> DataFrame:
        """Return all rows as they are at an epoch, as a frame that is computed when it is used."""
        plan = reading.plan
        seen = Range(column=EPOCH, lower=None, upper=up_to + 1)
        late = not plan.stateful or reading.include_late
        for item in plan.inputs:
            ranges = (seen,) if item.kind is InputKind.STREAM else ()
            version = reading.versions.get(table_of(item))
            frame = input_frame(
                self._frames,
                self._lake,
                item,
                reading.catalog,
                ranges,
                late=late,
                version=version,
            )
            frame.createOrReplaceTempView(item.view)
        register_functions(self._spark.session, plan.tree)
        return self._spark.session.sql(plan.rows_at(reading.watermark_us))

    def _bytes(self, plan: Plan, catalog: LakeCatalog) -> int:
        return input_bytes(self._lake, self._tables, plan, catalog)

    def _as_kept(self, reading: Reading, up_to: Epoch) -> pa.Table | None:
        """Return the rows as a round computes them; None where they are more than come here.

        A join makes many of few.
        """
        plan = reading.plan
        asked = self._builds.asked is not Executor.SPARK
        if not (asked and plan.small and self.is_small(plan, reading.catalog)):
            return None
        with suppress(BeyondThisProcess), self._sessions.engine(reading, up_to) as engine:
            if plan.strategy in KEPT_BY_KEYS:
                return all_rows(engine, plan, up_to)
            if self._tables.open(reading.path) is None:
                return self._regions.first(reading, up_to)
        return None

    def _by_duckdb(self, reading: Reading, guard: Guard) -> tuple[DeltaVersion, int] | None:
        """Write rows as DuckDB gives them; None where they are Spark's."""
        size = self._bytes(reading.plan, reading.catalog)
        suits = self._builds.suits(reading.plan, reading.catalog, size)
        if not (suits and self._builds.bounded(size)):
            return None

        def write(parts: Iterator[pa.Table]) -> tuple[DeltaVersion, int]:
            return overwrite_parts(
                self._tables,
                reading.path,
                parts,
                guard,
                written=lambda: failpoints.hit(failpoints.PROJECTION_BEFORE_COMMIT),
            )

        return self._builds.write(reading, guard.epoch, write)

    def _by_spark(self, reading: Reading, guard: Guard) -> tuple[DeltaVersion, int]:
        frame = self.frame(reading, guard.epoch)
        if self._bytes(reading.plan, reading.catalog) <= self._bounded_bytes:
            with suppress(TooLarge):
                few = collected(frame, RESULT)
                return self._replaced(reading, few, guard)
        whole = frame.dropna(subset=list(reading.plan.key))
        marked = whole.withColumn(EPOCH, functions.lit(int(guard.epoch)).cast("bigint"))
        failpoints.hit(failpoints.PROJECTION_BEFORE_COMMIT)
        version = self._spark_writer.overwrite(reading.path, marked, guard)
        table = self._tables.open(reading.path)
        return version, table.count() if table is not None else 0

    def _replaced(
        self, reading: Reading, found: pa.Table, guard: Guard
    ) -> tuple[DeltaVersion, int]:
        """Commit rows that are in this process."""
        rows = stamped(keyed(found, reading.plan.key), guard.epoch)
        failpoints.hit(failpoints.PROJECTION_BEFORE_COMMIT)
        version = self._writer.overwrite(reading.path, rows, guard)
        self._regions.committed(reading.app_id, version)
        return version, rows.num_rows
