"""Rows of projections by key, and what changed in them, for one who asks again and again.

    NewestRuns -> ServedVersion -> rows of that version, held in memory within a bound, or scanned
                                -> Difference from an older version

The newest version of what is asked for is held; with the next version only files that came are
read. Who does not wait for these has the version before them meanwhile. What is larger than the
bound, and any older version, is read from its files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from weakref import WeakValueDictionary

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound, Unavailable
from kernel.positions import DeltaVersion, Epoch
from lake.layout import Lake
from lake.storage import version_at
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog
from projections.serve.keyed_rows import HeldRows, KeyedRows, ScannedRows, held, scanned
from projections.serve.newest_runs import NewestRuns, ServedVersion, not_run
from projections.serve.row_changes import RowChange, VersionDifference, all_new, difference
from projections.serve.versions import EpochVersions, not_kept, opened, readable
from projections.sql.statements.parse import parse_script

_Step = tuple[str, tuple[str, ...], DeltaVersion, DeltaVersion]
_IDLE_S = 300.0
"""Rows that nobody asked for during so long are let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The rows of a version; those that are too many to be held are `scanned`."""

    served: ServedVersion
    rows: HeldRows | None
    scanned: ScannedRows | None
    file_bytes: int
    """Size of the files: a table that was too large is not tried again before it shrinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is served at one moment; `rows` of those projections that are in memory.

    `before`: of those whose rows are still being read, what was served before, with its rows.
    """

    projections: Mapping[str, ServedVersion]
    rows: Mapping[str, HeldRows]
    before: Mapping[str, tuple[ServedVersion, HeldRows]]


class Lookups:
    """Reads projections of one lake. Safe for use from several threads."""

    def __init__(self, lake: Lake, *, most_bytes: int, wait_s: float | None = None) -> None:
        """`wait_s`: so long a look waits for the rows of new versions; None: until they are read.

        Those of a swap are all rows there are, which take seconds where they are many.
        """
        self.lake = lake
        self._wait_s = wait_s
        self._found: Mapping[str, ServedVersion] = {}
        self._bringer = ThreadPoolExecutor(1, thread_name_prefix="lake-rows")
        self._brought = Future[None]()
        self._brought.set_result(None)
        self._most_bytes = most_bytes
        self._runs = NewestRuns(lake)
        self._looking = threading.Lock()
        self._reading = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._asked: dict[str, float] = {}
        self._epochs: EpochVersions | None = None
        self._placing = threading.Lock()
        self._comparing = threading.Lock()
        self._differences: WeakValueDictionary[_Step, VersionDifference] = WeakValueDictionary()
        """Steps that are being read: what nobody reads any more is let go."""

    def look(self) -> Look:
        """Return what is served now, with the rows of what was asked for lately, as far as read.

        Raises `Unavailable` where the lake cannot be read.
        """
        try:
            with self._looking:
                found = self._found = self._runs.look()
        except (DeltaError, OSError) as error:
            raise Unavailable(f"the lake {self.lake.root} cannot be read: {error}") from error
        self._bring_all(found)
        rows: dict[str, HeldRows] = {}
        before: dict[str, tuple[ServedVersion, HeldRows]] = {}
        for name, kept in self._kept.copy().items():
            served = found.get(name)
            if served is None or kept.rows is None:
                continue
            if _same(kept.served, served):
                rows[name] = kept.rows
            elif kept.served.lake_id == served.lake_id:
                before[name] = kept.served, kept.rows
        return Look(projections=found, rows=rows, before=before)

    def _bring_all(self, found: Mapping[str, ServedVersion]) -> None:
        """Have what is held brought to its newest version, and wait for that for `wait_s`."""
        if not any(self._is_behind(name, found.get(name)) for name in self._kept.copy()):
            return
        begun = False
        while not begun:
            with self._looking:
                begun = self._brought.done()
                if begun:
                    self._brought = self._bringer.submit(self._bring_each)
                brought = self._brought
            if not begun and self._wait_s is not None:
                return
            # Without a bound also for one that another look began, of what was served before.
            wait([brought], self._wait_s)

    def _bring_each(self) -> None:
        with self._reading:
            found = self._found
            for name in [*self._kept]:
                if name in self._kept:  # What was brought before it may have needed its room.
                    self._bring(name, found.get(name))

    def applied(self, served: ServedVersion, store: str, position: int) -> bool:
        """Say whether what is served has an event store's events up to a position."""
        if served.epoch is None:
            return False
        with self._looking:
            return self._runs.heads(served.epoch).get(store, 0) >= position

    def asked_for(self, name: str) -> None:
        """Take note that a projection's rows are wanted: they stay in memory for a while."""
        self._asked[name] = time.monotonic()

    def rows(self, served: ServedVersion) -> KeyedRows:
        """Return the rows of a version, held from now on if it is the newest and not too large.

        Raises `NotFound` before the first run, and where the version is not kept any more.
        """
        self.asked_for(served.name)
        if self._reading.acquire(blocking=self._wait_s is None):
            try:
                kept = self._kept.get(served.name)
                if kept is None or _newer(served, kept.served):
                    self._hold(served, kept)
            finally:
                self._reading.release()
        kept = self._kept.get(served.name)
        if kept is not None and _same(kept.served, served):
            if kept.rows is not None:
                return kept.rows
            if kept.scanned is not None and self._is_newest(kept.scanned):
                return kept.scanned
        return scanned(self.table(served), served.key, table_name(served.name))

    def _is_newest(self, rows: ScannedRows) -> bool:
        """Say whether a table has no version behind these rows, with which their files may go."""
        return version_at(self.lake.path(rows.table), rows.version + 1) is None

    def rows_at(self, served: ServedVersion, epoch: Epoch) -> tuple[DeltaVersion, KeyedRows]:
        """Return a projection's rows at an epoch that it was brought to.

        Raises `NotFound`, also for an epoch of a generation whose rows had another key.
        """
        name = table_name(served.name)
        version, generation = self._place_of(name, epoch)
        rows = scanned(self._opened(served.name, version), served.key, name)
        key = self._key_of(served, generation)
        if set(rows.key) - set(rows.schema.names) or _folded(key) != _folded(served.key):
            raise NotFound(
                f"at epoch {epoch} the rows of {served.name} had another key than now, "
                f"{', '.join(served.key)}",
                remedy="Read them without a key: penstock query --epoch "
                f'{epoch} "SELECT * FROM {served.name}"',
            )
        return version, rows

    def _place_of(self, name: str, epoch: Epoch) -> tuple[DeltaVersion, int]:
        """Return a table's version at an epoch, and of which generation that is."""
        with self._placing:
            if (versions := self._epochs) is None:
                versions = EpochVersions(self.lake, Tables())
            else:
                self._epochs = None  # A look that fails is not gone on with.
                versions.look()
            self._epochs = versions
            version = versions.at([name], epoch)[name]
            assert version is not None, "a projection has versions"
            return version, versions.generation(name, epoch)

    def _key_of(self, served: ServedVersion, generation: int) -> tuple[str, ...]:
        """Return the key of a generation's rows: the one that is served now or one before it."""
        if generation == served.generation:
            return served.key
        text = DeployedCatalog(self.lake, Tables()).text_of(served.name, generation)
        if text is None:
            return served.key
        (declared,) = parse_script(text).projections
        return tuple(declared.key)

    def all_rows(self, served: ServedVersion, done: int) -> Iterator[list[RowChange]]:
        """Yield all rows of a version behind the first `done` as new ones, file by file.

        Raises `NotFound` where the version is not kept any more.
        """
        # The order of rows is that of a version's files: another version has its rows elsewhere.
        if done and served.version is not None:
            table = self._opened(served.name, served.version)
        else:
            table = self.table(served)
        with readable(table_name(served.name), served.version):
            yield from all_new(table, served.key, done)

    def difference(
        self, served: ServedVersion, before: DeltaVersion, after: DeltaVersion
    ) -> VersionDifference | None:
        """Compare two versions of a projection's table; None where the reader must begin anew.

        Readers who take the same step share one `VersionDifference`, and all that are being read
        keep to the bound together.
        """
        step = served.table_id, served.key, before, after
        with self._comparing:
            found = self._differences.get(step)
            if found is None:
                taken = sum(each.nbytes for each in self._differences.values())
                found = self._difference(served, before, after, self._most_bytes - taken)
                if found is not None:
                    self._differences[step] = found
            return found

    def _difference(
        self, served: ServedVersion, before: DeltaVersion, after: DeltaVersion, most_bytes: int
    ) -> VersionDifference | None:
        try:
            old, new = self._opened(served.name, before), self._opened(served.name, after)
            with readable(table_name(served.name), after):
                return difference(old, new, served.key, most_bytes)
        except NotFound:
            return None

    def table(self, served: ServedVersion) -> DeltaTable:
        """Open the table as it is served. Raises `NotFound`.

        A compaction and a vacuum make versions that no run has noted yet: the newest one stands
        where its writer has not gone beyond the epoch.
        """
        if served.version is None or served.epoch is None:
            raise not_run(served.name)
        name = table_name(served.name)
        path = self.lake.path(name)
        try:
            return DeltaTable(path, version=served.version)
        except DeltaError as error:
            with readable(name, served.version):
                newest = DeltaTable(path)
            done = newest.transaction_version(served.app_id)
            if done is None or done > served.epoch:
                raise not_kept(name, served.version) from error
            return newest

    def _is_idle(self, name: str) -> bool:
        """Say whether nobody has asked for a projection's rows for long."""
        return time.monotonic() - self._asked.get(name, 0.0) > _IDLE_S

    def _is_behind(self, name: str, served: ServedVersion | None) -> bool:
        """Say whether other rows are to be held of a projection than are, or none any more."""
        kept = self._kept.get(name)
        if kept is None or served is None or self._is_idle(name):
            return kept is not None
        return not _same(kept.served, served)

    def _bring(self, name: str, served: ServedVersion | None) -> None:
        """Hold a projection's newest rows, unless nobody has asked for them for long."""
        if served is None or served.version is None or self._is_idle(name):
            del self._kept[name]
        elif not _same(self._kept[name].served, served):
            try:
                self._hold(served, self._kept[name])
            except Exception:
                # Whoever asks for it is told. The other projections are answered as ever.
                self._kept.pop(name, None)

    def _hold(self, served: ServedVersion, kept: _Kept | None) -> None:
        table = self.table(served)
        before = None if kept is None else kept.rows
        with readable(table_name(served.name), served.version):
            size = sum(table.get_add_actions()["size_bytes"].to_pylist())
            too_large = kept is not None and kept.rows is None and size >= kept.file_bytes
            rows = (
                held(table, served.key, before, self._most_bytes)
                if size <= self._most_bytes and not too_large
                else None
            )
        self._kept[served.name] = _Kept(
            served=served,
            rows=rows,
            scanned=scanned(table, served.key, table_name(served.name)) if rows is None else None,
            file_bytes=size,
        )
        self._shrink()

    def _shrink(self) -> None:
        """Forget the rows that were asked for longest ago until the rest keeps to the bound."""
        total = 0
        for name in sorted(self._kept, key=lambda name: self._asked.get(name, 0.0), reverse=True):
            rows = self._kept[name].rows
            total += 0 if rows is None else rows.nbytes
            if total > self._most_bytes:
                del self._kept[name]

    def _opened(self, name: str, version: DeltaVersion) -> DeltaTable:
        return opened(self.lake.path(table_name(name)), table_name(name), version)


def table_name(projection: str) -> str:
    """Return what the table of a projection's rows is called in the lake."""
    return f"projection/{projection}"


def _folded(key: tuple[str, ...]) -> tuple[str, ...]:
    """Return a key as SQL compares it: it does not tell capitals."""
    return tuple(column.lower() for column in key)


def _same(one: ServedVersion, other: ServedVersion) -> bool:
    return (one.version, one.key, one.lake_id) == (other.version, other.key, other.lake_id)


def _newer(one: ServedVersion, other: ServedVersion) -> bool:
    """Say whether one was served after the other: by epoch, and by version within one."""
    return (one.epoch or 0, one.version or 0) > (other.epoch or 0, other.version or 0)
