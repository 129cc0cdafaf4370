"""How old an event is when it can be read, for events posted at a steady pace.

From `recorded_at`, the moment of the commit in PostgreSQL, to the commit of the first epoch (or run
of a projection) that has it. Both clocks are this machine's.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.datasets import dataset_of
from lake.layout import Lake, events_log

_READ = ["epoch", "kind", "name", "at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Quantiles in seconds over `events` events."""

    name: str
    events: int
    p50_s: float
    p95_s: float

    def describe(self) -> str:
        """Say it in one line."""
        return f"{self.name}: p50 {self.p50_s:.2f} s, p95 {self.p95_s:.2f} s"


def measure(
    lake: Lake, store: str, *, after: int, up_to: int, projections: Sequence[str]
) -> list[Freshness]:
    """Measure the log and each projection over the events at positions (after, up_to]."""
    manifest = dataset_of(DeltaTable(lake.epochs)).to_table(columns=_READ)
    log = dataset_of(DeltaTable(lake.path(events_log(store))))
    wanted = (pc.field("position") > after) & (pc.field("position") <= up_to)
    events = log.to_table(columns=["epoch", "recorded_at"], filter=wanted).to_pylist()
    runs: dict[str, list[tuple[int, datetime]]] = {name: [] for name in ("log", *projections)}
    for row in manifest.to_pylist():
        if row["kind"] == "committed":
            runs["log"].append((row["epoch"], row["at"]))
        elif row["kind"] == "projection":
            # Named `projection/<name>/g<generation>`.
            name = row["name"].split("/")[1] if "/" in row["name"] else row["name"]
            if name in runs:
                runs[name].append((row["epoch"], row["at"]))
    return [
        _quantiles(name, [(e["epoch"], e["recorded_at"]) for e in events], sorted(taken))
        for name, taken in runs.items()
        if taken and events
    ]


def _quantiles(
    name: str, events: list[tuple[int, datetime]], runs: list[tuple[int, datetime]]
) -> Freshness:
    epochs = [epoch for epoch, _ in runs]
    ages = sorted(
        (runs[place][1] - recorded).total_seconds()
        for epoch, recorded in events
        if (place := bisect.bisect_left(epochs, epoch)) < len(runs)
    )
    return Freshness(
        name=name, events=len(ages), p50_s=quantile(ages, 0.5), p95_s=quantile(ages, 0.95)
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all are at or below; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]
