"""When each change became visible, read off the lake afterwards: measuring costs nothing.

The moment of a commit is the time of its file in the table's `_delta_log`: from then on whoever
opens the table sees it. A change's own moment is its commit in the source, as PostgreSQL says.
Both clocks are this machine's.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.datasets import dataset_of
from lake.layout import Lake, changes_log
from lake.table_columns import TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.commit.manifest_rows import COMMITTED

_READ = ["epoch", "table", "transaction_id", "lsn", "committed_at", "ingested_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Seconds since 1970 at which epochs became visible in one table, ascending by epoch."""

    epochs: Sequence[int]
    at: Sequence[float]

    def since(self, epoch: int) -> float | None:
        """Return when `epoch` was first covered; None when it is not yet."""
        place = bisect.bisect_left(self.epochs, epoch)
        return self.at[place] if place < len(self.epochs) else None


def commits_of(lake: Lake, name: str, app_id: str) -> Moments:
    """Return when each epoch of a guard was committed to a table."""
    found: list[tuple[int, float]] = []
    for file in sorted(Path(lake.path(name), "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            action = json.loads(line).get("txn")
            if action is not None and action["appId"] == app_id:
                found.append((int(action["version"]), file.stat().st_mtime))
    found.sort()
    return Moments(epochs=[e for e, _ in found], at=[at for _, at in found])


def freshness(
    lake: Lake, source: str, tables: Sequence[str], *, began: float, ended: float
) -> dict[str, float]:
    """Return seconds from the source's commit to the log, to `current` by name and by path.

    Quantiles over the changes that were committed in [began, ended]. `not_seen` counts those that
    are not in `current` by path at all.
    """
    log = changes_log(source)
    rows = Tables().read(lake.path(log), columns=_READ)
    assert rows is not None
    moments = rows["committed_at"].cast(pa.int64())
    within = pc.and_(
        pc.greater_equal(moments, round(began * 1e6)), pc.less_equal(moments, round(ended * 1e6))
    )
    ends = rows.filter(pc.equal(rows["table"], TRANSACTIONS_TABLE))
    end_of = dict(zip(ends["transaction_id"].to_pylist(), ends["lsn"].to_pylist(), strict=True))
    folded, seconds = _folds(lake, source), _seconds(rows, within)
    in_log = commits_of(lake, log, log)
    in_manifest = commits_of(lake, "epochs", "epochs/committed")
    by_path = {
        t: commits_of(lake, f"current/{source}.{t}", f"current/{source}.{t}") for t in tables
    }
    ages: dict[str, list[float]] = {"log": [], "current": [], "path": [], "decoded": []}
    not_seen = 0
    for committed, ingested, epoch, table, transaction in seconds:
        if table not in by_path:
            continue
        fold = folded.since(end_of.get(transaction, 2**62))
        seen = {
            "log": in_log.since(epoch),
            "current": None if fold is None else in_manifest.since(int(fold)),
            "path": None if fold is None else by_path[table].since(int(fold)),
            "decoded": ingested,
        }
        not_seen += seen["path"] is None
        for name, at in seen.items():
            if at is not None:
                ages[name].append(at - committed)
    figures: dict[str, float] = {"changes": float(len(ages["log"])), "not_seen": float(not_seen)}
    for name, values in ages.items():
        values.sort()
        for share, title in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99")):
            figures[f"{name}_{title}_s"] = quantile(values, share)
    return figures


def steps(lake: Lake, *, began: float, ended: float) -> dict[str, float]:
    """Return the median milliseconds of each step of the epochs of a time, and their number."""
    done = dataset_of(DeltaTable(lake.epochs)).to_table(
        columns=["timings_ms", "at", "counts"], filter=pc.field("kind") == COMMITTED
    )
    found: dict[str, list[float]] = {}
    epochs = rows = 0
    for row in done.to_pylist():
        if not began <= row["at"].timestamp() <= ended:
            continue
        epochs += 1
        rows += json.loads(row["counts"]).get("changes", 0)
        for step, milliseconds in json.loads(row["timings_ms"]).items():
            found.setdefault(step, []).append(milliseconds)
    figures = {f"step_{step}_ms": quantile(sorted(v), 0.5) for step, v in found.items()}
    return figures | {"epochs": float(epochs), "changes_per_epoch": rows / max(1, epochs)}


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all are at or below; 0 for none."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _folds(lake: Lake, source: str) -> Moments:
    """Return, per cut, the epoch that reached it first."""
    done = dataset_of(DeltaTable(lake.epochs)).to_table(
        columns=["epoch", "cuts"], filter=pc.field("kind") == COMMITTED
    )
    first: dict[int, int] = {}
    for row in sorted(done.to_pylist(), key=lambda r: int(r["epoch"])):
        cuts: Mapping[str, int] = json.loads(row["cuts"])
        first.setdefault(cuts.get(source, 0), row["epoch"])
    reached = sorted(first.items())
    return Moments(epochs=[cut for cut, _ in reached], at=[float(e) for _, e in reached])


def _seconds(
    rows: pa.Table, within: pa.ChunkedArray
) -> list[tuple[float, float, int, str, str | None]]:
    chosen = rows.filter(within)
    committed = pc.divide(chosen["committed_at"].cast(pa.int64()).cast(pa.float64()), 1e6)
    ingested = pc.divide(chosen["ingested_at"].cast(pa.int64()).cast(pa.float64()), 1e6)
    columns = (committed, ingested, chosen["epoch"], chosen["table"], chosen["transaction_id"])
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
