"""Slices of a build that this process computes itself, by DuckDB, and writes part by part.

Slices are the same for both executors, and so are their commits (`projections.run.driver_builds`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from kernel import failpoints
from lake.streamed_writes import append_parts
from lake.tables import Tables
from lake.writer import Guard
from projections.run.projector import Projector
from projections.run.spark_hashes import hash_sql, is_hashed
from projections.sql.operators.tree import Node
from projections.sql.plans.plan import Plan
from projections.sql.words.catalog import Column
from replay.carried_keys import computed_whole, parted
from replay.slices import Slicing, Whole


class DriverSlices:
    """Chooses which slices are for this process, and makes them as its projector's builds."""

    def __init__(self, projector: Projector, tables: Tables) -> None:
        self._projector = projector
        self._tables = tables
        self.builds = projector.builds

    def takes(self, whole: Whole, many: int = 1) -> bool:
        """Say whether so many slices are computed here.

        Sides of joins that each slice would compute anew are kept by Spark.
        """
        slicing, plan = whole.slicing, whole.plan
        if not self.builds.suits(plan, whole.catalog, whole.input_bytes):
            return False
        if many < slicing.slices:
            types = {each.name: each for each in plan.columns}
            hashed = all(is_hashed(types[name]) for name in slicing.columns)
            if not hashed or computed_whole(plan, slicing.columns):
                return False
        return self.builds.bounded(-(-whole.input_bytes * many // slicing.slices))

    def append(self, whole: Whole, number: int, guard: Guard, many: int = 1) -> bool:
        """Compute so many slices and append them, in one guarded commit; False where it cannot.

        Spark says then of which row that is so.
        """

        def write(parts: Iterator[pa.Table]) -> bool:
            append_parts(
                self._tables,
                whole.target.path,
                parts,
                guard,
                written=lambda: failpoints.hit(failpoints.REPLAY_BEFORE_SLICE),
            )
            return True

        reading = self._projector.reading(whole.plan, whole.target, whole.catalog, whole.up_to)
        apart = _apart(whole.plan, whole.slicing, number, many)
        if not self.builds.write(reading, whole.up_to, write, apart):
            return False
        failpoints.hit(failpoints.REPLAY_AFTER_SLICE)
        return True


def _apart(plan: Plan, slicing: Slicing, number: int, many: int) -> Mapping[Node, str]:
    """Write which rows are of so many slices, as `Slicing.conditions` does for Spark."""
    if not slicing.columns or many == slicing.slices:
        return {}
    return {
        node: _condition(columns, slicing.slices, number, many)
        for node, columns in parted(plan.tree, slicing.columns)
    }


def _condition(columns: Sequence[Column], modulus: int, number: int, many: int) -> str:
    place = f"(({hash_sql(columns)} % {modulus}) + {modulus}) % {modulus}"
    return f"{place} BETWEEN {number} AND {number + many - 1}"
