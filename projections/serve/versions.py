"""Which version of a table belongs to which epoch, as the manifest tells.

Logs and `current` tables have every committed epoch. Typed and history tables, and each
projection, have those up to which they were brought; what arrives meanwhile they take in together.
A projection's epochs before a swap are those of the generation that readers saw then.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound, Unavailable
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import dataset_at, dataset_of, paths_of, scanner_of
from lake.layout import SINGLE, Lake
from lake.storage import Stored, version_at
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import PROJECTION, Committed, noted_at
from pipeline.ddl.held_tables import Hold, held_by_name, hold_line, release_command
from pipeline.position.progress import Progress
from projections.run.catalog import DeployedCatalog

UNVERSIONED = (
    *SINGLE,
    *("quarantine/", "corrections/", "log/_schemas", "log/_pending"),
)
"""Tables (and beginnings of names) that are read as they are now, whatever the epoch."""

_MOST_TOLD = 5
_GENERATION = re.compile(r"(?P<name>projection/.+)/g(?P<number>\d+)")


class _EpochNote(NamedTuple):
    """That a derived table had an epoch: in the order by which one note beats another.

    `generation`: of a projection, of which `of` is the table; 0 of other tables.
    """

    generation: int
    at: datetime
    version: int
    of: str


class EpochVersions:
    """Finds the epoch that several tables have in common, and their versions at it.

    Derived tables are as the last look found them. For one thread at a time.
    """

    def __init__(self, lake: Lake, tables: Tables) -> None:
        """Look for the first time. Raises `NotFound` where nothing was ingested yet."""
        self._lake = lake
        self._tables = tables
        self._begin()
        self.look()

    def _begin(self) -> None:
        self._manifest = Manifest(self._lake, self._tables)
        self._catalog = DeployedCatalog(self._lake, self._tables)
        self._deployed: tuple[int, dict[str, list[int]]] = (-1, {})
        self._seen: tuple[int, Stored | None] = (-1, None)
        self._paths = frozenset[str]()
        self._notes: dict[str, dict[int, tuple[_EpochNote, ...]]] = {}

    def look(self) -> bool:
        """Take in what was committed since the last look; what was read before is not read again.

        Return whether another lake is at the same place by now. Raises as the first look.
        """
        version, commit = self._seen
        anew = version >= 0 and version_at(self._lake.epochs, version) != commit
        if anew:
            self._tables.forget_all()
            self._begin()
        # The catalog first: a swap is noted in the manifest before the catalog tells of it.
        deployed = self._catalog.version()
        if deployed != self._deployed[0]:
            published = self._catalog.published().items()
            self._deployed = deployed, {f"projection/{name}": own for name, own in published}
        table = self._tables.open(self._lake.epochs)
        if table is None:
            raise NotFound(f"nothing was ingested into {self._lake.root} yet", remedy="penstock up")
        if table.version() != self._seen[0]:
            self._read_notes(table)
            version = int(table.version())
            self._seen = version, version_at(self._lake.epochs, version)
        for path in (self._lake.epochs, self._lake.catalog):
            # A handle that has seen many commits goes through all of them behind each further one.
            self._tables.appended(path)
        return anew

    def _read_notes(self, table: DeltaTable) -> None:
        """Read the files that came; all of them where epochs were forgotten, or put together."""
        paths = paths_of(table)
        if self._paths and self._paths <= paths:
            rows = dataset_at(table, paths - self._paths)
        else:
            rows, self._notes = dataset_of(table), {}
            self._manifest = Manifest(self._lake, self._tables)  # It remembers epochs, too.
        self._paths = frozenset()  # Whatever fails below is read anew.
        columns = ["epoch", "name", "tables", "at"]
        found = scanner_of(rows, pc.field("kind") == PROJECTION, columns).to_table()
        for row in found.to_pylist():
            run = _GENERATION.fullmatch(row["name"])
            number, of = (int(run["number"]), sys.intern(run["name"])) if run else (0, "")
            epoch, at = noted_at(row)
            for name, (version, _) in json.loads(row["tables"]).items():
                note = _EpochNote(generation=number, at=at, version=version, of=of)
                own = self._notes.setdefault(name, {})
                own[epoch] = (*own.get(epoch, ()), note)
        self._paths = paths

    def _note(self, name: str, epoch: int) -> _EpochNote | None:
        """Return what readers see of a derived table at an epoch.

        Of two generations that is the later one, of two notes of one generation too: the rows of an
        epoch change with those of a projection that it reads. One that was built beside the live
        one, or was taken back, is none.
        """
        published = self._deployed[1]
        noted = self._notes.get(name, {}).get(epoch, ())
        return max(
            (
                note
                for note in noted
                if not note.of or note.generation in published.get(note.of, (note.generation,))
            ),
            default=None,
        )

    def _epochs(self, name: str) -> list[int]:
        """Return the epochs that a derived table has, ascending."""
        return sorted(epoch for epoch in self._notes.get(name, ()) if self._note(name, epoch))

    def common(self, names: Sequence[str], *, up_to: Epoch) -> Epoch:
        """Return the greatest epoch at or below `up_to` that all tables have.

        Raises `NotFound` naming the table that is behind.
        """
        held = self._held_at(up_to)
        for name in names:
            if name in held:
                # Its rows since then wait in the log.
                up_to = Epoch(min(up_to, held[name].from_epoch - 1))
        own = [name for name in names if self._is_derived(name)]
        if not own:
            return up_to
        for epoch in sorted(self._notes.get(own[0], ()), reverse=True):
            if epoch <= up_to and all(self._note(name, epoch) for name in own):
                return Epoch(epoch)
        lacking = [name for name in own if not any(e <= up_to for e in self._epochs(name))]
        _refuse([self._behind(name, up_to) for name in lacking])
        raise NotFound(
            f"{', '.join(sorted(names))} have no epoch in common up to {up_to}",
            remedy="Wait until all have taken in the same: penstock wait --caught-up",
        )

    def at(self, names: Sequence[str], epoch: Epoch) -> dict[str, DeltaVersion | None]:
        """Return each table's version at an epoch; None for those that are read as they are now.

        Raises `NotFound` naming the tables that do not have the epoch.
        """
        committed = self._manifest.at(epoch)
        held = _held(committed)
        found: dict[str, DeltaVersion | None] = {}
        lacking: list[NotFound] = []
        for name in names:
            if name.startswith(UNVERSIONED):
                found[name] = None
            elif self._is_derived(name):
                note = self._note(name, epoch)
                if note is None:
                    lacking.append(self._behind(name, epoch))
                else:
                    found[name] = DeltaVersion(note.version)
            elif name in held:
                lacking.append(self._stands_still(name, held[name]))
            elif name in committed.tables:
                found[name] = DeltaVersion(committed.tables[name].version)
            else:
                told = f"{name} has no rows at epoch {epoch}"
                lacking.append(NotFound(told, remedy="penstock epoch list", table=name))
        _refuse(lacking)
        return found

    def generation(self, name: str, epoch: Epoch) -> int:
        """Return which generation of a projection's table an epoch's version is of."""
        note = self._note(name, epoch)
        assert note is not None, "its version was asked for"
        return note.generation

    def present(self, names: Sequence[str], epoch: Epoch) -> dict[str, DeltaVersion]:
        """Return the versions of those of the named tables that an epoch has."""
        tables = self._manifest.at(epoch).tables
        return {name: DeltaVersion(tables[name].version) for name in names if name in tables}

    def newest(self, *, at: datetime | None = None) -> Epoch | None:
        """Return the newest committed epoch, or the newest one that was committed by `at`.

        Raises `NotFound` for a time to come, and for one before all epochs that are known.
        """
        if at is not None:
            return self._manifest.committed_by(at)
        last = self._manifest.last()
        return last.epoch if last is not None else None

    def _held_at(self, epoch: Epoch) -> dict[str, Hold]:
        return _held(self._manifest.at(epoch)) if epoch > 0 else {}

    @staticmethod
    def _stands_still(name: str, hold: Hold) -> NotFound:
        source, _, table = name.removeprefix("current/").partition(".")
        return NotFound(
            f"{hold_line(source, table, hold)}: epoch {hold.from_epoch - 1} is its last",
            remedy=f"Release it: {release_command(source, table, hold)}",
            table=name,
        )

    def _behind(self, name: str, epoch: Epoch) -> NotFound:
        epochs = self._epochs(name)
        lower = [e for e in epochs if e < epoch]
        upper = [e for e in epochs if e > epoch]
        remedy = "Take an epoch that it has, or leave --epoch out; to wait: "
        remedy += "penstock wait --caught-up"
        if not epochs:
            reason = f"{name} has not taken in any epoch yet"
        elif not upper:
            reason = f"{name} is behind: it has taken in epoch {epochs[-1]}, not {epoch}"
        elif not lower:
            reason = f"{name} has nothing as of epoch {epoch}: the first that it has is {upper[0]}"
            remedy = "Take that one or a later one, or leave the table out."
        else:
            near = f"{lower[-1]} and {upper[0]}"
            reason = f"{name} took in epoch {epoch} together with others; it has {near}"
        return NotFound(reason, remedy=remedy, table=name)

    @staticmethod
    def _is_derived(name: str) -> bool:
        return name.startswith(("typed/", "history/", "projection/"))


def _refuse(lacking: Sequence[NotFound]) -> None:
    """Raise one error for all tables that lack an epoch: none is found only behind another."""
    if len(lacking) == 1:
        raise lacking[0]
    if lacking:
        told = "; ".join(each.message for each in lacking[:_MOST_TOLD])
        more = f"; and {len(lacking) - _MOST_TOLD} more" if len(lacking) > _MOST_TOLD else ""
        raise NotFound(
            told + more,
            remedy=lacking[0].remedy,
            table=lacking[0].fields["table"],
            tables=[each.fields["table"] for each in lacking],
        )


def not_kept(name: str, version: DeltaVersion | None) -> NotFound:
    """Return the error for a version of a table whose files or log are gone."""
    return NotFound(
        f"version {version} of {name} is not kept any more",
        remedy="Take a later epoch: penstock epoch list. How long versions are kept is"
        " lake.retention_days, of large tables lake.current_retention_bytes.",
        table=name,
    )


def opened(path: str, name: str, version: DeltaVersion | None) -> DeltaTable:
    """Open the table `name` at a version. Raises `NotFound` where that is not kept."""
    try:
        return DeltaTable(path, version=version)
    except DeltaError as error:
        raise not_kept(name, version) from error


@contextmanager
def readable(name: str, version: DeltaVersion | None) -> Iterator[None]:
    """Tell of files that are gone as `NotFound`, of others that cannot be read as `Unavailable`."""
    try:
        yield
    except FileNotFoundError as error:
        raise not_kept(name, version) from error
    except (DeltaError, pa.ArrowException, OSError) as error:
        raise Unavailable(
            f"version {version} of {name} cannot be read: {error}",
            remedy="Read it with another engine to see what is wrong: penstock table history "
            + name,
        ) from error


def _held(committed: Committed) -> dict[str, Hold]:
    """Return the `current` tables that an epoch does not have, by name."""
    return held_by_name(Progress.from_json(committed.progress).held)
