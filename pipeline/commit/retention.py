"""How long the manifest remembers epochs, and which derived tables it knows.

A row of the manifest is some kilobytes, with hundreds of tables some hundred. Epochs that are older
than the retention, or beyond what the manifest may take on the disk, are forgotten: nobody reads
tables as of them any more, since the versions that they name go at the same age or earlier.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from kernel.positions import Epoch
from lake import storage
from lake.file_actions import actions_of
from lake.guarded_commits import mark_of
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import COMMITTED, TYPED

MOST_BYTES = 256 * 2**20
"""Of the manifest's files. Epochs of the last hour stay, whatever they take."""
_YOUNG = timedelta(hours=1)


def derived_names(lake: Lake) -> set[str]:
    """Name the derived tables that the manifest knows. Reads it anew, with handles of its own.

    Without generations that were swapped in: their files are those of the table above.
    """
    tables = Tables()
    runs = Manifest(lake, tables).projected().values()
    names = {name for run in runs for name in run.tables}
    return {name for name in names if not _swapped_in(lake, tables, name)} | corrections_of(lake)


def _swapped_in(lake: Lake, tables: Tables, name: str) -> bool:
    """Say whether a generation has become the table that it lies beneath.

    Whoever brings it forward after that, as an operator who swaps it at the same moment, takes out
    of its own log files that the table has.
    """
    above, beneath, generation = name.partition("/_gen/")
    try:
        table = tables.open(lake.path(above)) if beneath else None
    except (DeltaError, OSError):
        return True  # Nobody knows: files of it stay.
    return table is not None and mark_of(table, f"{above}/g{generation}") is not None


def corrections_of(lake: Lake) -> set[str]:
    """Name the tables of corrections that a lake has."""
    return {f"corrections/{each}" for each in storage.folders_in(f"{lake.root}/corrections")}


def forget_old(lake: Lake, *, retention: timedelta) -> int:
    """Remove epochs and corrections that are too old; return how many rows."""
    return forget_epochs(lake, retention=retention) + forget_corrections(lake, retention=retention)


def forget_corrections(lake: Lake, *, retention: timedelta, now: datetime | None = None) -> int:
    """Remove corrections that are older than the retention; return how many."""
    tables, removed = Tables(), 0
    moment = ((now or datetime.now(UTC)) - retention).isoformat()
    for name in sorted(corrections_of(lake)):
        table = tables.open(lake.path(name))
        try:
            found = {} if table is None else table.delete(f"at < '{moment}'")
        except CommitFailedError:
            continue  # One was written meanwhile; there is a next time.
        removed += int(found.get("num_deleted_rows") or 0)
    return removed


def forget_epochs(
    lake: Lake,
    *,
    retention: timedelta,
    most_bytes: int = MOST_BYTES,
    now: datetime | None = None,
) -> int:
    """Remove the manifest's rows of epochs that are too old or too many; return how many rows.

    What a derived table has still to read stays, and so does the last epoch of each.
    """
    tables = Tables()
    manifest = Manifest(lake, tables)
    table, last = tables.open(lake.epochs), manifest.last()
    if table is None or last is None:
        return 0
    now = now or datetime.now(UTC)
    done = tables.read(lake.epochs, where=pc.field("kind") == COMMITTED, columns=["epoch", "at"])
    assert done is not None, "there is a manifest"
    by_size = min(_beyond(table, most_bytes), _before(done, now - min(_YOUNG, retention)))
    runs = manifest.projected()
    typed = runs.get(TYPED)
    needed = [last.epoch, *([] if typed is None else [typed.epoch])]
    # A table that is held is brought from where it stands, epoch by epoch.
    needed += [] if typed is None else [Epoch(h.from_epoch - 1) for h in typed.held.values()]
    end = min(max(by_size, _before(done, now - retention)), *(each - 1 for each in needed))
    kept = sorted({run.epoch for run in runs.values() if run.epoch <= end})
    others = f" AND epoch NOT IN ({', '.join(map(str, kept))})" if kept else ""
    if end < 1 or (pc.min(done["epoch"]).as_py() or 0) > end:
        return 0
    try:
        found = table.delete(f"epoch <= {end}{others}")
    except CommitFailedError:
        return 0  # An epoch was committed meanwhile; there is a next time.
    return int(found["num_deleted_rows"] or 0)


def _before(done: pa.Table, moment: datetime) -> int:
    """Return the last epoch that was committed before a moment; 0 for none."""
    old = done.filter(pc.less(done["at"], pa.scalar(moment, done.schema.field("at").type)))
    return int(pc.max(old["epoch"]).as_py() or 0)


def _beyond(table: DeltaTable, most_bytes: int) -> int:
    """Return the last epoch of the oldest files, without which the others fit; 0 if all fit."""
    actions = actions_of(table).select(["size_bytes", "max.epoch"])
    left = most_bytes
    for file in actions.sort_by([("max.epoch", "descending")]).to_pylist():
        left -= file["size_bytes"]
        if left < 0:
            return int(file["max.epoch"])
    return 0
