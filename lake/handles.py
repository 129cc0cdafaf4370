"""A handle of a table on this machine's disk that takes in what commits say of rows by itself.

    _delta_log/…42.json: {txn} {add} {remove}  ->  what the handle has beside deltalake's

deltalake brings a handle up to date by a list of the log's whole folder, and goes through all that
came since it was opened: 3 ms of a processor where a table is young, ten times that where each
epoch commits to it. What a commit says of rows stands in one small file of a known name: which
files came and went, under whose guards. That file is read here. deltalake's own handle stays
behind; an operation of deltalake's brings it to exactly the version that this one has, and now and
then it is brought to the newest one: a log keeps its commits for minutes.
Source: the Delta transaction protocol, "Actions".
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake._internal import RawDeltaTable
from deltalake._internal import Schema as DeltaSchema
from deltalake.exceptions import DeltaError
from deltalake.table import Metadata, ProtocolVersions

from kernel.errors import LeaseLost
from lake.datasets import location_of
from lake.storage import is_local, last_checkpoint, log_file

LISTED_EVERY_S = 60.0
"""So often a log is listed all the same: it keeps its commits for five minutes at least.

Listed more often, what is looked at every few seconds would be gone through by deltalake each time.
"""
MOST_AHEAD = 500
"""So many commits are kept beside what deltalake has."""
MOST_FILES = 2_000
"""Of a table with more, deltalake says which ones it has."""
_PIECES = 8
"""Rows of files lie in so many pieces at most: each is looked through by itself."""
_OF_ROWS = {"commitInfo", "txn", "add", "remove"}
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=-]+")
_OWN = {"path": "path", "size_bytes": "size", "modification_time": "modificationTime"}
_SIDES = {"min": "minValues", "max": "maxValues", "null_count": "nullCount"}

File = Mapping[str, Any]
"""A file as the log adds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """What a table has at `version` beside what deltalake's handle has. Never changed.

    `gone` are paths of files that deltalake's handle may have, and the table has not, or anew.
    """

    version: int
    commits: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)
    added: Mapping[str, File] = field(default_factory=dict)
    gone: frozenset[str] = frozenset()

    def after(self, commit: bytes) -> _Ahead | None:
        """Return it behind one more commit; None where that is not about plain files alone."""
        if not commit.strip():
            return None
        marks, added, gone = dict(self.marks), dict(self.added), set[str]()
        for line in commit.splitlines():
            ((kind, said),) = json.loads(line).items() if line else (("commitInfo", {}),)
            if kind not in _OF_ROWS:
                return None
            if kind == "txn":
                marks[said["appId"]] = said["version"]
            if kind in ("add", "remove"):
                if said.get("deletionVector") or not _PLAIN_PATH.fullmatch(said["path"]):
                    return None
                added.pop(said["path"], None)
                gone.add(said["path"])
            if kind == "add":
                added[said["path"]] = said
        return _Ahead(
            version=self.version + 1,
            commits=self.commits + 1,
            marks=marks,
            added=added,
            gone=self.gone | gone,
        )


