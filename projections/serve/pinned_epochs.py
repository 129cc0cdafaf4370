"""Tables of one query, all as of one epoch: from the lake as it is kept, or from a savepoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import dataset_of, missing_file
from lake.layers import EPOCH, beyond, tail_name
from lake.layout import Lake
from lake.savepoints import SavepointBook
from lake.storage import Stored, version_at
from lake.tables import RENEWED_AFTER, Tables, standing
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """A table at a version, and the commit of that, by which one sees a table made anew.

    `since` is the version that its handle was opened at.
    """

    table: DeltaTable
    since: int
    version: DeltaVersion
    commit: Stored | None
    rows: ds.Dataset


class PinnedTables:
    """Opens tables as of epochs, for who asks again and again: only what came is read.

    The manifest and the catalog are followed commit by commit, and a table that is asked for again
    is brought to its version from the one before. Safe for use from several threads.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._versions: EpochVersions | None = None
        self._opened: dict[str, _Opened] = {}
        self._lock = threading.Lock()

    def at(self, names: Sequence[str], epoch: Epoch | None, at: datetime | None) -> Pinned:
        """Choose the epoch and open each table at it. Raises `NotFound`, naming the table.

        What was committed before the call is seen by it.
        """
        with self._lock:
            try:
                return self._at(names, epoch, at)
            except Exception:
                # A look may have ended in its middle; the next one begins with nothing.
                self._versions, self._opened = None, {}
                raise

    def _at(self, names: Sequence[str], epoch: Epoch | None, at: datetime | None) -> Pinned:
        places = None if all(map(_is_unversioned, names)) else self._looked()
        chosen, versions, tails = versions_at(
            self._lake, names, epoch, at, places=places, is_kept=self._is_kept
        )
        over = {
            name: beyond(
                self._open(tail, tails[tail]).rows.to_table(),
                self._open(name, versions[name]).table,
                name,
            )
            for name in names
            if (tail := tail_name(name)) in tails
        }
        frames = {name: self._open(name, versions[name]).rows for name in names}
        return Pinned(epoch=chosen, versions=versions, frames=frames, tails=over)

    def exists(self, name: str) -> bool:
        """Say whether there is a table of that name; of one that was opened before without a look.

        Where its files are gone since, whoever reads them is told.
        """
        return name in self._opened or DeltaTable.is_deltatable(self._lake.path(name))

    def _looked(self) -> EpochVersions:
        if self._versions is None:
            self._versions = EpochVersions(self._lake, Tables())
        elif self._versions.look():
            self._opened.clear()
        return self._versions

    def _is_kept(self, name: str, version: DeltaVersion) -> bool:
        """Say whether a table was opened at a version, and has all of its files since."""
        known = self._opened.get(name)
        return (
            known is not None
            and known.version == version
            and version_at(self._lake.path(name), version) == known.commit
            and missing_file(known.rows) is None
        )

    def _open(self, name: str, version: DeltaVersion | None) -> _Opened:
        """Return a table at a version; None: at its newest. Raises `NotFound`."""
        path, before = self._lake.path(name), self._opened.pop(name, None)
        same = before is not None and version_at(path, before.version) == before.commit
        if before is not None and same and version == before.version:
            self._opened[name] = before
            return before
        table = _brought(before, version) if before is not None and same else None
        known = before if table is not None else None
        table = table or opened(path, name, version)
        at = DeltaVersion(table.version())
        found = _Opened(
            table=table,
            since=int(at) if known is None else known.since,
            version=at,
            commit=version_at(path, at),
            rows=dataset_of(table),
        )
        if version is not None:
            self._opened[name] = found
        return found


def _brought(before: _Opened, version: DeltaVersion | None) -> DeltaTable | None:
    """Bring a table forward to a version; None where it has to be opened anew.

    So it has behind some commits: with each, deltalake goes through all that its handle has seen.
    """
    if version is None or not before.version <= version <= before.since + RENEWED_AFTER:
        return None
    try:
        before.table.load_as_version(int(version))
    except DeltaError:
        return None  # What it would go on from was cleaned away.
    return before.table


def _is_unversioned(name: str) -> bool:
    return name.startswith(UNVERSIONED)


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
    lake: Lake,
    names: Sequence[str],
    epoch: Epoch | None,
    at: datetime | None,
    *,
    places: EpochVersions | None = None,
    is_kept: Callable[[str, DeltaVersion], bool] = lambda *_: False,
) -> tuple[Epoch | None, dict[str, DeltaVersion | None], dict[str, DeltaVersion]]:
    """Choose the epoch; return it, each table's version, and those of the tails over tables.

    `places` knows them; without it all notes of the manifest are read. `is_kept`: a table need not
    be opened to know that its version is there.
    """
    pinned = [name for name in names if not _is_unversioned(name)]
    if not pinned:
        manifest = Manifest(lake, Tables())
        if epoch is not None:
            manifest.at(epoch)  # Raises `NotFound` for one that is not committed.
        if at is not None:
            manifest.committed_by(at)  # As for a time that has none.
        return None, dict.fromkeys(names), {}
    versions = places or EpochVersions(lake, Tables())
    if epoch is None:
        newest = versions.newest(at=at)
        if newest is None:
            raise NotFound("no epoch was committed yet", remedy="penstock wait --caught-up")
        epoch = versions.common(pinned, up_to=newest)
    found = {
        name: version
        if version is None or is_kept(name, version)
        else _standing(lake, name, version, epoch)
        for name, version in versions.at(names, epoch).items()
    }
    present = versions.present(
        [tail_name(name) for name in pinned if name.startswith(_CURRENT)], epoch
    )
    tails = {
        name: version if is_kept(name, version) else _kept(lake, name, version, epoch)
        for name, version in present.items()
    }
    return epoch, found, tails


def _rows(lake: Lake, name: str, version: DeltaVersion | None) -> ds.Dataset:
    return dataset_of(opened(lake.path(name), name, version))


def _standing(lake: Lake, name: str, version: DeltaVersion, epoch: Epoch) -> DeltaVersion:
    """Return the version; where it is gone, the newest if that stands at the epoch."""
    if not name.startswith(_BY_EPOCHS):
        return version
    return _kept(lake, name, version, epoch)


def _kept(lake: Lake, name: str, version: DeltaVersion, epoch: Epoch) -> DeltaVersion:
    found = standing(lake.path(name), name, version, epoch)
    if found is None:
        raise not_kept(name, version)
    return DeltaVersion(found)
