"""Which version of a table belongs to which epoch, as the manifest tells.

Logs and `current` tables have every committed epoch. Typed and history tables, and each
projection, have those up to which they were brought; what arrives meanwhile they take in together.
A projection's epochs before a swap are those of the generation that readers saw then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound, Unavailable
from kernel.positions import DeltaVersion, Epoch
from lake.layout import SINGLE, Lake
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


class EpochVersions:
    """Finds the epoch that several tables have in common, and their versions at it."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables
        self._manifest = Manifest(lake, tables)
        self._generations: dict[tuple[str, int], int] = {}
        self._derived = self._read_derived()

    def common(self, names: Sequence[str], *, up_to: Epoch) -> Epoch:
        """Return the greatest epoch at or below `up_to` that all tables have.

        Raises `NotFound` naming the table that is behind.
        """
        held = self._held_at(up_to)
        for name in names:
            if name in held:
                # Its rows since then wait in the log.
                up_to = Epoch(min(up_to, held[name].from_epoch - 1))
        own = {
            name: {epoch for epoch in self._derived.get(name, {}) if epoch <= up_to}
            for name in names
            if self._is_derived(name)
        }
        _refuse([self._behind(name, up_to) for name, epochs in own.items() if not epochs])
        if not own:
            return up_to
        epochs = set.intersection(*own.values())
        if not epochs:
            raise NotFound(
                f"{', '.join(sorted(names))} have no epoch in common up to {up_to}",
                remedy="Wait until all have taken in the same: penstock wait --caught-up",
            )
        return Epoch(max(epochs))

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
                version = self._derived.get(name, {}).get(epoch)
                if version is None:
                    lacking.append(self._behind(name, epoch))
                else:
                    found[name] = DeltaVersion(version)
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
        return self._generations[name, epoch]

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
        epochs = sorted(self._derived.get(name, {}))
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

    def _read_derived(self) -> dict[str, dict[int, int]]:
        catalog = DeployedCatalog(self._lake, self._tables)
        published = {f"projection/{name}": own for name, own in catalog.published().items()}
        rows = self._read(["epoch", "name", "tables", "at"], pc.field("kind") == PROJECTION)
        runs = []
        for row in rows.to_pylist():
            generation = _GENERATION.fullmatch(row["name"])
            number = int(generation["number"]) if generation else 0
            if generation and number not in published.get(generation["name"], [number]):
                continue  # built beside the live one, or taken back
            runs.append((number, *noted_at(row), json.loads(row["tables"])))
        found: dict[str, dict[int, int]] = {}
        # Of two generations at one epoch the later one is what readers see, of two notes of one
        # generation too: the rows of an epoch change with those of a projection that it reads.
        for number, epoch, _, tables in sorted(runs, key=lambda run: run[:3]):
            for name, (version, _) in tables.items():
                found.setdefault(name, {})[epoch] = version
                self._generations[name, epoch] = number
        return found

    def _read(self, columns: list[str], where: pc.Expression) -> pa.Table:
        rows = self._tables.read(self._lake.epochs, where=where, columns=columns)
        if rows is None:
            raise NotFound(f"nothing was ingested into {self._lake.root} yet", remedy="penstock up")
        return rows

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
