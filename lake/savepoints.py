"""`lake/savepoints`: named states of all tables, which nothing removes before they are dropped.

A savepoint is one epoch and, for each table that belongs to it, the files that made up its version
then, with its columns and the files' statistics. It is read from these files alone. So it outlives
the shortening of Delta logs, which a version does not, and whoever removes files has it done here.
How a savepoint that is taken and files that are removed see each other: `removals`.

    TAKING -> KEPT -> DROPPED -> GONE

TAKING holds the files already, while it is looked whether all of them are there. What a crash left
so is dropped after an hour. DROPPED holds nothing any more. Files that only the savepoint kept
alive, and that no table's log remembers, are removed before it is GONE.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from kernel.errors import Conflict, NotFound
from kernel.positions import Epoch
from lake import storage
from lake.datasets import missing_file
from lake.layout import Lake
from lake.ledger import Ledger
from lake.removals import AT_ONCE, NOBODY, Removals
from lake.savepoint_states import HOLDING, NAME, Savepoint, SavepointState, kept_as, savepoints_of
from lake.savepoint_tables import KeptTable
from lake.table_columns import UTC_MICROS
from lake.table_files import live_files, removed_files
from lake.tables import Tables

SCHEMA = pa.schema(
    [
        ("entry", pa.int64()),
        ("id", pa.string()),
        ("name", pa.string()),
        ("state", pa.string()),
        ("epoch", pa.int64()),
        ("expires_at", UTC_MICROS),
        ("at", UTC_MICROS),
        ("table", pa.string()),
        ("version", pa.int64()),
        ("done", pa.int64()),
        ("columns", pa.binary()),
        ("files", pa.binary()),
        ("noted", pa.string()),
        ("heads", pa.string()),
    ]
)
"""`table` and the columns after it are null in rows that tell a state, and set in rows that tell a
table. `columns` is a schema and `files` a stream, both in Arrow's IPC format. `noted` came later:
tables without it tell nothing of what made their rows. So did `heads`, JSON of the stores' last
positions as of the epoch."""
_APP_ID = "savepoints"
log = logging.getLogger("penstock.upkeep")

UNFINISHED_AFTER = timedelta(hours=1)
"""Taking a savepoint takes seconds: what is not KEPT by then was left by a crash."""


class SavepointBook:
    """Reads and appends the savepoints of one lake."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._path = lake.path(NAME)
        self._tables = tables
        self._ledger = Ledger(self._path, tables, SCHEMA, _APP_ID)
        self._removals = Removals(lake)
        self._known: tuple[int, dict[str, frozenset[str]]] = (-1, {})

    def all(self) -> list[Savepoint]:
        """Return every savepoint that is not gone, oldest first."""
        return savepoints_of(self._lake)

    def named(self, name: str) -> Savepoint:
        """Return the savepoint that is kept under a name. Raises `NotFound`."""
        return kept_as(self._lake, name)

    def tables_of(
        self, savepoint: Savepoint, names: Collection[str] | None = None
    ) -> list[KeptTable]:
        """Return the tables of a savepoint, or those that are named, in order of their names."""
        where = (pc.field("id") == savepoint.id) & pc.field("table").is_valid()
        if names is not None:
            where = where & pc.field("table").isin(pa.array([*names], pa.string()))
        rows = self._tables.read(self._path, where=where)
        found = [_table(row) for row in (rows.to_pylist() if rows else [])]
        return sorted(found, key=lambda table: table.name)

    def held(self) -> Mapping[str, frozenset[str]]:
        """Return the files that savepoints hold, by table. Cheap where none was taken since."""
        table = self._tables.open(self._path)
        if table is None:
            return {}
        if self._known[0] != table.version():
            version = table.version()
            self._known = version, self._files_of(s for s in self.all() if s.state in HOLDING)
        return self._known[1]

    def take(
        self,
        name: str,
        epoch: Epoch,
        tables: Sequence[KeptTable],
        *,
        expires_at: datetime | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> Savepoint:
        """Keep tables under a name. All of them must be of one epoch, and so must `heads`.

        Raises `Conflict` where the name is taken, `NotFound` where a file is gone already.
        """
        taking = Savepoint(
            id=uuid.uuid4().hex,
            name=name,
            state=SavepointState.TAKING,
            epoch=epoch,
            expires_at=expires_at,
            at=datetime.now(UTC),
            heads=heads,
        )

        def rows(entry: int) -> list[dict[str, object]]:
            self._refuse_taken(name)
            return [_row(taking, entry), *(_table_row(taking, entry, each) for each in tables)]

        self._ledger.put(rows)
        # From here on nobody begins to remove a file of it, and none may have gone before.
        for table in tables:
            if self._is_going(table):
                self._moved(taking, SavepointState.DROPPED)
                raise NotFound(
                    f"version {table.version} of {table.name}, which epoch {epoch} has, is not "
                    "kept any more",
                    remedy="Take a later epoch, or leave the table out: --without "
                    f"{table.name}. How long versions are kept is lake.retention_days.",
                )
        return self._kept(taking)

    def held_in(self, root: str) -> frozenset[str]:
        """Return the files that savepoints hold of the table at `root`."""
        return self.held().get(self._name_at(root), frozenset())

    def remove(
        self, root: str, paths: Sequence[str], *, needed: Callable[[], Collection[str]] = tuple
    ) -> list[str]:
        """Remove those files of a table that no savepoint holds; return them.

        Nor those that are `needed`, which is asked behind each announcement: who comes later to
        need one finds it there.
        """
        gone: list[str] = []
        for start in range(0, len(paths), AT_ONCE):
            some = paths[start : start + AT_ONCE]
            with self._removals.announced(root, some):
                held = {*self.held_in(root), *needed()}
                gone += NOBODY.remove(root, [path for path in some if path not in held])
        return gone

    def drop(self, savepoint: Savepoint) -> int:
        """Drop a savepoint and remove the files that nobody else knows; return how many."""
        if savepoint.state in HOLDING:
            savepoint = self._moved(savepoint, SavepointState.DROPPED)
        removed = self._remove_orphans(savepoint)
        self._moved(savepoint, SavepointState.GONE)
        table = self._tables.open(self._path)
        assert table is not None, "the savepoint has rows"
        try:
            table.delete(f"id = '{savepoint.id}' AND table IS NOT NULL")
        except CommitFailedError:
            pass  # A savepoint was taken meanwhile. The rows cost space only.
        finally:
            self._tables.forget(self._path)
        return removed

    def expire(
        self, now: datetime | None = None, *, needed: Callable[[], Collection[str]] = tuple
    ) -> list[str]:
        """Drop what has expired, was left by a crash, or was not dropped to the end; name it.

        What has expired is kept while its id is `needed`.
        """
        self._removals.forget_done()
        now = now or datetime.now(UTC)
        dropped = []
        for savepoint in self.all():
            # One whose taker stood still may be kept by now.
            with suppress(Conflict):
                kept = savepoint.state is SavepointState.KEPT
                if is_due(savepoint, now) and not (kept and savepoint.id in needed()):
                    self.drop(savepoint)
                    dropped.append(savepoint.name)
        return dropped

    def _is_going(self, table: KeptTable) -> bool:
        """Say whether a file of a table that is held by now is gone, or is about to go.

        What is removed between the two questions was announced when the first one was asked.
        """
        going = self._removals.among(self._lake.path(table.name), [*table.sizes])
        return bool(going) or missing_file(table.rows(self._lake)) is not None

    def _name_at(self, root: str) -> str:
        return self._lake.name_at(root.removeprefix(self._lake.root).lstrip("/"))

    def _refuse_taken(self, name: str) -> None:
        if any(each.name == name and each.state is SavepointState.KEPT for each in self.all()):
            raise Conflict(
                f"there is a savepoint {name} already",
                remedy=f"Take another name, or: penstock savepoint drop {name}",
            )

    def _kept(self, taking: Savepoint) -> Savepoint:
        """Keep a savepoint whose files are all there. Of two with one name the first is kept."""
        kept = replace(taking, state=SavepointState.KEPT)

        def rows(entry: int) -> list[dict[str, object]]:
            self._refuse_taken(taking.name)
            if self._state_of(taking) is not SavepointState.TAKING:
                raise Conflict(
                    f"the savepoint {taking.name} was dropped meanwhile, as one that a crash left",
                    remedy="Take it again.",
                )
            return [_row(kept, entry)]

        try:
            self._ledger.put(rows)
        except Conflict:
            self._moved(taking, SavepointState.DROPPED)
            raise
        return kept

    def _state_of(self, savepoint: Savepoint) -> SavepointState:
        return next((s.state for s in self.all() if s.id == savepoint.id), SavepointState.GONE)

    def _moved(self, savepoint: Savepoint, state: SavepointState) -> Savepoint:
        """Tell a later state. Raises `Conflict` for one that was looked at before it was KEPT."""
        now = replace(savepoint, state=state)

        def rows(entry: int) -> list[dict[str, object]]:
            newest = self._state_of(savepoint)
            if newest is SavepointState.KEPT and savepoint.state is SavepointState.TAKING:
                raise Conflict(f"the savepoint {savepoint.name} is kept since")
            return [] if newest is SavepointState.GONE else [_row(now, entry)]

        self._ledger.put(rows)
        return now

    def _files_of(self, savepoints: Iterable[Savepoint]) -> dict[str, frozenset[str]]:
        ids = [each.id for each in savepoints]
        where = pc.field("id").isin(pa.array(ids, pa.string())) & pc.field("table").is_valid()
        rows = self._tables.read(self._path, where=where, columns=["table", "files"])
        found: dict[str, set[str]] = defaultdict(set)
        for row in rows.to_pylist() if rows else []:
            found[row["table"]] |= {unquote(p) for p in _files(row["files"])["path"].to_pylist()}
        return {name: frozenset(paths) for name, paths in found.items()}

    def _remove_orphans(self, savepoint: Savepoint) -> int:
        """Remove the files of a savepoint that no version and no other savepoint knows of.

        What a table's log remembers as removed is left to the vacuum of the table, and what lies in
        generations to who looks after these: an older version may need it.
        """
        removed = 0
        for table in self.tables_of(savepoint):
            root = self._lake.path(table.name)
            try:
                known = live_files(DeltaTable(root)) | removed_files(DeltaTable(root))
            except (DeltaError, OSError) as error:
                log.warning("files of savepoint %s stay in %s: %s", savepoint.name, root, error)
                continue
            left = {path for path in {*table.sizes} - known if not path.startswith("_gen/")}
            files, place = storage.place_of(root)
            there = [p for p in left if files.get_file_info(f"{place}/{p}").type.name == "File"]
            removed += len(self.remove(root, there))
        return removed


def is_due(savepoint: Savepoint, now: datetime) -> bool:
    """Say whether a savepoint has expired, was left by a crash, or was not dropped to the end."""
    match savepoint.state:
        case SavepointState.TAKING:
            return savepoint.at < now - UNFINISHED_AFTER
        case SavepointState.KEPT:
            return savepoint.expires_at is not None and savepoint.expires_at <= now
        case SavepointState.DROPPED:
            return True
        case SavepointState.GONE:
            return False


def _row(savepoint: Savepoint, entry: int) -> dict[str, object]:
    return {
        "entry": entry,
        "id": savepoint.id,
        "name": savepoint.name,
        "state": savepoint.state.value,
        "epoch": savepoint.epoch,
        "expires_at": savepoint.expires_at,
        "at": savepoint.at,
        "heads": None if savepoint.heads is None else json.dumps(dict(savepoint.heads)),
    }


def _table_row(savepoint: Savepoint, entry: int, table: KeptTable) -> dict[str, object]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.files.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(table.files)
    return _row(savepoint, entry) | {
        "table": table.name,
        "version": table.version,
        "done": table.done,
        "columns": table.columns.serialize().to_pybytes(),
        "files": sink.getvalue().to_pybytes(),
        "noted": table.noted,
    }


def _table(row: Mapping[str, Any]) -> KeptTable:
    return KeptTable(
        name=row["table"],
        version=row["version"],
        done=row["done"],
        columns=pa.ipc.read_schema(pa.py_buffer(row["columns"])),
        files=_files(row["files"]),
        noted=row.get("noted"),
    )


def _files(kept: bytes) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(kept)).read_all()
