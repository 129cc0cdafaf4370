"""Which version of each projection readers see now, followed commit by commit.

`EpochVersions` answers for any epoch and reads the whole manifest; this keeps what the newest notes
say and reads no more than the files that were added since, so that it can be asked again and again.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import dataset_at, paths_of
from lake.layout import Lake
from lake.storage import WHOLE_LOOK_S, Stored, version_at
from lake.tables import RENEWED_AFTER, Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import COMMITTED, PROJECTION
from projections.run.catalog import DROPPED, DeployedCatalog, Entry
from projections.run.catalog import PROJECTION as PROJECTION_ENTRY
from projections.serve.feed_places import table_id_of
from projections.sql.statements.parse import parse_script

_RUN = re.compile(r"(?P<table>projection/.+)/g\d+")
_MOST_HEADS = 10_000
_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """What readers of a projection see: its table's version, and the epoch that it belongs to.

    `version` and `epoch` are None before its first run. `lake_id` is another one when the lake is.
    """

    name: str
    generation: int
    status: str
    key: tuple[str, ...]
    epoch: Epoch | None
    version: DeltaVersion | None
    lake_id: str

    @property
    def table_id(self) -> str:
        """What tells the versions of this table from those of others, in this lake or another."""
        return table_id_of(self.lake_id, self.name)

    @property
    def app_id(self) -> str:
        """The writer under whose name the table's commits carry their epoch."""
        return f"projection/{self.name}/g{self.generation}"


@dataclass(slots=True)
class WatchedTable:
    """A table of which is asked often whether it has moved: one look at one file says so."""

    path: str
    table: DeltaTable | None = None
    table_id: str = ""
    """Another one when the table was made again; empty while there is none."""
    _commit: Stored | None = None
    """The commit of the version that was taken last, by which one sees a log written anew."""
    _since: int = 0
    """The version that the handle was opened at: it is opened anew behind `RENEWED_AFTER` more."""
    _looked_at: float = 0.0

    def moved(self) -> bool:
        """Say whether there is another version than at the last call, and take it."""
        now = time.monotonic()
        before = None if self.table is None else (self.table_id, self.table.version())
        if before is not None:
            next_one = version_at(self.path, before[1] + 1)
            if next_one is None and now - self._looked_at < WHOLE_LOOK_S:
                return False
        self._looked_at = now
        self._take()
        return before != (None if self.table is None else (self.table_id, self.table.version()))

    def _take(self) -> None:
        """Go on with the commits that came, or open the table anew where they are another log's.

        Also where the handle has seen many: deltalake goes through them behind each further one.
        """
        table, self.table = self.table, None  # What fails below is opened anew.
        seen = 0 if table is None else table.version() - self._since
        if (
            table is not None
            and seen < RENEWED_AFTER
            and self._commit == version_at(self.path, table.version())
        ):
            try:
                table.update_incremental()
            except DeltaError:
                table = None  # What it would go on from was cleaned away.
        else:
            table = None
        if table is None:
            if not DeltaTable.is_deltatable(self.path):
                self.table_id, self._commit = "", None
                return
            table = DeltaTable(self.path)
            self._since = int(table.version())
        self.table_id = str(table.metadata().id)
        self._commit = version_at(self.path, table.version())
        self.table = table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    epoch: int
    at: datetime
    version: int


