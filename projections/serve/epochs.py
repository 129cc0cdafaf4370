"""Committed epochs for pages about them.

It reads the same rows as `Manifest`, without what loads slowly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from kernel.errors import NotFound
from kernel.positions import Epoch, Offsets, TopicId
from lake.layout import Lake
from lake.rows import SmallTables

_LAST = "SELECT max(epoch) AS epoch FROM rows WHERE kind = 'committed'"
_COMMITTED = "SELECT * EXCLUDE (progress) FROM rows WHERE kind = 'committed'"
"""What the pipeline alone reads may be large. Old manifests lack the newer columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """A table's Delta version, and the epoch up to which it has taken input."""

    version: int
    as_of_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPage:
    """A committed epoch, field by field as the manifest's `Committed` has it."""

    epoch: Epoch
    run_id: str
    batch_id: int
    end: Offsets
    heads: Mapping[str, int]
    cuts: Mapping[str, int]
    pending_from: Mapping[str, int]
    tables: Mapping[str, TablePlace]
    counts: Mapping[str, int]
    timings_ms: Mapping[str, float]
    at: datetime
    installs: tuple[int, ...]
    topics: Mapping[str, TopicId]


def last_epoch(lake: Lake, tables: SmallTables) -> Epoch | None:
    """Return the number of the newest committed epoch; None before the first."""
    rows = tables.select(lake.epochs, _LAST)
    last = rows[0]["epoch"] if rows else None
    return None if last is None else Epoch(int(str(last)))


def newest_epochs(lake: Lake, *, limit: int, before: int | None = None) -> list[EpochPage]:
    """Return committed epochs, newest first, at most so many; `before`: only smaller ones."""
    tables = SmallTables()
    last = last_epoch(lake, tables)
    if last is None:
        return []
    up_to = last if before is None else min(last, before - 1)
    # Bounds let the reader pass over the files of all other epochs.
    of_these = f"{_COMMITTED} AND epoch > {up_to - limit} AND epoch <= {up_to}"
    return [_page(row) for row in tables.select(lake.epochs, f"{of_these} ORDER BY epoch DESC")]


def epoch_at(lake: Lake, epoch: int) -> EpochPage:
    """Return one committed epoch. Raises `NotFound`."""
    found = SmallTables().select(lake.epochs, f"{_COMMITTED} AND epoch = {epoch}")
    if not found:
        raise NotFound(f"epoch {epoch} is not committed", remedy="penstock epoch list")
    return _page(found[0])


def _page(row: Mapping[str, object]) -> EpochPage:
    at = row["at"]
    assert isinstance(at, datetime)
    tables = json.loads(str(row["tables"]))
    return EpochPage(
        epoch=Epoch(int(str(row["epoch"]))),
        run_id=str(row["run_id"]),
        batch_id=int(str(row["batch_id"])),
        end=json.loads(str(row["end_offsets"])),
        heads=json.loads(str(row["heads"])),
        cuts=json.loads(str(row["cuts"])),
        pending_from=json.loads(str(row["pending_from"])),
        tables={name: TablePlace(version=v, as_of_epoch=e) for name, (v, e) in tables.items()},
        counts=json.loads(str(row["counts"])),
        timings_ms=json.loads(str(row["timings_ms"])),
        at=at,
        installs=tuple(json.loads(str(row.get("installs") or "[]"))),
        topics={
            name: TopicId(*topic)
            for name, topic in json.loads(str(row.get("topics") or "{}")).items()
        },
    )
