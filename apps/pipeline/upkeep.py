"""Upkeep of a workspace's lake: how long what is kept, and who removes rows and files by then."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from functools import partial

from apps.settings import Settings
from lake.layout import Lake
from lake.rows import SmallTables
from lake.upkeep.compaction import LargeCompaction, Upkeep
from pipeline.commit.retention import derived_names, forget_old
from replay.book import ReplayBook
from replay.generation_files import remove_leftovers
from replay.slices import builds_by_savepoint
from replay.subject import Site


def upkeep_of(settings: Settings, lake: Lake, large: LargeCompaction | None) -> Upkeep:
    """Return what looks after a lake beside ingest."""
    retention = timedelta(days=settings.number("lake.retention_days"))

    def leftovers() -> None:
        # With handles of its own: ingest refreshes its own meanwhile.
        remove_leftovers(Site(lake=lake), retention=retention)

    def needed() -> Collection[str]:
        return builds_by_savepoint(ReplayBook(lake, SmallTables()))

    return Upkeep(
        lake,
        retention=retention,
        current_bytes=settings.number("lake.current_retention_bytes"),
        derived=partial(derived_names, lake),
        prune=partial(forget_old, lake, retention=retention),
        leftovers=leftovers,
        needed=needed,
        large=large,
    )