@dataclass(slots=True)
class NewestRuns:
    """Follows the manifest and the catalog of one lake. For one thread at a time."""

    lake: Lake
    _manifest: WatchedTable = field(init=False)
    _catalog: WatchedTable = field(init=False)
    _catalog_moved: bool = False
    _manifest_moved: bool = False
    _lake_id: str = ""
    _paths: frozenset[str] = frozenset()
    _notes: dict[str, _Note] = field(default_factory=dict)
    _heads: dict[int, Mapping[str, int]] = field(default_factory=dict)
    _entries: dict[str, tuple[Entry, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._manifest = WatchedTable(self.lake.epochs)
        self._catalog = WatchedTable(self.lake.catalog)

    def look(self) -> dict[str, ServedVersion]:
        """Return every projection that is not dropped, by name, as it is served now."""
        # The catalog first: a swap is noted in the manifest before the catalog tells of it.
        # A look that fails is made up for by the next one.
        self._catalog_moved |= self._catalog.moved()
        if self._catalog_moved:
            self._entries, self._catalog_moved = self._deployed(), False
        self._manifest_moved |= self._manifest.moved()
        if self._manifest_moved:
            if self._manifest.table_id != self._lake_id:
                self._begin()
            self._read_notes()
            self._manifest_moved = False
        return {name: self._served(entry, key) for name, (entry, key) in self._entries.items()}

    def _begin(self) -> None:
        """Forget the lake that was here before, or that there was none."""
        self._lake_id = self._manifest.table_id
        self._paths = frozenset()
        self._notes.clear()
        self._heads.clear()
        self._entries = self._deployed()

    def heads(self, epoch: Epoch) -> Mapping[str, int]:
        """Return how far each event store was taken in by an epoch. Raises `NotFound`."""
        if epoch not in self._heads:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[epoch] = Manifest(self.lake, Tables()).at(epoch).heads
        return self._heads[epoch]

    def _served(self, entry: Entry, key: tuple[str, ...]) -> ServedVersion:
        note = self._notes.get(f"projection/{entry.name}/g{entry.generation}")
        return ServedVersion(
            name=entry.name,
            generation=entry.generation,
            status=entry.status,
            key=key,
            epoch=None if note is None else Epoch(note.epoch),
            version=None if note is None else DeltaVersion(note.version),
            lake_id=self._lake_id,
        )

    def _deployed(self) -> dict[str, tuple[Entry, tuple[str, ...]]]:
        found = {}
        for entry in DeployedCatalog(self.lake, Tables()).entries():
            if entry.kind != PROJECTION_ENTRY or entry.status == DROPPED:
                continue
            known = self._entries.get(entry.name)
            if known is not None and known[0].text == entry.text:
                found[entry.name] = entry, known[1]
            else:
                (declared,) = parse_script(entry.text).projections
                found[entry.name] = entry, tuple(declared.key)
        return found

    def _read_notes(self) -> None:
        table = self._manifest.table
        if table is None:
            return
        paths = paths_of(table)
        if not self._paths:
            self._read_first()
        else:
            rows = dataset_at(table, paths - self._paths).to_table(
                columns=["kind", "name", "epoch", "tables", "heads", "at"]
            )
            self._take(rows)
        self._paths = paths

    def _read_first(self) -> None:
        """Read the newest note of each table; of the others, their names and epochs alone."""
        for name, done in Manifest(self.lake, Tables()).projected().items():
            run = _RUN.fullmatch(name)
            if run is not None and run["table"] in done.tables:
                version = done.tables[run["table"]].version
                self._notes[name] = _Note(epoch=done.epoch, at=_EVER, version=version)

    def _take(self, rows: pa.Table) -> None:
        for row in rows.filter(pc.equal(rows["kind"], COMMITTED)).to_pylist():
            self._heads[row["epoch"]] = json.loads(row["heads"])
        for row in rows.filter(pc.equal(rows["kind"], PROJECTION)).to_pylist():
            run, tables = _RUN.fullmatch(row["name"]), json.loads(row["tables"])
            if run is None or run["table"] not in tables:
                continue
            known = self._notes.get(row["name"])
            if known is None or (known.epoch, known.at) <= (row["epoch"], row["at"]):
                version, _ = tables[run["table"]]
                note = _Note(epoch=row["epoch"], at=row["at"], version=version)
                self._notes[row["name"]] = note
        for epoch in sorted(self._heads)[: max(len(self._heads) - _MOST_HEADS, 0)]:
            del self._heads[epoch]


def not_run(name: str) -> NotFound:
    """Return the error for a projection without a table yet."""
    return NotFound(
        f"the projection {name} has not taken in any epoch yet",
        remedy=f"It has rows after its first run: penstock projection status {name}",
    )
