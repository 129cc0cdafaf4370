"""What is known of projections while a pipeline keeps them: their last runs, and how they stand."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from kernel.clock import UNIX_EPOCH
from lake.tables import TableAt
from pipeline.ddl.held_tables import retry_command
from projections.run.derived_tables import DerivedTables


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
    final rows, and `trigger` is what it waits for at the epoch `asked` before it runs. `slow` says
    that its last run kept others waiting. `takes_s` is how long it takes until a due run can be
    seen; one that began and cannot be seen yet `waits_since` then.
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
    asked: int = 0
    slow: bool = False
    state_bytes: int | None = None

    def document(self) -> dict[str, object]:
        """Return what the pipeline says of it."""
        return {
            "epoch": self.noted,
            "error": self.error,
            "run_ms": self.last_ms,
            "waits": self.waits,
            "trigger": self.trigger,
            "asked": self.asked,
            "state_bytes": self.state_bytes,
        }


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
