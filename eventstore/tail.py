"""The newest events in memory, read once for all who follow.

    store -> Tail (the last events) -> [ feed | feed | … ]

1. Who follows asks for the page behind its position. What is in memory is given from there, each
   filter applied.
2. Whoever stands at the end of memory lets it be read on from the store. All who come while that
   read is under way wait for the same answer.
3. Memory is bounded by bytes: the oldest events leave it. Who is behind them, or far behind the
   head, reads pages of the store as if there was no memory.

Positions have no gaps, so an unbroken stretch of positions is an unbroken part of the store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from eventstore.feed import PAGE, Head, Pages
from eventstore.sizes import PAGE_BYTES, memory_of
from eventstore.store import EVERYTHING, EventFilter, EventPage
from kernel.positions import Position
from schemas.records import RecordedEvent

FRESH_S = 0.1
"""An answer of the store is good for so long, unless the head is known to have moved since."""


@dataclass(slots=True)
class _Kept:
    event: RecordedEvent
    size: int
    document: bytes | None = None


class Tail:
    """A reader of pages, like the store that it stands before, for those who follow the head.

    `render` makes the form in which events are sent; each kept event is rendered once.
    """

    def __init__(
        self,
        pages: Pages,
        head: Head,
        *,
        max_bytes: int,
        render: Callable[[RecordedEvent], Awaitable[bytes]],
    ) -> None:
        self._pages = pages
        self._head = head
        self._max_bytes = max_bytes
        self._render = render
        # Every event behind `_start` up to `_end` is kept, by position.
        self._kept: dict[int, _Kept] = {}
        self._start = self._end = 0
        self._bytes = 0
        self._known_head = 0
        self._asked_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that the kept events take."""
        return self._bytes

    async def head(self) -> Position:
        """Return the store's last position."""
        return await self._pages.head()

    async def read_all(
        self, *, after: int, limit: int, filter_: EventFilter = EVERYTHING
    ) -> EventPage:
        """Return what `EventStore.read_all` does, from memory where that has it."""
        if not self._start <= after < self._end and self._is_near(after):
            await self._read_on(after)
        if self._start <= after <= self._end and self._is_near(after):
            page = self._page(after, limit, filter_)
            if page.scanned_to < page.head:
                await asyncio.sleep(0)  # Who catches up in memory lets others run in between.
            return page
        return await self._pages.read_all(after=after, limit=limit, filter_=filter_)

    async def document(self, event: RecordedEvent) -> bytes:
        """Return an event as `render` gives it: made once while the event is kept."""
        kept = self._kept.get(event.position)
        if kept is None or kept.event is not event:
            return await self._render(event)
        if kept.document is None:
            document = await self._render(event)
            if kept.document is None:
                kept.document = document
                self._grow(kept, len(document))
        return kept.document

    def _is_near(self, after: int) -> bool:
        """Whether a reader is where memory is, or so close to the head that it may begin there."""
        if not self._max_bytes or after < self._start:
            return False
        return after < self._end or self._head.position - after <= PAGE

    async def _read_on(self, after: int) -> None:
        """Let memory reach beyond `after`, if the store does."""
        if after > self._end + PAGE:
            # Nobody followed for a while: what lies between is not worth reading.
            self._begin_at(after)
        now = asyncio.get_running_loop().time()
        if self._head.position <= self._end and now - self._asked_at < FRESH_S:
            return
        if self._reading is None:
            self._asked_at = now
            self._reading = asyncio.create_task(self._read(), name="read the tail")
            self._reading.add_done_callback(self._read_ended)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        begun_at = self._end
        page = await self._pages.read_all(after=begun_at, limit=PAGE, filter_=EVERYTHING)
        self._known_head = page.head
        if self._end != begun_at:
            return  # Memory begins elsewhere by now.
        for event in page.events:
            if event.position != self._end + 1:
                self._begin_at(event.position - 1)
            kept = _Kept(event, 0)
            self._kept[event.position] = kept
            self._end = event.position
            self._grow(kept, memory_of(event))

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # Those who waited were told; perhaps nobody was left.

    def _begin_at(self, position: int) -> None:
        self._kept.clear()
        self._bytes = 0
        self._start = self._end = position

    def _grow(self, kept: _Kept, size: int) -> None:
        if self._kept.get(kept.event.position) is not kept:
            return
        kept.size += size
        self._bytes += size
        while self._bytes > self._max_bytes:
            self._start += 1
            self._bytes -= self._kept.pop(self._start).size

    def _page(self, after: int, limit: int, filter_: EventFilter) -> EventPage:
        events: list[RecordedEvent] = []
        scanned_to, size = after, 0
        while scanned_to < self._end and len(events) < limit and size <= PAGE_BYTES:
            scanned_to += 1
            kept = self._kept[scanned_to]
            if filter_.passes(kept.event):
                events.append(kept.event)
                size += kept.size
        return EventPage(
            events=tuple(events),
            scanned_to=Position(scanned_to),
            head=Position(max(self._end, self._known_head)),
        )
