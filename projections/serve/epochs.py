"""Committed epochs for pages about them: the rows of `Manifest`, read without what loads slowly.

They lack `progress`, which the pipeline alone reads.
"""

from __future__ import annotations

from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.rows import SmallTables
from pipeline.commit.manifest_rows import Committed, committed_of

_LAST = "SELECT max(epoch) AS epoch FROM rows WHERE kind = 'committed'"
_COMMITTED = "SELECT * EXCLUDE (progress) FROM rows WHERE kind = 'committed'"
"""What the pipeline alone reads may be large. Old manifests lack the newer columns."""


def last_epoch(lake: Lake, tables: SmallTables) -> Epoch | None:
    """Return the number of the newest committed epoch; None before the first."""
    rows = tables.select(lake.epochs, _LAST)
    last = rows[0]["epoch"] if rows else None
    return None if last is None else Epoch(int(str(last)))


def newest_epochs(lake: Lake, *, limit: int, before: int | None = None) -> list[Committed]:
    """Return committed epochs, newest first, at most so many; `before`: only smaller ones."""
    tables = SmallTables()
    last = last_epoch(lake, tables)
    if last is None:
        return []
    up_to = last if before is None else min(last, before - 1)
    # Bounds let the reader pass over the files of all other epochs.
    of_these = f"{_COMMITTED} AND epoch > {up_to - limit} AND epoch <= {up_to}"
    return [
        committed_of(row) for row in tables.select(lake.epochs, f"{of_these} ORDER BY epoch DESC")
    ]


def epoch_at(lake: Lake, epoch: int) -> Committed:
    """Return one committed epoch. Raises `NotFound`."""
    found = SmallTables().select(lake.epochs, f"{_COMMITTED} AND epoch = {epoch}")
    if not found:
        raise NotFound(f"epoch {epoch} is not committed", remedy="penstock epoch list")
    return committed_of(found[0])
