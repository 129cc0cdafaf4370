"""The newest events in memory, read once for all who follow.

    store -> Tail (the last events) -> [ feed | feed | … ]

1. Who follows asks for the page behind its position. What is in memory is given from there, each
   filter applied.
2. Whoever stands at the end of memory waits. One task watches the head for all of them and lets
   memory be read on from the store. Those whose filter lets one of the new events pass are woken:
   an append costs a reader nothing that it does not concern.
3. Memory is bounded by bytes: the oldest events leave it. Who is behind them, or far behind the
   head, reads pages of the store as if there was no memory.

Positions have no gaps, so an unbroken stretch of positions is an unbroken part of the store.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from eventstore.feed import PAGE, Head, Pages
from eventstore.sizes import PAGE_BYTES, memory_of
from eventstore.store import EVERYTHING, EventFilter, EventPage
from kernel.positions import Position
from schemas.records import RecordedEvent

FRESH_S = 0.1
"""An answer of the store is good for so long, unless the head is known to have moved since."""
POLL_S = 1.0
"""So often the store is asked for appends by other processes."""


@dataclass(slots=True)
class _Kept:
    event: RecordedEvent
    size: int
    document: bytes | None = None


class _Waiting:
    """Those who wait for what one filter lets pass, the first of them since a position."""

    __slots__ = ("count", "more", "since")

    def __init__(self, since: int) -> None:
        self.more = asyncio.Event()
        self.since = since
        self.count = 0


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
        self._waiting: dict[EventFilter, _Waiting] = {}
        self._watching: asyncio.Task[None] | None = None

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

    async def beyond(self, position: int, *, filter_: EventFilter, timeout_s: float) -> None:
        """Wait until a filter lets more pass behind a position, or for about so long.

        Ends too when so much else came that it is worth a word (`PAGE` events).
        """
        if not self._max_bytes:
            await self._head.beyond(position, timeout_s=min(timeout_s, POLL_S))
            return
        if position > self._end + PAGE:
            self._begin_at(position)
        if self._end > position or self._head.closed:
            return
        waiting = self._waiting.setdefault(filter_, _Waiting(position))
        waiting.count += 1
        try:
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch(timeout_s), name="watch the head")
            await waiting.more.wait()
        finally:
            waiting.count -= 1
            if not waiting.count and self._waiting.get(filter_) is waiting:
                del self._waiting[filter_]

    async def _watch(self, tick_s: float) -> None:
        """Read on for all who wait, and wake all of them once per tick."""
        now = asyncio.get_running_loop().time
        tick_at = now() + tick_s
        try:
            while self._waiting:
                pause_s = max(0.0, min(POLL_S, tick_at - now()))
                await self._head.beyond(self._end, timeout_s=pause_s)
                if self._head.closed:
                    break
                try:
                    await self._read_on(self._end)
                except Exception:
                    break  # Those who wait read for themselves, and are told.
                if now() >= tick_at:
                    self._wake_all()
                    tick_at = now() + tick_s
        finally:
            self._watching = None
            self._wake_all()

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            each.more.set()

    def _wake_for(self, events: Sequence[RecordedEvent]) -> None:
        """Wake those whom new events concern: memory has them, and ends with the last of them."""
        for filter_, waiting in [*self._waiting.items()]:
            if self._end - waiting.since >= PAGE or any(map(filter_.passes, events)):
                del self._waiting[filter_]
                waiting.more.set()

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
        page = await self._newer(begun_at)
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
        self._wake_for(page.events)

    async def _newer(self, after: int) -> EventPage:
        """Read a page; without asking for the head where that is known to be further."""
        read = partial(self._pages.read_all, after=after, limit=PAGE, filter_=EVERYTHING)
        known = self._head.position
        if known > after:
            page = await read(up_to=known)
            if page.events:
                return page
        return await read()  # What was there and is not any more is noticed by the store.

    def _read_ended(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        # Those who waited were told; perhaps nobody was left.
        if task.cancelled() or task.exception() is not None:
            self._asked_at = -math.inf  # It was no answer: who reads next asks again, and is told.

    def _begin_at(self, position: int) -> None:
        self._wake_all()  # Whoever waited at another end reads what lies between by itself.
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
        """Return a page of memory."""
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
