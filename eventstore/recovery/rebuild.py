"""Fills an empty database with the events of a store, from the lake or from an export."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from eventstore.postgres.migrate import migrate
from eventstore.postgres.restoring import PostgresRestore, Restored, refuse_used, restoring
from eventstore.recovery.copy_lines import CopyLines
from eventstore.recovery.events import StoreEvents

COPIES = min(4, os.cpu_count() or 1)
"""Connections that copy at once: making lines takes about as long as storing them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildProgress:
    """How far a store is filled. `events` of `head`, `rate` in events a second of this run."""

    events: int
    head: int
    rate: float


Show = Callable[[RebuildProgress], None]


async def rebuild(
    events: StoreEvents, dsn: str, *, show: Show = lambda _: None, copies: int = COPIES
) -> Restored:
    """Fill the database; one that was left half filled is gone on with.

    Raises `Conflict` for a database that has a store, `Incompatible` where events are missing.
    """
    await refuse_used(dsn)  # Before its schema is touched: it may serve an older version.
    await migrate(dsn)
    async with restoring(dsn, events.contents) as restore:
        missing = await restore.begin()
        await _copy_all(_Parts(events, missing, show), restore, copies)
        return await restore.finish()


async def _copy_all(parts: _Parts, restore: PostgresRestore, copies: int) -> None:
    """Copy by several connections at once. Positions are given: their order does not matter."""
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(copies):
                group.create_task(_copy(parts, restore))
    except ExceptionGroup as errors:
        # The others were stopped for it.
        raise errors.exceptions[0] from None


async def _copy(parts: _Parts, restore: PostgresRestore) -> None:
    lines = CopyLines()
    try:
        async with restore.copier() as copier:
            while (part := await parts.next()) is not None:
                first, last = part["position"][0].as_py(), part["position"][-1].as_py()
                await copier.copy(first, last, await asyncio.to_thread(lines.of, part))
                parts.done(part)
    finally:
        lines.close()


class _Parts:
    """Hands out the parts that are missing, each of them to one taker."""

    def __init__(self, events: StoreEvents, missing: list[tuple[int, int]], show: Show) -> None:
        self._left = _parts(events, missing)
        self._lock = asyncio.Lock()
        self._head = events.contents.head
        self._begun = self._events = self._head - sum(last - first + 1 for first, last in missing)
        self._started = time.monotonic()
        self._show = show

    async def next(self) -> pa.Table | None:
        """Read the next part; None behind the last one."""
        async with self._lock:
            return await asyncio.to_thread(next, self._left, None)

    def done(self, part: pa.Table) -> None:
        """Count a part as copied, and show it."""
        self._events += part.num_rows
        seconds = max(time.monotonic() - self._started, 1e-6)
        rate = (self._events - self._begun) / seconds
        self._show(RebuildProgress(events=self._events, head=self._head, rate=rate))


def _parts(events: StoreEvents, missing: list[tuple[int, int]]) -> Iterator[pa.Table]:
    for first, last in missing:
        yield from events.parts(after=first - 1, up_to=last)