class Handle(DeltaTable):
    """A table as deltalake has it, and as the commits behind that say. For several threads.

    What is not on a disk is brought up to date by deltalake.
    """

    def __init__(self, table_uri: str, **options: Any) -> None:
        self._lock = threading.RLock()
        self._ahead: _Ahead | None = None
        self._marks: tuple[int, dict[str, int | None]] = (-1, {})
        self._files: tuple[int, _Ahead, pa.Table] | None = None
        super().__init__(table_uri, **options)
        self._uri = self._raw.table_uri()
        self._place = location_of(self)
        # Tables that are opened together, as by a process that starts, are not listed together.
        self._listed = time.time() - LISTED_EVERY_S / 4 * (crc32(self._place.encode()) % 100) / 100

    @property
    def _table(self) -> RawDeltaTable:
        """deltalake's own handle, for one of its operations: at the version that this one has."""
        with self._lock:
            ahead = self._beyond()
            if ahead is not None:
                self._load(ahead.version)
            self._ahead = None
            return self._raw

    @_table.setter
    def _table(self, raw: RawDeltaTable) -> None:
        self._raw = raw

    def _load(self, version: int) -> None:
        """Have deltalake read the log of a version, which is the one that this handle has."""
        try:
            self._raw.load_version(version)
        except DeltaError as error:
            # Cleaned away meanwhile: who came since that version nobody can tell.
            self._listed_anew()
            said = f"the log of {self._place} does not keep version {version} any more"
            raise LeaseLost(said) from error

    def version(self) -> int:
        """Return the version that the handle has."""
        ahead = self._beyond()
        return int(self._raw.version()) if ahead is None else ahead.version

    def _beyond(self) -> _Ahead | None:
        """Return what the handle has beside deltalake's, unless that has gone further by itself.

        It does so at the end of an operation, amid which another thread may have looked at the log.
        """
        ahead = self._ahead
        return None if ahead is None or ahead.version <= self._raw.version() else ahead

    def schema(self) -> DeltaSchema:
        """Return the columns, of which commits of rows say nothing."""
        columns: DeltaSchema = self._raw.schema
        return columns

    def metadata(self) -> Metadata:
        """Return the settings, of which commits of rows say nothing."""
        return Metadata(self._raw)

    def protocol(self) -> ProtocolVersions:
        """Return the features, of which commits of rows say nothing."""
        return ProtocolVersions(*self._raw.protocol_versions())

    @property
    def table_uri(self) -> str:
        """Where the table lies."""
        return self._uri

    def transaction_version(self, app_id: str) -> int | None:
        """Return the last epoch under an app id; deltalake is asked once for what it has.

        It goes through the files that it was opened with. Behind a rest of minutes the next
        checkpoint takes these away, and says the same of the version that the handle has by then.
        """
        with self._lock:
            try:
                return self._marked(app_id)
            except DeltaError:
                self._load(self.version())
                return self._marked(app_id)

    def _marked(self, app_id: str) -> int | None:
        ahead = self._beyond()
        if ahead is not None and app_id in ahead.marks:
            return ahead.marks[app_id]
        if self._marks[0] != self._raw.version():
            self._marks = self._raw.version(), {}
        known = self._marks[1]
        if app_id not in known:
            known[app_id] = self._raw.transaction_version(app_id)
        return known[app_id]

    def update_incremental(self) -> None:
        """Take in what came: the commits behind this version, or the log as deltalake lists it."""
        with self._lock:
            # A log is kept for minutes: only a machine that slept misses commits.
            now = time.time()
            lately = 0 <= now - self._listed < LISTED_EVERY_S
            if not (lately and is_local(self._place) and self._followed()):
                self._listed_anew()

    def is_listed_soon(self) -> bool:
        """Say whether one of the next looks lists the whole log: to open it anew is no dearer."""
        ahead, listed_s = self._beyond(), time.time() - self._listed
        many = ahead is not None and ahead.commits > MOST_AHEAD // 2
        return many or not 0 <= listed_s < LISTED_EVERY_S * 3 / 4

    def _listed_anew(self) -> None:
        self._raw.update_incremental()
        self._ahead, self._listed = None, time.time()

    def get_add_actions(self, flatten: bool = False) -> Any:
        """Return a row for each file, in no order."""
        with self._lock:
            ahead = self._beyond()
            found = None if ahead is None or not flatten else self._files_of(ahead)
            return super().get_add_actions(flatten) if found is None else found

    def count(self) -> int:
        """Return the number of rows, as far as files tell it."""
        told = pa.table(self.get_add_actions(flatten=True))["num_records"]
        return int(pc.sum(told).as_py() or 0)

    def _followed(self) -> bool:
        """Take in the commits that are there; False where deltalake has to."""
        ahead = self._beyond() or _Ahead(version=int(self._raw.version()))
        while ahead.commits <= MOST_AHEAD:
            try:
                with open(log_file(self._place, ahead.version + 1), "rb") as file:
                    found = ahead.after(file.read())
            except FileNotFoundError:
                self._ahead = ahead if ahead.commits else None
                # Behind a checkpoint a commit may have been made and cleaned away.
                return last_checkpoint(self._place) <= ahead.version
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                return False  # Whatever is odd about it, deltalake has the words for it.
            if found is None:
                return False
            ahead = found
        return False

    def _files_of(self, ahead: _Ahead) -> pa.Table | None:
        """Return the files of a version; None where deltalake is to tell them."""
        version, known = int(self._raw.version()), self._files
        if known is None or known[0] != version or known[1].version > ahead.version:
            known = version, _Ahead(version=version), pa.table(self._raw.get_add_actions(True))
        _, before, told = self._files = known
        if told.num_rows > MOST_FILES:
            self._files = None
            return None
        if before is ahead:
            return told
        # A commit is put into columns once: most of what is ahead was told before.
        left = {path for path, file in before.added.items() if ahead.added.get(path) is not file}
        new = [file for path, file in ahead.added.items() if before.added.get(path) is not file]
        rows = _rows(new, told.schema, pa.schema(self._raw.schema.to_arrow()))
        if rows is None:
            return None
        gone = pa.array([*(ahead.gone - before.gone), *left], pa.string())
        stays = pc.invert(pc.is_in(told["path"], gone))
        found = pa.concat_tables([told.filter(stays), rows])
        if found.column(0).num_chunks > _PIECES:
            found = found.combine_chunks()
        self._files = version, ahead, found
        return found


def _rows(files: Sequence[File], shape: pa.Schema, columns: pa.Schema) -> pa.Table | None:
    """Return files as deltalake tells them, flattened; None for what it alone can read.

    Of columns that lie in others, names of bounds do not say which they are.
    """
    if any(map(_has_fields, columns.types)) or len({*shape.names}) < len(shape):
        return None
    try:
        told = [json.loads(each.get("stats") or "{}", parse_float=Decimal) for each in files]
        arrays = [_column(item, files, told) for item in shape]
    except (pa.ArrowException, AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
        return None
    return pa.table(arrays, schema=shape)


def _has_fields(kind: pa.DataType) -> bool:
    """Say whether values have names within, as a struct has; a list of plain ones has none."""
    plain = pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type)
    return pa.types.is_nested(kind) and not plain


def _column(item: pa.Field, files: Sequence[File], told: Sequence[Mapping[str, Any]]) -> pa.Array:
    """Return what the log says of files under one of deltalake's names."""
    if item.name in _OWN:
        return pa.array([each[_OWN[item.name]] for each in files], item.type)
    if item.name == "num_records":
        return pa.array([each.get("numRecords") for each in told], item.type)
    kind, _, name = item.name.partition(".")
    if kind == "partition":
        return _cast([each["partitionValues"][name] or None for each in files], item.type)
    return _cast([each.get(_SIDES[kind], {}).get(name) for each in told], item.type)


def _cast(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return JSON's values as a column of bounds. Raises where they are not of its kind."""
    if pa.types.is_floating(kind):
        return pa.array([None if each is None else float(each) for each in values], kind)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array([None if each is None else Decimal(each) for each in values], kind)
    return pa.array(values, kind)
