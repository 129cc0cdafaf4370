"""Chooses who does a step of an epoch: the driver, or Spark's executors.

A small epoch is done in this process on Arrow, where nothing is handed around; a large one by
executors, so that this process holds no more than the columns that decide. How large an epoch is
shows only when it was read: it is guessed by what records took the last time. What is read of the
log afterwards is measured by the same guess.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import StrEnum

from kernel.errors import Misconfigured
from lake.executor_rows import RowTasks
from lake.executor_tasks import Executors, Tasks
from lake.upkeep.compaction import LargeCompaction, PutTogether
from pipeline.log.log_task import Facts
from pipeline.log.staged_rows import Stage, Staged
from pipeline.verification.large_states import LargeStates

DRIVER_BYTES = 2**25
"""What the driver takes in at once where no setting says it."""
FIRST_GUESS_BYTES = 1024
_FORGETS = 0.9
"""Of a guess, when records turn out smaller: one epoch of small ones says little of the next."""
MOST_PARTS = 8
"""Of a batch: a larger one goes to executors as a whole, as what it says is of another size."""
_FILLED = 0.9
"""Of the driver's bound: the records of a part are not exactly of the size that was guessed."""


class Executor(StrEnum):
    """Who works, as the setting `pipeline.executor` has it."""

    AUTO = "auto"
    DRIVER = "driver"
    SPARK = "spark"

    @classmethod
    def named(cls, name: str) -> Executor:
        """Return an executor by its name. Raises `Misconfigured`."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise Misconfigured(
                f"pipeline.executor is {name!r}", remedy=f"Set pipeline.executor to one of {known}."
            ) from None


@dataclass(slots=True, kw_only=True)
class ExecutorChoice:
    """Chooses per epoch. `driver_bytes` is what the driver takes in at once, decoded.

    A batch may be made into up to `most_parts` epochs that the driver takes in one after the other:
    executors on its own cores take more of these for a record than it does itself. `elsewhere`:
    they have cores of their own.
    """

    asked: Executor = Executor.AUTO
    driver_bytes: int = DRIVER_BYTES
    record_bytes: float = field(default=FIRST_GUESS_BYTES)
    most_parts: int = 1
    elsewhere: bool = False

    def of(self, records: int) -> Executor:
        """Return who decodes so many records: the driver or Spark's executors."""
        if self.asked is not Executor.AUTO:
            return self.asked
        small = records * self.record_bytes <= self.driver_bytes
        return Executor.DRIVER if small else Executor.SPARK

    def at_once(self, records: int) -> int:
        """Return how many of a batch of records are to be made into its next epoch."""
        if self.asked is not Executor.AUTO or self.of(records) is Executor.DRIVER:
            return records
        part = max(1, int(_FILLED * self.driver_bytes / self.record_bytes))
        parts = -(-records // part)
        return -(-records // parts) if parts <= self.most_parts else records

    def rows_at_once(self, most: int) -> int:
        """Return how many rows of the log the driver takes at once, where it could take `most`."""
        if self.asked is Executor.SPARK:
            return 0
        return min(most, int(self.driver_bytes / self.record_bytes))

    def executors(self, tasks: Tasks) -> Executors:
        """Return who reads large parts of the log: `tasks`, or the driver where it does all."""
        if not self.may_pass_on:
            return Executors()
        return Executors(tasks=tasks, rows_at_once=self.rows_at_once)

    def large_compaction(self, by: PutTogether) -> LargeCompaction | None:
        """Return who compacts more than the driver takes at once; None where it does all.

        Executors on the driver's own cores take ten times as long, and rounds of projections wait
        for it: the driver does it in bounded memory, of each partition some 64 MB of files at most.
        """
        most = self._most_in_parts(elsewhere=self.elsewhere)
        return None if most is None else LargeCompaction(most_bytes=most, by=by)

    def large_states(self, tasks: RowTasks, *, elsewhere: bool) -> LargeStates | None:
        """Return who hashes tables with more than the driver takes in; None where it does all.

        Executors that are not `elsewhere` have the cores that the driver has, and would first have
        to be started: they hash only what they are asked for. The driver does it in bounded memory.
        """
        most = self._most_in_parts(elsewhere=elsewhere)
        return None if most is None else LargeStates(most_bytes=most, tasks=tasks)

    def _most_in_parts(self, *, elsewhere: bool) -> int | None:
        """Return how many bytes the driver takes of what it could take part by part; None for all.

        More is for executors with cores of their own, or for those that were asked for.
        """
        if not self.may_pass_on or (self.asked is Executor.AUTO and not elsewhere):
            return None
        return 0 if self.asked is Executor.SPARK else self.driver_bytes

    @property
    def may_pass_on(self) -> bool:
        """Say whether executors do what turns out too large for the driver."""
        return self.asked is not Executor.DRIVER

    @property
    def history_bytes(self) -> int:
        """Return how many bytes of rows the driver takes in to fold one history; 0 for none."""
        return 0 if self.asked is Executor.SPARK else self.most_bytes

    @property
    def most_bytes(self) -> int:
        """Return how much the driver may take in at once: all of it where nobody else may."""
        return self.driver_bytes if self.may_pass_on else sys.maxsize

    def refused(self, records: int) -> None:
        """Take note that so many records were too large for the driver."""
        self.saw(records, self.driver_bytes + 1)

    def noting(self, stage: Stage) -> Stage:
        """Return what has executors decode an epoch, so that note is taken of what that took."""

        def noted(facts: Facts) -> Staged:
            staged = stage(facts)
            self.saw(staged.rows, staged.decoded_bytes)
            return staged

        return noted

    def saw(self, records: int, size: int) -> None:
        """Take note of what records took, decoded."""
        if records:
            self.record_bytes = max(size / records, self.record_bytes * _FORGETS)
