"""Puts many small files together, and removes the files that no kept version names.

A file belongs to one partition, so that files are counted and put together by partition: in a log
of hundreds of tables each has a few small ones at any time, which nothing makes fewer. Of a
partition only files are put together that are small beside one another: a file is written again
when as much as it holds has come since, so that what is written grows with the logarithm of the
rows and not with their square.

Rows, statistics and guards stay, and so does every version younger than the retention, but for old
versions of large tables (`superseded`). A table that is merged into is compacted by the thread that
merges, so that the two never meet. Appends and a compaction do not collide: tables that are only
appended to are looked after by `Upkeep`, in a thread of its own, so that no epoch waits for it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError

from kernel.errors import LeaseLost, first_line
from kernel.loops import Loop, passed
from lake.attempts import Attempts
from lake.file_actions import actions_of
from lake.layers import FOLDER
from lake.layout import SINGLE, Lake
from lake.log_lengths import kept_for
from lake.removals import NOBODY, Keeper
from lake.savepoints import SavepointBook
from lake.table_settings import LOG_KEPT
from lake.tables import TableAt, Tables
from lake.upkeep.old_versions import remove_left_over, trim

MANY_FILES = 96
FEW_FILES = 6
"""A table may have many small files in all, but each of its partitions at least a few."""
TARGET_BYTES = 32 * 2**20
"""Files of this size are left alone: what was put together once is not written again and again."""
GROUP_ROWS = 2**16
"""Of a large file only those rows are read that a slice of a large transaction needs."""
_WRITTEN_AS = WriterProperties(compression="SNAPPY", max_row_group_size=GROUP_ROWS)
_SIZES = (2**16, 2**19, 2**22, TARGET_BYTES)
LOOK_EVERY = timedelta(seconds=20)
TRIM_EVERY = timedelta(minutes=1)
VACUUM_EVERY = timedelta(hours=1)
AGAIN_AFTER_S = 10.0
"""After so many seconds work of which some failed is tried again, then after twice as many."""
_REST_S = 2.0
APPENDED = ("log/", "quarantine/")
"""Tables of epochs, by the beginnings of their names, that nobody merges into."""

UNNAMED = (
    *SINGLE,
    *("log/_schemas", "log/snapshots/_installs", "log/_pending"),
    *("quarantine/records", "quarantine/outcomes"),
)
"""Tables that no epoch names. Rows are appended to all of them."""

log = logging.getLogger("penstock.upkeep")


PutTogether = Callable[[DeltaTable, Sequence[str | None], int], None]
"""Writes files of some partitions of a table that are smaller than so many bytes to such as it.

One commit takes them out and the new ones in, without a change to rows. Raises `CommitFailedError`
or `LeaseLost` when another writer changed them meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeCompaction:
    """Who puts files together that have more than `most_bytes` in all."""

    most_bytes: int
    by: PutTogether


def compact(
    lake: Lake, tables: Tables, names: Iterable[str], large: LargeCompaction | None = None
) -> list[str]:
    """Compact those of the named tables that have many small files; return their names.

    A table that another writer changes at the same moment is left for the next time. Without
    `large` this process writes everything.
    """
    done: list[str] = []
    for name in names:
        table = tables.open(lake.path(name))
        due = {} if table is None else due_partitions(table)
        if table is None or not due:
            continue
        try:
            for size, partitions in sorted(due.items()):
                by: PutTogether = put_together_here
                if large is not None and _bytes(table, partitions, size) > large.most_bytes:
                    by = large.by
                by(table, partitions, size)
        except (CommitFailedError, LeaseLost):
            continue
        finally:
            tables.forget(lake.path(name))
        done.append(name)
    return done


def put_together_here(table: DeltaTable, partitions: Sequence[str | None], size: int) -> None:
    """Write the files in this process, one after the other; see `PutTogether`."""
    table.optimize.compact(
        partition_filters=_among(table, partitions),
        target_size=size,
        writer_properties=_WRITTEN_AS,
        max_concurrent_tasks=1,
    )


