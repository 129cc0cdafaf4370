"""How much of the log one step of derived tables takes in."""

from __future__ import annotations

from kernel.positions import Epoch
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed

MAX_ROWS_PER_STEP = 60_000
"""Derived tables are brought forward by at most this many log rows at a time, or by one epoch."""
MAX_EPOCHS_PER_STEP = 2_000


def within_budget(
    manifest: Manifest, after: Epoch, last: Committed, *, most: int = MAX_ROWS_PER_STEP
) -> Committed:
    """Return the epoch up to which one step brings derived tables: at most `last`."""
    rows, chosen = 0, last
    until = Epoch(min(last.epoch, after + MAX_EPOCHS_PER_STEP))
    for number, epoch in enumerate(manifest.between(after, until)):
        rows += sum(epoch.counts.get(kind, 0) for kind in ("events", "changes", "records"))
        # Two epochs that the driver took in one after the other may be too large for it together.
        if number and rows > most:
            break
        chosen = epoch
    return chosen
