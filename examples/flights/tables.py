"""Reads the demo's tables as any Delta reader would, and waits until they have caught up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from examples.flights.narration import Narration
from kernel.errors import Unavailable
from lake.datasets import dataset_of
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """The first epoch seen that has a position, and the event store that it belongs to."""

    epoch: int
    store: str


def rows_of(lake: Lake, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table by kind and name, as `projection/flight_status`, at its newest version."""
    dataset = dataset_of(DeltaTable(lake.path(name)))
    return dataset.to_table(columns=list(columns) if columns else None)


def until_caught_up(
    lake: Lake,
    position: int,
    narration: Narration,
    *,
    projections: Sequence[str] = (),
    deadline_s: float,
) -> Caught:
    """Wait until the log has every event up to `position`, and the projections have taken them in.

    Raises `Unavailable` that names who is behind when time is up.
    """
    manifest = Manifest(lake, Tables())
    limit = time.monotonic() + deadline_s
    caught: Caught | None = None
    while True:
        if caught is None:
            caught = _reached(manifest.last(), position)
        behind = [f"the log is not at position {position:,} yet"]
        if caught is not None:
            behind = _behind(manifest, caught.epoch, projections)
            if not behind:
                return caught
        narration.progress(f"waiting: {', '.join(behind)}")
        if time.monotonic() > limit:
            raise Unavailable(
                f"not caught up within {deadline_s:.0f} s: {', '.join(behind)}",
                remedy="See what it waits for: penstock status, penstock logs pipeline",
            )
        time.sleep(_POLL_S)


def _reached(last: Committed | None, position: int) -> Caught | None:
    if last is None or not last.heads:
        return None
    ((store, head),) = last.heads.items()
    return Caught(epoch=last.epoch, store=store) if head >= position else None


def _behind(manifest: Manifest, epoch: int, projections: Sequence[str]) -> list[str]:
    done: dict[str, int] = {}
    for name, run in manifest.projected().items():
        # Named `projection/<name>/g<generation>`.
        short = name.split("/")[1] if "/" in name else name
        done[short] = max(done.get(short, 0), run.epoch)
    return [
        f"{name} is at epoch {done.get(name, 0)} of {epoch}"
        for name in projections
        if done.get(name, 0) < epoch
    ]
