"""Puts many small files together. Rows, statistics and guards stay; old versions stay readable.

Each table is compacted by the thread that writes it, so that no merge of ours meets it.
"""

from __future__ import annotations

from collections.abc import Iterable

from deltalake.exceptions import CommitFailedError

from projections.log.layout import Lake
from projections.log.tables import Tables

MANY_FILES = 96


def compact(lake: Lake, tables: Tables, names: Iterable[str]) -> list[str]:
    """Compact those of the named tables that have many files; return their names.

    A table that another writer changes at the same moment is left for the next time.
    """
    done: list[str] = []
    for name in names:
        table = tables.open(lake.path(name))
        if table is None or len(table.file_uris()) < MANY_FILES:
            continue
        try:
            table.optimize.compact()
        except CommitFailedError:
            continue
        tables.forget(lake.path(name))
        done.append(name)
    return done
