"""Whole rows of a projection that this process computes itself, by DuckDB, and writes as they come.

To hand a million rows around Spark takes longer than to compute them. So DuckDB makes builds where
it gives the same bits and what they read is bounded; Spark makes all others, and those that turn
out not to be for DuckDB.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

import pyarrow as pa

from kernel.errors import BeyondThisProcess, ContractViolation, TooLarge
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.executor import Executor, ExecutorChoice
from projections.run.laid_rows import InputPiece, LaidRows
from projections.run.region_runs import Reading
from projections.run.relations import LakeCatalog
from projections.run.whole_rows import WholeRows
from projections.sql.operators.shape import Plan
from projections.sql.operators.tree import Node
from projections.sql.rendering.batch import ALL, Parts

BUILD_BYTES = 256 * 2**20
"""Files of the inputs up to which this process computes a build, or a slice of one, by DuckDB."""

R = TypeVar("R")
_turn = threading.Lock()
"""A build takes all cores, and the memory of `WholeRows`: this process makes one at a time."""


class DriverBuilds:
    """Chooses which builds are for this process, and makes them."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        choice: ExecutorChoice,
        *,
        most_bytes: int = BUILD_BYTES,
    ) -> None:
        self.asked = choice.asked
        self._elsewhere = choice.elsewhere
        self.most_bytes = most_bytes
        self.work = WholeRows(lake, tables)

    def suits(self, plan: Plan, catalog: LakeCatalog, input_bytes: int) -> bool:
        """Say whether parts of a plan's rows may be computed here, if they are not too large."""
        if self.asked is Executor.SPARK or not self.work.can(plan, catalog):
            return False
        # Executors elsewhere have cores of their own: large builds are for them.
        passed_on = self._elsewhere and input_bytes > self.most_bytes
        return self.asked is Executor.DRIVER or not passed_on

    def bounded(self, part_bytes: int) -> bool:
        """Say whether what a part of so many bytes of files reads is not too large."""
        return self.asked is Executor.DRIVER or part_bytes <= self.most_bytes

    def write(
        self,
        reading: Reading,
        up_to: Epoch,
        write: Callable[[Iterator[pa.Table]], R],
        apart: Parts = ALL,
        laid: Collection[Node] = (),
    ) -> R | None:
        """Have `write` take the rows that `WholeRows.rows` gives; return what it returns.

        None where DuckDB cannot compute them: Spark says then of which row that is so. Raises what
        ends work that was stopped.
        """
        try:
            with _turn, self.work.rows(reading, up_to, apart, laid) as parts:
                return write(parts)
        except (BeyondThisProcess, ContractViolation, TooLarge):
            if self.work.stopped:
                raise
            return None

    def lay(self, reading: Reading, up_to: Epoch, piece: InputPiece, laid: LaidRows) -> bool:
        """Lay a piece of the inputs apart, as `WholeRows.lay`; False where DuckDB cannot.

        Raises what ends work that was stopped, and `StorageFull`.
        """
        try:
            with _turn:
                return self.work.lay(reading, up_to, piece, laid)
        except (BeyondThisProcess, ContractViolation, TooLarge):
            if self.work.stopped:
                raise
            return False
