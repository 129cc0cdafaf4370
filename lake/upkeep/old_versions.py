"""Bounds what the old versions of tables take on the disk that are rewritten all the time.

Each version of a large `current` table is nearly a copy of it, and a new one comes every second or
two. Kept for days, as versions of other tables are, they fill any disk. So the old files of all
such tables together have a bound in bytes, and those that were written first are removed first.
What Delta's own vacuum takes is a number of hours, which is too coarse for that.

A file goes only when Delta's log says that a version removed it from the table, or when no version
has it a day after it was written: what somebody is writing at the moment is in no danger. The
latter goes for tables of all kinds: see `remove_left_over`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import timedelta

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.log_lengths import kept_for
from lake.removals import NOBODY, Keeper
from lake.storage import Stored, files_below, files_in, place_of, version_at
from lake.table_files import live_files, removed_files

KEPT_FOR = timedelta(minutes=10)
"""A version that was the newest at some moment since then is kept: somebody may be reading it."""
LEFT_OVER = timedelta(days=8)
"""A file that old which no version has comes from a writer that died. The log tells for seven days
which files were removed; of a busy table for less long, and then less is enough."""

log = logging.getLogger("penstock.upkeep")


def trim(
    tables: Mapping[str, int],
    *,
    most_bytes: int,
    keeper: Keeper = NOBODY,
    kept_for: timedelta = KEPT_FOR,
    now: float | None = None,
) -> int:
    """Remove the oldest files of superseded versions beyond `most_bytes`; return how many.

    `tables` maps the folders of tables to the version that the newest epoch names. That one and
    all later ones stay readable, and so do those that were the newest within `kept_for`. Files
    that no version has go when they are old enough. A table that cannot be read is left as it is.
    Files that `keeper` knows somebody needs stay, and do not count.
    """
    now = time.time() if now is None else now
    removed = 0
    old: dict[str, list[Stored]] = {}
    for folder in tables:
        with _told(folder):
            files = _superseded(folder, keeper)
            gone = _removed(folder, files)
            old[folder] = [files[name] for name in gone]
            before = now - _left_over(folder).total_seconds()
            removed += _unlink(
                folder,
                (f for n, f in files.items() if n not in gone and f.written < before),
                keeper,
            )
    since = _fit_since([file for files in old.values() for file in files], most_bytes)
    if since is None:
        return removed
    for folder in old:
        with _told(folder):
            kept = _first_kept(folder, since, now - kept_for.total_seconds())
            if kept is not None:
                files = _superseded(folder, keeper)
                gone = _removed(folder, files, min(kept, tables[folder]))
                removed += _unlink(folder, (files[name] for name in gone), keeper)
    return removed


def remove_left_over(folder: str, version: int, *, keeper: Keeper = NOBODY) -> int:
    """Remove what writers left that died, once it is old enough; return how many files.

    For tables that are not trimmed: a vacuum removes what the log knows, and the log knows nothing
    of it. `version` is the one that the newest epoch names. What lies beneath in folders of its
    own, as generations do, is left alone.
    """
    with _told(folder):
        before = time.time() - _left_over(folder).total_seconds()
        place = place_of(folder)[1]
        found = {
            f.path.removeprefix(f"{place}/") for f in files_below(folder) if f.written < before
        }
        # Looked up last: what is committed meanwhile is not taken for a left-over.
        table = DeltaTable(folder)
        left = {path for path in found if _of_rows(path)} - live_files(table)
        if left:
            left -= removed_files(table) | live_files(DeltaTable(folder, version=version))
            return len(keeper.remove(folder, sorted(left)))
    return 0


def _of_rows(path: str) -> bool:
    """Say whether a file below a table's root is of its rows, among partitions or without."""
    *folders, name = path.split("/")
    return ".parquet" in name and name[0] not in "._" and all("=" in each for each in folders)


def _fit_since(files: list[Stored], most_bytes: int) -> float | None:
    """Return from which moment on files fit into the bound; None where all do."""
    since, left = float("inf"), most_bytes
    for file in sorted(files, key=lambda file: file.written, reverse=True):
        left -= file.size
        if left < 0:
            return since
        since = file.written
    return None


def _first_kept(folder: str, since: float, young: float) -> int | None:
    """Return the first version that stays; None where all do.

    The first one that was committed after `since` (the newest, if there is none), but at most the
    one that was the newest at the moment `young`.
    """
    first = version = int(DeltaTable(folder).version())
    standing: int | None = None
    while (committed := _committed(folder, version)) is not None:
        if committed > since:
            first = version
        if standing is None and committed <= young:
            standing = version
        if committed <= min(since, young):
            break
        version -= 1
    return None if standing is None else min(first, standing)


def _committed(folder: str, version: int) -> float | None:
    # None before the first version, or where the log was cleaned up.
    return None if (found := version_at(folder, version)) is None else found.written


def _superseded(folder: str, keeper: Keeper) -> dict[str, Stored]:
    """Return the files, by name, that the newest version lacks and nobody needs."""
    # A writer that is killed leaves `….parquet#1`.
    found = {file.name: file for file in files_in(folder) if ".parquet" in file.name}
    # Looked up last: what is committed meanwhile is not taken for a left-over.
    for name in live_files(DeltaTable(folder)) | keeper.held_in(folder):
        found.pop(name, None)
    return found


def _removed(folder: str, among: Collection[str], version: int | None = None) -> set[str]:
    """Return those names that versions up to this one removed from the table."""
    return removed_files(DeltaTable(folder, version=version)) & {*among}


def _left_over(folder: str) -> timedelta:
    return min(LEFT_OVER, kept_for(DeltaTable(folder), LEFT_OVER) + timedelta(days=1))


def _unlink(folder: str, files: Iterable[Stored], keeper: Keeper) -> int:
    return len(keeper.remove(folder, [file.name for file in files]))


@contextlib.contextmanager
def _told(folder: str) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError) as error:
        log.warning("old files of %s stay: %s", folder, error)
