"""Tables of one query, all as of one epoch: from the lake as it is kept, or from a savepoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.errors import NotFound
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import dataset_of
from lake.layers import EPOCH, beyond, tail_name
from lake.layout import Lake
from lake.savepoints import SavepointBook
from lake.tables import Tables, standing
from pipeline.commit.manifest import Manifest
from projections.serve.versions import UNVERSIONED, EpochVersions, not_kept, opened

_CURRENT = "current/"
_BY_EPOCHS = (_CURRENT, "log/")
"""Tables whose commits carry their epoch under the table's own name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """Tables by name, as of `epoch` (None: only tables without epochs are among them).

    `tails`: rows that lie over `current` tables. `versions` None: of a table that is read as it is
    now.
    """

    epoch: Epoch | None
    versions: Mapping[str, DeltaVersion | None]
    frames: Mapping[str, ds.Dataset]
    tails: Mapping[str, pa.Table] = field(default_factory=dict)


def pinned_at(lake: Lake, names: Sequence[str], epoch: Epoch | None, at: datetime | None) -> Pinned:
    """Choose the epoch and open each table at it. Raises `NotFound`, naming the table."""
    chosen, versions, tails = versions_at(lake, names, epoch, at)
    over = {
        name: beyond(
            dataset_of(DeltaTable(lake.path(tail), version=tails[tail])).to_table(),
            DeltaTable(lake.path(name), version=versions[name]),
            name,
        )
        for name in names
        if (tail := tail_name(name)) in tails
    }
    frames = {name: _rows(lake, name, versions[name]) for name in names}
    return Pinned(epoch=chosen, versions=versions, frames=frames, tails=over)


def pinned_by(lake: Lake, names: Sequence[str], savepoint: str) -> Pinned:
    """Open tables as a savepoint has them. Raises `NotFound` for one that it does not have."""
    book = SavepointBook(lake, Tables())
    kept = book.named(savepoint)
    needed = {*names, *(tail_name(name) for name in names if name.startswith(_CURRENT))}
    there = {table.name: table for table in book.tables_of(kept, needed)}
    versions: dict[str, DeltaVersion | None] = {}
    frames, tails = {}, {}
    for name in names:
        if name.startswith(UNVERSIONED):
            versions[name], frames[name] = None, _rows(lake, name, None)
            continue
        if name not in there:
            raise NotFound(
                f"savepoint {savepoint}, epoch {kept.epoch}, does not have {name}",
                remedy="penstock savepoint list",
                table=name,
            )
        table = there[name]
        versions[name], frames[name] = DeltaVersion(table.version), table.rows(lake)
        if (tail := there.get(tail_name(name))) is not None:
            rows = tail.rows(lake).to_table()
            tails[name] = rows.filter(pc.greater(rows[EPOCH], table.done or 0))
    return Pinned(epoch=kept.epoch, versions=versions, frames=frames, tails=tails)


def versions_at(
    lake: Lake, names: Sequence[str], epoch: Epoch | None, at: datetime | None
) -> tuple[Epoch | None, dict[str, DeltaVersion | None], dict[str, DeltaVersion]]:
    """Choose the epoch; return it, each table's version, and those of the tails over tables."""
    pinned = [name for name in names if not name.startswith(UNVERSIONED)]
    if not pinned:
        manifest = Manifest(lake, Tables())
        if epoch is not None:
            manifest.at(epoch)  # Raises `NotFound` for one that is not committed.
        if at is not None:
            manifest.committed_by(at)  # As for a time that has none.
        return None, dict.fromkeys(names), {}
    versions = EpochVersions(lake, Tables())
    if epoch is None:
        newest = versions.newest(at=at)
        if newest is None:
            raise NotFound("no epoch was committed yet", remedy="penstock wait --caught-up")
        epoch = versions.common(pinned, up_to=newest)
    found = {name: _standing(lake, name, v, epoch) for name, v in versions.at(names, epoch).items()}
    present = versions.present(
        [tail_name(name) for name in pinned if name.startswith(_CURRENT)], epoch
    )
    tails = {name: _kept(lake, name, version, epoch) for name, version in present.items()}
    return epoch, found, tails


def _rows(lake: Lake, name: str, version: DeltaVersion | None) -> ds.Dataset:
    return dataset_of(opened(lake.path(name), name, version))


def _standing(
    lake: Lake, name: str, version: DeltaVersion | None, epoch: Epoch
) -> DeltaVersion | None:
    """Return the version; where it is gone, the newest if that stands at the epoch."""
    if version is None or not name.startswith(_BY_EPOCHS):
        return version
    return _kept(lake, name, version, epoch)


def _kept(lake: Lake, name: str, version: DeltaVersion, epoch: Epoch) -> DeltaVersion:
    found = standing(lake.path(name), name, version, epoch)
    if found is None:
        raise not_kept(name, version)
    return DeltaVersion(found)
