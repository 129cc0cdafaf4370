"""Slices of a build that this process computes itself, by DuckDB, and writes part by part.

To hand a million rows around Spark takes longer than to compute them. So DuckDB makes a build's
slices where it gives the same bits and what a slice reads is bounded; Spark makes all others, and
those that turn out not to be for DuckDB: slices are the same for both, and so are their commits.
"""

from __future__ import annotations

from kernel import failpoints
from kernel.errors import BeyondThisProcess, ContractViolation, TooLarge
from lake.layout import Lake
from lake.streamed_appends import append_parts
from lake.tables import Tables
from lake.writer import Guard
from pipeline.executor import Executor
from projections.run.projector import Projector
from projections.run.region_runs import Reading
from projections.run.relations import LakeCatalog
from projections.run.spark_hashes import hash_sql, is_hashed
from projections.run.whole_rows import WHOLE_MEMORY_BYTES, WholeRows
from projections.sql.plan import Plan
from replay.carried_keys import computed_whole
from replay.slices import SLICE_BYTES, Slicing, Whole


class DriverSlices:
    """Chooses which slices are for this process, and makes them."""

    def __init__(
        self,
        projector: Projector,
        lake: Lake,
        tables: Tables,
        *,
        asked: Executor = Executor.AUTO,
        elsewhere: bool = False,
        slice_bytes: int = SLICE_BYTES,
        memory_bytes: int = WHOLE_MEMORY_BYTES,
    ) -> None:
        """`elsewhere`: executors have cores of their own, so that large builds are for them."""
        self._elsewhere = elsewhere
        self._projector = projector
        self._tables = tables
        self._asked = asked
        self.slice_bytes = slice_bytes
        self.work = WholeRows(lake, tables, memory_bytes=memory_bytes)

    def suits(self, plan: Plan, catalog: LakeCatalog, input_bytes: int) -> bool:
        """Say whether slices of a plan may be computed here, if they are not too large."""
        if self._asked is Executor.DRIVER:
            return self.work.can(plan, catalog)
        passed_on = self._elsewhere and input_bytes > self.slice_bytes
        return self._asked is Executor.AUTO and not passed_on and self.work.can(plan, catalog)

    def takes(self, whole: Whole, many: int = 1) -> bool:
        """Say whether so many slices are computed here.

        Sides of joins that each slice would compute anew are kept by Spark.
        """
        slicing, plan = whole.slicing, whole.plan
        if not self.suits(plan, whole.catalog, whole.input_bytes):
            return False
        if many < slicing.slices:
            types = {each.name: each for each in plan.columns}
            hashed = all(is_hashed(types[name]) for name in slicing.columns)
            if not hashed or computed_whole(plan, slicing.columns):
                return False
        bounded = whole.input_bytes * many <= self.slice_bytes * slicing.slices
        return bounded or self._asked is Executor.DRIVER

    def append(self, whole: Whole, number: int, guard: Guard, many: int = 1) -> bool:
        """Compute so many slices and append them, in one guarded commit; False where it cannot.

        Spark says then of which row that is so.
        """
        condition = _condition(whole.plan, whole.slicing, number, many)
        try:
            with self.work.rows(self._reading(whole), whole.up_to, condition) as parts:
                append_parts(
                    self._tables,
                    whole.target.path,
                    parts,
                    guard,
                    written=lambda: failpoints.hit(failpoints.REPLAY_BEFORE_SLICE),
                )
        except (BeyondThisProcess, ContractViolation, TooLarge):
            if self.work.stopped:
                raise
            return False
        failpoints.hit(failpoints.REPLAY_AFTER_SLICE)
        return True

    def _reading(self, whole: Whole) -> Reading:
        return self._projector.reading(whole.plan, whole.target, whole.catalog, whole.up_to)


def _condition(plan: Plan, slicing: Slicing, number: int, many: int) -> str:
    """Write which rows are of so many slices, as `Slicing.conditions` does for Spark."""
    if not slicing.columns or many == slicing.slices:
        return "true"
    types = {each.name: each for each in plan.columns}
    hashed, modulus = hash_sql([types[name] for name in slicing.columns]), slicing.slices
    place = f"(({hashed} % {modulus}) + {modulus}) % {modulus}"
    return f"{place} BETWEEN {number} AND {number + many - 1}"