def due_partitions(table: DeltaTable) -> dict[int, list[str | None]]:
    """Return the partitions with files to put together, by the size that these stay below.

    A table without partitions counts as one, None. So does one with several columns of partitions.
    """
    single = _single(table)
    small = _smaller(table, TARGET_BYTES).sort_by(
        [("partition", "ascending"), ("size", "ascending")]
    )
    counted = pc.value_counts(small["partition"]).to_pylist()
    enough = max(FEW_FILES, MANY_FILES // max(1, len(counted)))
    due: dict[int, list[str | None]] = {}
    first = 0
    for each in counted:
        files = small["size"].slice(first, each["counts"]).to_pylist()
        first += each["counts"]
        count, size = _alike(files)
        if count >= enough:
            limit = next((limit for limit in _SIZES if size < limit), TARGET_BYTES)
            due.setdefault(limit, []).append(each["values"] if single else None)
    return due


def _smaller(table: DeltaTable, size: int) -> pa.Table:
    """Return size and partition of the files below a size; all are of one unless there are many."""
    single = _single(table)
    actions = actions_of(table)
    sizes = actions["size_bytes"]
    values = actions[f"partition.{single}"] if single else pa.repeat(pa.scalar(""), len(sizes))
    found = pa.table({"size": sizes, "partition": values})
    return found.filter(pc.less(found["size"], size))


def _single(table: DeltaTable) -> str | None:
    columns = table.metadata().partition_columns
    return columns[0] if len(columns) == 1 else None


def _bytes(table: DeltaTable, partitions: Sequence[str | None], size: int) -> int:
    """Return how many bytes are to be written anew."""
    small = _smaller(table, size)
    names = [name for name in partitions if name is not None]
    if names:
        small = small.filter(pc.is_in(small["partition"], pa.array(names)))
    return int(pc.sum(small["size"]).as_py() or 0)


def _alike(sizes: Sequence[int]) -> tuple[int, int]:
    """Return how many of the smallest files are to become one, and how large that is.

    The next larger one belongs to them if it is not larger than all of them together.
    """
    total = 0
    for count, size in enumerate(sizes):
        if count > 1 and size > total:
            return count, total
        total += size
    return len(sizes), total


def _among(
    table: DeltaTable, partitions: Sequence[str | None]
) -> list[tuple[str, str, list[str]]] | None:
    names = [name for name in partitions if name is not None]
    if not names:
        return None
    (column,) = table.metadata().partition_columns
    return [(column, "in", names)]


def vacuum(
    lake: Lake,
    tables: Tables,
    at: Mapping[str, TableAt],
    *,
    retention: timedelta,
    keeper: Keeper = NOBODY,
) -> dict[str, int]:
    """Remove files of versions older than `retention`; return how many, by table.

    The versions in `at` (what the newest epoch names) and whatever else was a table's newest
    version within the retention stay readable. Where no file was removed for another reason, that
    is: see `superseded`. So do the files that `keeper` knows somebody needs.
    """
    removed: dict[str, int] = {}
    retention = min(retention, LOG_KEPT)
    for name, kept in at.items():
        table = tables.open(lake.path(name))
        if table is None:
            continue
        vacuumed = partial(
            table.vacuum,
            # Of a busy table as well: somebody may still read what was removed just now.
            retention_hours=min(_hours(retention), max(1, _hours(kept_for(table, retention)))),
            enforce_retention_duration=False,
            keep_versions=[kept.version],
        )
        try:
            # A vacuum keeps versions, as long as the log has them, and no files.
            files = keeper.remove(lake.path(name), vacuumed(dry_run=True))
        except DeltaError as error:
            # A version whose log entry is gone already cannot be kept, nor does anybody read it.
            log.warning("%s was not vacuumed: %s", name, error)
            continue
        if files:
            removed[name] = len(files)
    return removed


class Upkeep:
    """Looks after tables beside ingest: compaction soon, vacuum now and then. One at a time."""

    def __init__(
        self,
        lake: Lake,
        *,
        retention: timedelta,
        current_bytes: int | None = None,
        derived: Callable[[], Iterable[str]] = tuple,
        prune: Callable[[], object] = tuple,
        leftovers: Callable[[], object] = tuple,
        needed: Callable[[], Collection[str]] = tuple,
        large: LargeCompaction | None = None,
    ) -> None:
        """`derived` names the typed, history and projection tables; for the vacuum only.

        `prune` removes rows that are too old, before each vacuum; `leftovers` what generations
        left, as often. `needed`: ids of savepoints that stay though they have expired.
        `current_bytes` is what old versions of `current` tables take at most; None
        for no bound. `large` compacts much.
        """
        self._lake = lake
        self._retention = retention
        self._current_bytes = current_bytes
        # Handles of its own: ingest refreshes its own meanwhile.
        self._tables = Tables()
        self._savepoints = SavepointBook(lake, self._tables)
        self._at: Mapping[str, TableAt] = {}
        self._derived = derived
        self._prune, self._leftovers, self._needed = prune, leftovers, needed
        self._large = large
        self.troubles: dict[str, str] = {}
        """What could not be done the last time, by the kind of work or the table."""
        self._failed = False
        self._failures: dict[str, int] = {}
        self.loop = Loop("upkeep")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def committed(self, at: Mapping[str, TableAt]) -> None:
        """Take note of what the newest epoch names. Returns at once."""
        self._at = at
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End after the table that it is at."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        works = {self.trim: TRIM_EVERY, self.look: LOOK_EVERY, self._vacuum: VACUUM_EVERY}
        works[self.leftovers] = VACUUM_EVERY
        # Ingest may wait for room; and what was removed before a long rest, logs forget soon.
        due = dict.fromkeys(works, -math.inf) | {self.look: time.monotonic() + _seconds(LOOK_EVERY)}
        while not self._stop.wait(_REST_S):
            for work, every in works.items():
                if time.monotonic() >= due[work]:
                    due[work] = time.monotonic() + self.rest_after(work, every)

    def rest_after(self, work: Callable[[], object], every: timedelta) -> float:
        """Do some work; return the seconds until it is due again.

        Nothing depends on it. Where any of it failed it is tried again soon, then later and later.
        """
        kind = work.__name__.strip("_")
        self._failed = False
        try:
            with self.loop.working(kind):
                work()
        except Exception as error:
            log.warning("upkeep: %s", error, exc_info=error)
            self.troubles[kind] = first_line(error)[:500]
            self._failed = True
        else:
            self.troubles.pop(kind, None)
        if not self._failed:
            self._failures.pop(kind, None)
            return _seconds(every)
        failures = self._failures[kind] = self._failures.get(kind, 0) + 1
        return min(_seconds(every), AGAIN_AFTER_S * 2.0 ** min(failures - 1, 12))

    def _vacuum(self) -> None:
        with self._of("epochs"):
            self._prune()
        with self._of("savepoints"):
            self._savepoints.expire(needed=self._needed)
        for name, at in self._kept().items():
            if self._stop.is_set():
                break
            with self._of(name):
                vacuum(
                    self._lake,
                    self._tables,
                    {name: at},
                    retention=self._retention,
                    keeper=self._savepoints,
                )
                if not name.startswith("current/"):
                    remove_left_over(self._lake.path(name), at.version, keeper=self._savepoints)

    def leftovers(self) -> None:
        """Remove now what generations left. Beside the vacuum: their errors are their own."""
        self._leftovers()

    def _kept(self) -> dict[str, TableAt]:
        """Return all tables whose files are replaced: as epochs name them, else as they are."""
        found = dict(self._at)
        for name in {*UNNAMED, *self._derived()} - {*found}:
            with self._of(name):
                table = self._tables.open(self._lake.path(name))
                if table is not None:
                    found[name] = TableAt(version=table.version(), as_of_epoch=0)
        return found

    def trim(self) -> int:
        """Remove old files of `current` tables beyond their bound; return how many."""
        if self._current_bytes is None:
            return 0
        tables = {
            self._lake.path(name): at.version
            for name, at in self._at.items()
            if name.startswith("current/") and not name.startswith(FOLDER)
        }
        removed = trim(tables, most_bytes=self._current_bytes, keeper=self._savepoints)
        if removed:
            log.info("removed %d old files of current tables, to stay within their bound", removed)
        return removed

    def look(self) -> list[str]:
        """Compact now what has many small files; return the names."""
        logs = (name for name in self._at if name.startswith(APPENDED))
        names = dict.fromkeys((*UNNAMED, *logs))
        found: list[str] = []
        for name in names:
            if self._stop.is_set():
                break
            with self._of(name):
                found += compact(self._lake, self._tables, [name], self._large)
        return found

    @contextmanager
    def _of(self, name: str) -> Iterator[None]:
        """Keep an error of the block as that of one table: the others are looked after."""
        attempts = Attempts()
        passed(f"upkeep of {name}")
        with attempts.of(name):
            yield
            self.troubles.pop(name, None)
        self._failed = self._failed or bool(attempts.failed)
        self.troubles |= {name: first_line(error)[:500] for name, error in attempts.failed.items()}


def _seconds(time: timedelta) -> float:
    return time.total_seconds()


def _hours(time: timedelta) -> int:
    return int(time / timedelta(hours=1))
