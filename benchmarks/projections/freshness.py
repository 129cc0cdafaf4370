"""When each event became visible in each projection, read off the lake afterwards.

The moment of a commit is the time of its file in the table's `_delta_log`. By name a projection has
an event once the manifest notes an epoch that covers it, by path once the table's commit does. An
event's own moment is that of its append, as PostgreSQL says. Both clocks are this machine's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.cdc.visibility import commits_of, quantile
from lake.datasets import dataset_of
from lake.layout import Lake, events_log
from pipeline.commit.manifest_rows import PROJECTION

SHARES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))


def freshness(
    lake: Lake, store: str, apps: Mapping[str, str], *, began: float, ended: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return quantiles in milliseconds over events x projections, and each one's p95 by name.

    `apps` are the app ids of the projections' generations, by name.
    `log`: append to the log's commit; `name` and `path`: from there to the projection; `source`:
    append to the projection by name. `not_seen` counts events that a projection does not have.
    """
    log = events_log(store)
    rows = dataset_of(DeltaTable(lake.path(log))).to_table(columns=["epoch", "recorded_at"])
    moments = rows["recorded_at"].cast(pa.int64())
    within = pc.and_(
        pc.greater_equal(moments, round(began * 1e6)), pc.less_equal(moments, round(ended * 1e6))
    )
    rows = rows.filter(within)
    appended = [at / 1e6 for at in rows["recorded_at"].cast(pa.int64()).to_pylist()]
    epochs = rows["epoch"].to_pylist()
    logged = commits_of(lake, log, log)
    ages: dict[str, list[float]] = {"log": [], "name": [], "path": [], "source": []}
    own: dict[str, float] = {}
    not_seen = 0
    for name, app in apps.items():
        noted = commits_of(lake, "epochs", f"epochs/{app}")
        written = commits_of(lake, f"projection/{name}", app)
        here: list[float] = []
        for at, epoch in zip(appended, epochs, strict=True):
            in_log, by_name = logged.since(epoch), noted.since(epoch)
            if in_log is None or by_name is None:
                not_seen += 1
                continue
            here.append(by_name - in_log)
            ages["source"].append(by_name - at)
            ages["path"].append((written.since(epoch) or by_name) - in_log)
        ages["name"] += here
        own[name] = quantile(sorted(here), 0.95) * 1000
    ages["log"] = [
        in_log - at
        for at, epoch in zip(appended, epochs, strict=True)
        if (in_log := logged.since(epoch)) is not None
    ]
    figures = {"events": float(len(epochs)), "not_seen": float(not_seen)}
    for what, values in ages.items():
        values.sort()
        for share, title in SHARES:
            figures[f"{what}_{title}_ms"] = quantile(values, share) * 1000
    return figures, own


def rounds(lake: Lake, apps: Collection[str], *, began: float, ended: float) -> dict[str, float]:
    """Return how many runs of a projection there were, and the median milliseconds of one."""
    found = dataset_of(DeltaTable(lake.epochs)).to_table(
        columns=["name", "timings_ms", "at"], filter=pc.field("kind") == PROJECTION
    )
    taken = [
        _run_ms(row["timings_ms"])
        for row in found.to_pylist()
        if row["name"] in apps and began <= row["at"].timestamp() <= ended
    ]
    return {
        "runs_per_projection": len(taken) / max(1, len(apps)),
        "run_p50_ms": quantile(sorted(taken), 0.5),
        "run_p95_ms": quantile(sorted(taken), 0.95),
    }


def _run_ms(text: str) -> float:
    return float(json.loads(text).get("run", 0.0))
