"""What is known of projections while a pipeline keeps them: their last runs, and how they stand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from kernel.clock import UNIX_EPOCH
from kernel.errors import FIX, PenstockError, without_stack
from lake.tables import TableAt
from pipeline.ddl.held_tables import retry_command
from projections.run.derived_tables import DerivedTables
from projections.run.relations import waits_for_input

FIRST_ROW = "waits for the first row: "
"""How it is told of a projection that an input of it has no row yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run did.

    Of final rows `ended_us` is the watermark, in microseconds since 1970, up to which they were
    given out, and `waiting` how many wait for it; None where that is not known. `state_bytes` is
    what its operators hold in this process, None where they hold nothing.
    """

    table: TableAt
    rows: int
    deleted: int
    whole: bool
    milliseconds: float
    ended_us: int | None = None
    waiting: int | None = None
    state_bytes: int | None = None


def run_of(table: TableAt, rows: int, deleted: int, whole: bool, started: float) -> Run:
    """Return a run that began at `started`, of `perf_counter`, and ends now."""
    elapsed = round((time.perf_counter() - started) * 1000, 1)
    return Run(table=table, rows=rows, deleted=deleted, whole=whole, milliseconds=elapsed)


@dataclass(slots=True)
class ProjectionState:
    """What the status shows of one projection.

    It was computed up to `epoch`, and can be seen by name up to `noted`. By design `waits` are
    final rows, and `trigger` is what it waits for at the epoch `asked` before it runs, as
    `first_row` is where an input had no row then. `slow` says that its last run kept others
    waiting. `takes_s` is how long it takes until a due run can be seen; one that began and cannot
    be seen yet `waits_since` then.
    """

    name: str
    epoch: int = 0
    noted: int = 0
    error: str | None = None
    held: bool = False
    runs: int = 0
    last_ms: float = 0.0
    due_at: float = 0.0
    takes_s: float = 0.0
    waits_since: float | None = None
    waits: str | None = None
    trigger: str | None = None
    first_row: str | None = None
    asked: int = 0
    slow: bool = False
    state_bytes: int | None = None

    def stops(self, error: Exception, asked: int | None = None) -> None:
        """Take note of why it cannot be planned, or computed up to the epoch `asked`.

        That an input has no row yet is no error.
        """
        first = isinstance(error, PenstockError) and (
            "first_row" in error.fields or waits_for_input(error)
        )
        said = error_of(error)
        self.first_row, self.error = (f"{FIRST_ROW}{said}", None) if first else (None, said)
        self.asked = self.asked if asked is None else asked

    def rests(self, epoch: int) -> bool:
        """Say whether it waits for rows to come behind an epoch: time alone changes nothing.

        An input that has no row at an epoch gets none of that any more.
        """
        counts = self.trigger is not None and "every " not in self.trigger
        return counts or (self.first_row is not None and self.asked >= epoch)

    def told_to_readers(self, up_to: int) -> tuple[str | None, str | None]:
        """Say why who reads it waits: for the first row that it lacks itself, or as an error."""
        if self.first_row is not None and self.asked >= up_to:
            said = self.first_row.removeprefix(FIRST_ROW)
            return f"{FIRST_ROW}of the projection {self.name}: {said}", None
        why = self.error or f"it has not run yet | fix: penstock projection status {self.name}"
        return None, f"waits for the projection {self.name}: {why}"

    def document(self) -> dict[str, object]:
        """Return what the pipeline says of it."""
        return {
            "epoch": self.noted,
            "error": self.error,
            "run_ms": self.last_ms,
            "waits": self.first_row or self.waits,
            "trigger": self.trigger,
            "first_row": self.first_row,
            "asked": self.asked,
            "state_bytes": self.state_bytes,
        }


def error_of(error: Exception) -> str:
    """Say what a projection's error is, with what to do where that is known."""
    if isinstance(error, PenstockError):
        return f"{error.message}{FIX}{error.remedy}"
    return f"{type(error).__name__}: {without_stack(error)[:500]}"


def final_rows_wait(run: Run) -> str:
    """Say of final rows up to which moment they were given out, and how many wait."""
    ended = run.ended_us
    if ended is None:
        return "final rows wait: not every input has brought a row yet"
    try:
        until = (UNIX_EPOCH + timedelta(microseconds=ended)).isoformat()
    except OverflowError:
        # A time at the edge of the calendar, less the lateness.
        until = "the year 1" if ended < 0 else "the year 9999"
    rows = "" if run.waiting is None else f", {run.waiting} wait"
    return f"final rows are out up to {until}{rows}"


def held_documents(derived: DerivedTables) -> dict[str, dict[str, object]]:
    """Return the derived tables that stand still, as health and status show them."""
    return {
        name: {
            "from_epoch": hold.from_epoch,
            "reason": hold.reason,
            "diff": list(hold.diff),
            "command": retry_command(name, hold),
            "lasting": name not in derived.passing,
        }
        for name, hold in derived.at_last().held.items()
    }
