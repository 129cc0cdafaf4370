"""The lake as the service reads it: in a few threads, beside the event loop.

Looks and lookups have threads of their own. What reads whole tables or asks the pipeline waits for
others (`scan`), with a bound; feeds, which wait for each other without one, have theirs (`follow`).

What reads Delta tables is loaded with the first request that needs it: a service that nobody asks
for tables pays nothing. Lookups are answered from memory; whether the lake has moved is looked at
beside them, so an answer may be as old as `STALE_S`, and says of which epoch it is.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kernel.errors import Unavailable
from lake.layout import Lake

if TYPE_CHECKING:
    from projections.serve.keyed_rows import HeldRows
    from projections.serve.lookups import Look, Lookups
    from projections.serve.newest_runs import ServedVersion

T = TypeVar("T")

STALE_S: Final = 1.0
"""How old an answer may be that does not ask for the newest."""
_THREADS: Final = 4
_FEED_THREADS: Final = 2
_MOST_SCANS: Final = 64
"""So many slow reads are under way or wait; another one is refused."""
_LOOK_EVERY_S: Final = 0.05
_ROWS_WAIT_S: Final = 0.05
"""So long a look waits for rows of a new version; longer ones are read beside it."""


class LakeReader:
    """Reads one lake for all requests."""

    def __init__(self, root: str, *, memory_bytes: int) -> None:
        self.lake = Lake.named(root)
        self._memory_bytes = memory_bytes
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lake")
        self._scanners = ThreadPoolExecutor(_THREADS, thread_name_prefix="lake-scan")
        self._feeders = ThreadPoolExecutor(_FEED_THREADS, thread_name_prefix="lake-feed")
        self._scans: set[Future[Any]] = set()
        self._lookups: Lookups | None = None
        self._last: Look | None = None
        self._looked_at = 0.0
        self._looking: asyncio.Task[Look] | None = None
        self._closed = False

    async def call(self, work: Callable[[], T]) -> T:
        """Do something that takes a moment in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def scan(self, work: Callable[[], T]) -> T:
        """Do something that may take seconds. Raises `Unavailable` where too many do so."""
        if len(self._scans) >= _MOST_SCANS:
            raise Unavailable(
                f"{_MOST_SCANS} slow reads of the lake are under way",
                remedy="Ask again in a moment; read large tables with another engine.",
            )
        scan = self._scanners.submit(work)
        self._scans.add(scan)
        scan.add_done_callback(self._scans.discard)
        return await asyncio.wrap_future(scan)

    async def follow(self, work: Callable[[], T]) -> T:
        """Read what a feed sends next."""
        return await asyncio.get_running_loop().run_in_executor(self._feeders, work)

    async def lookups(self) -> Lookups:
        """Return what reads projections, loaded if need be."""
        if self._lookups is None:
            found = await self.call(self._load)
            self._lookups = self._lookups or found
        return self._lookups

    async def served(
        self, name: str, *, newest: bool = False
    ) -> tuple[ServedVersion, HeldRows | None]:
        """Return what is served of a projection, with its rows if they are in memory.

        `newest`: as it is now, and not a moment ago. Raises `NotFound`, `Unavailable`.
        """
        look = await self._look_for(name, newest=newest)
        return look.projections[name], look.rows.get(name)

    async def at_hand(self, name: str) -> tuple[ServedVersion, HeldRows | None]:
        """Return what is served of a projection, or was before while its rows are being read.

        So that nobody waits for all rows of a generation that was swapped in. Raises as `served`.
        """
        look = await self._look_for(name, newest=False)
        return look.before.get(name, (look.projections[name], look.rows.get(name)))

    async def as_of(self, name: str, epoch: int | None) -> tuple[ServedVersion, HeldRows | None]:
        """Return what an epoch of a projection is read by; None: what is at hand.

        What is at hand may be of a generation whose key the rows of another epoch have no more.
        """
        found = await self.at_hand(name)
        if epoch is None or found[0].epoch == epoch:
            return found
        return await self.served(name, newest=True)

    async def awaited(
        self, name: str, store: str, position: int, wait_s: float
    ) -> tuple[ServedVersion, HeldRows | None, bool]:
        """Wait until a projection has an event store's events up to a position.

        Return what is served then, or after `wait_s`, and whether it has them.
        """
        lookups, loop = await self.lookups(), asyncio.get_running_loop()
        limit = loop.time() + wait_s
        while True:
            served, rows = await self.served(name, newest=True)
            applied = await self.call(partial(lookups.applied, served, store, position))
            if applied or loop.time() >= limit or self._closed:
                return served, rows, applied
            await asyncio.sleep(min(_LOOK_EVERY_S, max(limit - loop.time(), 0.0)))

    def close(self) -> None:
        """Let those go who wait."""
        self._closed = True

    async def stop(self) -> None:
        """End the threads."""
        self.close()
        if self._looking is not None:
            await asyncio.gather(self._looking, return_exceptions=True)
        for threads in (self._pool, self._scanners, self._feeders):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _look_for(self, name: str, *, newest: bool) -> Look:
        look = await self._look(newest=newest)
        if name not in look.projections:
            from projections.serve.standings import unknown_projection

            raise unknown_projection(name, look.projections)
        return look

    async def _look(self, *, newest: bool) -> Look:
        now = asyncio.get_running_loop().time()
        if newest and self._looking is not None:
            # That one may have begun too early.
            await asyncio.gather(asyncio.shield(self._looking), return_exceptions=True)
        age = now - self._looked_at
        if self._last is not None and age <= _LOOK_EVERY_S and not newest:
            return self._last
        if self._looking is None:
            self._looking = asyncio.create_task(self._looked(), name="look at the lake")
            self._looking.add_done_callback(self._done)
        if self._last is not None and age <= STALE_S and not newest:
            return self._last
        return await asyncio.shield(self._looking)

    async def _looked(self) -> Look:
        began = asyncio.get_running_loop().time()
        lookups = await self.lookups()
        found = await self.call(lookups.look)
        self._last, self._looked_at = found, began
        return found

    def _done(self, task: asyncio.Task[Look]) -> None:
        self._looking = None
        if not task.cancelled():
            task.exception()  # Whoever waits has it; a look that nobody waits for is made again.

    def _load(self) -> Lookups:
        from projections.serve.lookups import Lookups

        # What was loaded stays: each walk through it stops all requests for a tenth of a second.
        gc.freeze()
        return Lookups(self.lake, most_bytes=self._memory_bytes, wait_s=_ROWS_WAIT_S)
