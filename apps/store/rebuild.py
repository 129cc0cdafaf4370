"""Fills an empty database with the events of a store, from the lake or from an export."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from apps.store.events import StoreEvents
from apps.store.lines import CopyLines
from eventstore.postgres.migrate import migrate
from eventstore.postgres.restoring import Restored, refuse_used, restoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a store is filled. `events` of `head`, `rate` in events a second of this run."""

    events: int
    head: int
    rate: float


async def rebuild(
    events: StoreEvents, dsn: str, *, show: Callable[[Progress], None] = lambda _: None
) -> Restored:
    """Fill the database; one that was left half filled is gone on with.

    Raises `Conflict` for a database that has a store, `Incompatible` where events are missing.
    """
    await refuse_used(dsn)  # Before its schema is touched: it may serve an older version.
    await migrate(dsn)
    contents = events.contents
    started = time.monotonic()
    lines = CopyLines()
    try:
        async with restoring(dsn, contents) as restore:
            begun = done = await restore.begin()
            for part in events.parts(after=begun):
                await restore.copy(lines.of(part))
                done += part.num_rows
                seconds = max(time.monotonic() - started, 1e-6)
                show(Progress(events=done, head=contents.head, rate=(done - begun) / seconds))
            return await restore.finish()
    finally:
        lines.close()
