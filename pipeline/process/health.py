"""Parts of what the pipeline says of itself (`/health/ready`)."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.commit.manifest import first_progress
from pipeline.commit.manifest_rows import Committed
from pipeline.ddl.held_tables import hold_document

STANDBY = "standby"
"""Another pipeline writes the lake, and this one takes over when that one ends."""
_READY = ("running", "waiting", "paused", STANDBY)


@dataclass(slots=True)
class PartState:
    """State of one thread: running, waiting, paused, standby, failed; and why."""

    state: str = "starting"
    reason: str | None = None

    @property
    def ready(self) -> bool:
        """Say whether nothing is wrong with it."""
        return self.state in _READY

    def shown(
        self, still: dict[str, str], *loops: str, step: str | None = None
    ) -> dict[str, str | None]:
        """Return it for the health. `still`: which loops the watchdog says stand still, and why;
        those of this part are taken out. `step` is where a part is that has not got to run yet.
        """
        why = [still.pop(loop) for loop in loops if loop in still]
        if why:
            return {"state": "stalled", "reason": why[0]}
        if self.state == "starting" and self.reason is None:
            return {"state": self.state, "reason": step}
        return {"state": self.state, "reason": self.reason}


def waiting_in(last: Committed | None) -> tuple[dict[str, dict[str, object]], dict[str, int]]:
    """Return the tables that stand still, with cause and command, and what is in quarantine."""
    progress = first_progress(last)
    held = {
        f"{source}.{table}": hold_document(source, table, hold)
        for source, tables in progress.held.items()
        for table, hold in tables.items()
    }
    return held, {topic: waits.records for topic, waits in progress.quarantine.items()}
