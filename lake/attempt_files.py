"""Files that executors wrote for an attempt at an epoch, and that no commit made part of a table.

Their names begin with the epoch, so that they are found when the table has the epoch: before that,
an attempt that is only slow might still commit them.
"""

from __future__ import annotations

import re

from lake import storage
from lake.layout import Lake
from lake.savepoints import SavepointBook
from lake.table_files import live_files, removed_files
from lake.tables import Tables

_EPOCH = re.compile(r"-e(\d+)\.")


def stem_of(epoch: int) -> str:
    """Return what the names of all files begin with that executors write for an epoch."""
    return f"e{epoch}."


def remove_left(lake: Lake, tables: Tables, name: str, epoch: int, *, earlier: bool = False) -> int:
    """Remove files of attempts at an epoch that did not become part of a table; return how many.

    `earlier`: those of earlier epochs too, for a table whose attempts need not come to the same
    epoch again. For when the table has the epoch. What a compaction has taken out meanwhile stays
    as long as other old files do.
    """
    root = lake.path(name)
    found = [
        file
        for file in storage.files_below(root)
        if (of := _EPOCH.search(file.name)) is not None
        and (int(of[1]) == epoch or (earlier and int(of[1]) < epoch))
    ]
    table = tables.open(root)
    if not found or table is None:
        return 0
    table.update_incremental()
    known = live_files(table) | removed_files(table)
    names = {path.rpartition("/")[2] for path in known}
    place = storage.place_of(root)[1]
    left = [file.path.removeprefix(f"{place}/") for file in found if file.name not in names]
    return len(SavepointBook(lake, tables).remove(root, left))
