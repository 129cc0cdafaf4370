"""Keeps what transactions are pending out of the manifest's rows, where they are many.

A cut that stands still has ever more transactions behind it. A few of them stand in the row of each
epoch; more go to `log/_pending`, and the row names the epoch from which on that table has them. An
epoch adds there what changed since the one before, so that what it writes depends on what came, and
not on how long the cut has stood still.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from kernel import failpoints
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest_rows import Committed
from pipeline.position.progress import Progress

PENDING = "log/_pending"
MOST_IN_ROW = 64
"""So many transactions of a source stand in the manifest's row."""
_ANEW = 1_000
"""With so many superseded rows, and four times as many as pending ones, all is written anew."""
_LISTS = ("ends", "seen", "begun", "restarted")
_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("source", pa.string()),
        ("item", pa.string()),
        ("value", pa.string()),
    ]
)
"""`item` is a kind and a transaction; `value`, its JSON, is null when it is pending no more."""

Items = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What the table has of one source: its rows since an epoch, and what they come to."""

    since: int
    items: Items
    rows: int


class PendingTransactions:
    """Keeps and restores the pending transactions of one lake. Ingest is its only user."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._path = lake.path(PENDING)
        self._tables = tables
        self._kept: dict[str, _Kept] = {}
        self._stale: dict[str, int] = {}

    def resume(self, last: Committed | None) -> Progress:
        """Return what the next epoch starts from."""
        if last is None:
            return Progress()
        kept = json.loads(last.progress)
        for source, cut in kept["cuts"].items():
            if "pending_since" in cut:
                since = cut.pop("pending_since")
                self._kept[source] = self._read(source, since, last.epoch)
                cut |= _lists(self._kept[source].items)
        return Progress.from_json(json.dumps(kept))

    def keep(self, progress: Progress, epoch: Epoch) -> str:
        """Write what is pending as of an epoch; return the text for the manifest's row.

        An epoch that is done again finds its rows there already.
        """
        self._forget()
        kept = json.loads(progress.to_json())
        rows: list[dict[str, object]] = []
        now: dict[str, _Kept] = {}
        for source, cut in kept["cuts"].items():
            if max(len(cut[name]) for name in _LISTS) > MOST_IN_ROW:
                now[source], changed = _next(self._kept.get(source), _items(cut), epoch)
                rows += ({"epoch": epoch, "source": source, **each} for each in changed)
                cut |= _lists({}) | {"pending_since": now[source].since}
        if rows:
            table = pa.Table.from_pylist(rows, schema=_SCHEMA)
            ArrowWriter(self._tables).append(self._path, table, Guard(PENDING, epoch))
            failpoints.hit(failpoints.PENDING_AFTER_APPEND)
        for source, was in self._kept.items():
            if source not in now or now[source].since != was.since:
                self._stale[source] = epoch
        self._kept = now
        return json.dumps(kept, separators=(",", ":"))

    def _forget(self) -> None:
        """Remove rows that the last committed epoch does not need; what is left over does no harm.

        Called when that epoch is there: those before it were needed to finish it after a crash.
        """
        table = self._tables.open(self._path) if self._stale else None
        stale, self._stale = self._stale, {}
        if table is None:
            return
        for source, epoch in stale.items():
            name = source.replace("'", "''")
            try:
                table.delete(f"source = '{name}' AND epoch < {epoch}")
            except (DeltaError, OSError):
                # A compaction came in between. The next time takes these away, too.
                self._tables.forget(self._path)
                return

    def _read(self, source: str, since: int, epoch: Epoch) -> _Kept:
        at = pc.field("epoch")
        where = (pc.field("source") == source) & (at >= since) & (at <= epoch)
        found = self._tables.read(self._path, where=where)
        rows = [] if found is None else found.sort_by("epoch").to_pylist()
        items: dict[str, str | None] = {row["item"]: row["value"] for row in rows}
        pending = {item: value for item, value in items.items() if value is not None}
        return _Kept(since=since, items=pending, rows=len(rows))


def has_many(last: Committed, source: str) -> bool:
    """Say whether so many transactions of a source are pending that its manifest's row has none."""
    return "pending_since" in json.loads(last.progress)["cuts"].get(source, {})


def _next(old: _Kept | None, items: Items, epoch: Epoch) -> tuple[_Kept, list[dict[str, object]]]:
    """Return what is kept of a source from now on, and the rows that say what changed."""
    if old is None or old.rows > 4 * len(items) + _ANEW:
        old = _Kept(since=epoch, items={}, rows=0)
    changed: dict[str, str | None] = {i: v for i, v in items.items() if old.items.get(i) != v}
    changed |= dict.fromkeys(old.items.keys() - items.keys())
    now = _Kept(since=old.since, items=items, rows=old.rows + len(changed))
    return now, [{"item": item, "value": value} for item, value in changed.items()]


def _items(cut: Mapping[str, Any]) -> Items:
    """Take a cut's pending transactions apart, as JSON each."""
    found = {f"ends/{end[0]}": end for end in cut["ends"]}
    found |= {f"seen/{name}": seen for name, seen in cut["seen"].items()}
    found |= {f"begun/{name}": 1 for name in cut["begun"]}
    found |= {f"restarted/{name}": until for name, until in cut["restarted"].items()}
    return {item: json.dumps(value, separators=(",", ":")) for item, value in found.items()}


def _lists(items: Items) -> dict[str, Any]:
    """Put a cut's pending transactions together again."""
    found: dict[str, dict[str, Any]] = {name: {} for name in _LISTS}
    for item, value in items.items():
        kind, _, name = item.partition("/")
        found[kind][name] = json.loads(value)
    return {
        "ends": sorted(found["ends"].values(), key=lambda end: int(end[1])),
        "seen": found["seen"],
        "begun": sorted(found["begun"]),
        "restarted": found["restarted"],
    }
