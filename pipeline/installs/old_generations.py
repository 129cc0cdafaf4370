"""Removes generations of installs that no kept version of their table refers to any more.

A vacuum of the table leaves `_gen` alone: what is being staged there is in no version yet.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.fs as fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.datasets import files_below
from lake.layout import Lake, current_name
from lake.savepoints import SavepointBook
from lake.tables import TableAt, Tables
from pipeline.installs.install_book import DONE, RUN, Install, InstallBook
from pipeline.position.intervals import IntervalSet

log = logging.getLogger("penstock.copy")


def remove_old_generations(
    lake: Lake,
    tables: Tables,
    *,
    taken: IntervalSet,
    kept: Mapping[str, TableAt],
    retention: timedelta,
    now: datetime | None = None,
) -> list[str]:
    """Remove what is older than `retention` and named by no version since; return install ids.

    `taken` are the numbers of installs that ingest has taken in, `kept` the versions that the
    newest epoch names. Staged rows of a copy that goes on, or waits for ingest, stay, and so do
    those that savepoints hold.
    """
    before = (now or datetime.now(UTC)) - retention
    book = InstallBook(lake, tables)
    removed: list[str] = []
    for install in book.installs():
        entry_at = _announced_at(book, install)
        if install.number in taken and entry_at is not None and entry_at < before:
            removed += _remove(
                lake, tables, install.source, install.table, install.id, kept, before
            )
    ended = {entry.id for entry in book.entries() if entry.kind == DONE}
    for entry in book.entries():
        if entry.kind == RUN and entry.id in ended and entry.at is not None and entry.at < before:
            for planned in entry.detail["tables"]:
                removed += _remove(
                    lake, tables, entry.source, planned["table"], planned["install"], kept, before
                )
    return removed


def _announced_at(book: InstallBook, install: Install) -> datetime | None:
    return next((e.at for e in book.entries() if e.number == install.number), None)


def _remove(
    lake: Lake,
    tables: Tables,
    source: str,
    table: str,
    id_: str,
    kept: Mapping[str, TableAt],
    before: datetime,
) -> list[str]:
    name = current_name(source, table)
    path, folder = lake.path(name), f"_gen/{id_}"
    stable = tables.open(path)
    if stable is None:
        return []
    files = files_below(stable)
    if files.get_file_info(folder).type is not fs.FileType.Directory:
        return []
    versions = {stable.version()} | ({kept[name].version} if name in kept else set())
    try:
        held = any(_refers(DeltaTable(path, version=v), folder) for v in versions)
        oldest = DeltaTable(path)
        oldest.load_as_version(before)
        held = held or _refers(oldest, folder)
    except DeltaError as error:
        log.warning("%s in %s is kept: %s", folder, name, error)
        return []
    if held:
        return []
    selector = fs.FileSelector(folder, recursive=True)
    found = [info.path for info in files.get_file_info(selector) if info.type is fs.FileType.File]
    # A savepoint needs some of them, or all.
    if len(SavepointBook(lake, tables).remove(path, found)) < len(found):
        return []
    files.delete_dir(folder)
    return [id_]


def _refers(table: DeltaTable, folder: str) -> bool:
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    return any(path.startswith(f"{folder}/") for path in paths)
