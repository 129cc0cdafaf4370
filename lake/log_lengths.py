"""How long a table keeps its Delta log: the shorter, the more often it is committed to.

deltalake lists the log's folder with every commit: 8 µs for each file in it, so that a table with a
commit a second takes a second for each after a day and a half. And a checkpoint names every file
that was removed within `deletedFileRetentionDuration`, once for every fifty commits within
`logRetentionDuration`: together they grow with the square of the commits, to 300 GB a day.

A log of more than `MOST_COMMITS` therefore keeps less and less. What is lost with it are old
versions; the rows of the newest one stay whatever their age. It is done to the tables that every
epoch commits to. Typed tables, histories and projections keep theirs: rollbacks, rebuilds and
streams read their old versions.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.datasets import location_of
from lake.storage import version_at
from lake.table_settings import KNOWN_LONGER, REMOVED, TABLE_SETTINGS

MOST_COMMITS = 2_000

_LOG = "delta.logRetentionDuration"
_MINUTES = (24 * 60, 4 * 60, 60, 15)
_LEAST = {
    "current/_tail/": 15,
    "current/": 60,
    "log/changes/": 15,
    "log/events/": 15,
    "log/topics/": 15,
}
"""How many minutes at least, by the beginning of a table's name; the first that fits counts."""
_LOOK_EVERY = 100
"""Versions: a checkpoint lies between two looks, and with it the log was cleaned up."""

log = logging.getLogger("penstock.upkeep")


def keeping(minutes: int) -> dict[str, str]:
    """Return the settings of a table that keeps its log for some minutes."""
    removed = minutes + KNOWN_LONGER // timedelta(minutes=1)
    return {_LOG: f"interval {minutes} minutes", REMOVED: f"interval {removed} minutes"}


SHORT = keeping(5)
"""Of a table that is only read as it is now."""


def shorten(name: str, table: DeltaTable, most: int = MOST_COMMITS) -> bool:
    """Have a table keep its log for less long, where it has more than `most` commits in it.

    One that an earlier version made is told to know its removed files for longer than they stay.
    For the table's writer: this is a commit of its own. Returns whether it was made.
    """
    version = table.version()
    if version and not version % _LOOK_EVERY and REMOVED not in table.metadata().configuration:
        return _set(table, {REMOVED: TABLE_SETTINGS[REMOVED]})
    least = next((m for begin, m in _LEAST.items() if name.startswith(begin)), None)
    if least is None or version < most or version % _LOOK_EVERY:
        return False
    if version_at(location_of(table), version - most) is None:
        return False
    now = _minutes(table.metadata().configuration)
    less = [minutes for minutes in _MINUTES if least <= minutes and (now is None or minutes < now)]
    if not less:
        return False
    return _set(table, keeping(less[0]))


def _set(table: DeltaTable, settings: dict[str, str]) -> bool:
    try:
        table.alter.set_table_properties(settings)
    except (DeltaError, OSError) as error:
        log.warning("the log of %s stays as long as it is: %s", table.table_uri, error)
        return False
    return True


def kept_for(table: DeltaTable, usual: timedelta) -> timedelta:
    """Return for how long versions of a table are kept, `usual` being that of all others."""
    minutes = _minutes(table.metadata().configuration)
    return usual if minutes is None else min(usual, timedelta(minutes=minutes))


def _minutes(settings: Mapping[str, str]) -> int | None:
    """Return the minutes that a busy table keeps its log for; None for one that is not."""
    number, _, unit = settings.get(_LOG, "").removeprefix("interval ").partition(" ")
    return int(number) if unit == "minutes" else None
