"""Sides of joins that all slices of a build need whole: computed once, then read from disk.

A slice of a projection is a part of its keys. Where a join compares its rows with what is computed
from others, as the greatest of all, each slice would compute that anew.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from lake.sessions import Spark, SparkOnDemand
from projections.sql.plans.plan import Plan
from projections.sql.rendering.batch import whole
from projections.sql.rendering.spark_text import SparkText
from replay.carried_keys import computed_whole
from replay.slices import Slicing


class JoinSides:
    """The sides that one build keeps, as views of its session, until `release`.

    Spark keeps them on the executors' disks; what is lost there it computes again.
    """

    def __init__(self, spark: Spark) -> None:
        self._spark = SparkOnDemand.of(spark)
        self._frames: dict[str, DataFrame] = {}
        self._plans: dict[str, Plan] = {}

    def plan(self, plan: Plan, slicing: Slicing, rows_of: Callable[[Plan], DataFrame]) -> Plan:
        """Return a plan whose query reads its sides; `rows_of` makes the rows of a plan's query."""
        if slicing.slices == 1:
            return plan
        if plan.rows_sql not in self._plans:
            self._plans[plan.rows_sql] = self._with_views(plan, slicing, rows_of)
        return self._plans[plan.rows_sql]

    def keep(self, frame: DataFrame) -> DataFrame:
        """Return rows that Spark keeps once they are computed."""
        return frame.persist(StorageLevel.DISK_ONLY)

    def release(self) -> None:
        """Give back what is kept."""
        for view, frame in self._frames.items():
            self._spark.session.catalog.dropTempView(view)
            frame.unpersist()
        self._frames.clear()
        self._plans.clear()

    def _with_views(
        self, plan: Plan, slicing: Slicing, rows_of: Callable[[Plan], DataFrame]
    ) -> Plan:
        text = plan.rows_sql
        for side in computed_whole(plan, slicing.columns):
            query = whole(side, SparkText())
            if query not in text:
                continue
            view = f"penstock_side_{uuid.uuid4().hex}"
            frame = self.keep(rows_of(replace(plan, rows_sql=query)))
            self._frames[view] = frame
            frame.createOrReplaceTempView(view)
            text = text.replace(query, f"SELECT * FROM {view}")
        return replace(plan, rows_sql=text)
