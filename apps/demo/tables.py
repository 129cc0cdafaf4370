"""Reads the demo's tables as any Delta reader would, and waits until they have caught up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from apps.demo.narration import Narration
from kernel.errors import Unavailable
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.manifest import Committed, Manifest

_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """The first epoch seen that has a position, and the event store that it belongs to."""

    epoch: int
    store: str


def rows_of(lake: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table by kind and name, as `projection/flight_status`, at its newest version."""
    dataset = DeltaTable(str(lake / name)).to_pyarrow_dataset()
    return dataset.to_table(columns=list(columns) if columns else None)


def until_caught_up(
    lake: Path,
    position: int,
    narration: Narration,
    *,
    projections: Sequence[str] = (),
    deadline_s: float,
) -> Caught:
    """Wait until the log has every event up to `position`, and the projections have taken them in.

    Raises `Unavailable` that names who is behind when time is up.
    """
    manifest = Manifest(Lake.at(lake), Tables())
    limit = time.monotonic() + deadline_s
    while True:
        last = manifest.last()
        head = max(last.heads.values(), default=0) if last else 0
        if last is not None and last.heads and head >= position:
            behind = _behind(manifest, last, projections)
            if not behind:
                return Caught(epoch=last.epoch, store=_store(last))
        else:
            behind = [f"the log, at position {head:,} of {position:,}"]
        narration.progress(f"behind: {', '.join(behind)}")
        if time.monotonic() > limit:
            raise Unavailable(
                f"not caught up within {deadline_s:.0f} s: {', '.join(behind)}",
                remedy="See what it waits for: penstock status, penstock logs pipeline",
            )
        time.sleep(_POLL_S)


def _behind(manifest: Manifest, last: Committed, projections: Sequence[str]) -> list[str]:
    done: dict[str, int] = {}
    for name, run in manifest.projected().items():
        # Named `projection/<name>/g<generation>`.
        short = name.split("/")[1] if "/" in name else name
        done[short] = max(done.get(short, 0), run.epoch)
    return [
        f"{name}, at epoch {done.get(name, 0)} of {last.epoch}"
        for name in projections
        if done.get(name, 0) < last.epoch
    ]


def _store(last: Committed) -> str:
    (store,) = last.heads
    return store
