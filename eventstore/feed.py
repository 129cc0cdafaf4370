"""Readers follow the head: from any position through history into what happens now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from eventstore.store import EventFilter, EventPage
from kernel.errors import BeyondHead, StoreDiverged
from kernel.positions import Position
from schemas.records import RecordedEvent

PAGE = 1_000
"""Events in one read; also how often a filtered feed says how far it is."""


_STRETCH = 10 * PAGE
_BEAT = 0.25
"""So much of the time without a word passes between two looks at whether it is over."""


class Pages(Protocol):
    """A store, as its newest events are read for feeds."""

    async def head(self) -> Position:
        """Return the last position."""
        ...

    async def read_all(
        self, *, after: int, limit: int, filter_: EventFilter, up_to: Position | None = None
    ) -> EventPage:
        """Return a page of events; see `EventStore.read_all`.

        `up_to` is a position that the store is known to have come to: the page says that it is the
        head, and nobody is asked.
        """
        ...


class Followed(Protocol):
    """Pages of a store, and word of more of them."""

    async def head(self) -> Position:
        """Return the last position."""
        ...

    async def read_all(self, *, after: int, limit: int, filter_: EventFilter) -> EventPage:
        """Return a page of events; see `EventStore.read_all`."""
        ...

    async def beyond(self, position: int, *, timeout_s: float) -> None:
        """Wait until there is more behind a position, at most for about so long."""
        ...


class Head:
    """The store's last position as far as this process knows; wakes those who wait for more."""

    def __init__(self) -> None:
        self.position = Position(0)
        self.closed = False
        self._moved = asyncio.Event()

    def close(self) -> None:
        """Wake everybody for the last time: feeds end after what they have read."""
        self.closed = True
        self._moved.set()

    def advance(self, head: Position) -> None:
        """Learn of a new head. An older one than known is ignored: answers overtake each other."""
        if head > self.position:
            self.position = head
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    def check(self, known: int, found: int) -> None:
        """Raise `StoreDiverged` when the head was found below where it was known to be before the
        question: what was recorded there is gone, and its positions will be used again.
        """
        if found < known:
            raise diverged(found, known)

    async def beyond(self, position: int, *, timeout_s: float) -> bool:
        """Wait until the head is beyond `position`, or the time is up; return whether it is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.position <= position and not self.closed:
                    await self._moved.wait()
        return self.position > position


def diverged(found: int, known: int) -> StoreDiverged:
    """Return the error of a store whose head went backwards."""
    return StoreDiverged(
        f"the store ends at position {found}, and had {known} before: it was restored, or another "
        "server took its place that had not got everything",
        head=found,
        known=known,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """All that there was has been delivered; what follows is live. Comes once."""

    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A filtered feed has looked at everything up to here: a place to resume from."""

    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Nothing happened for a while; the feed lives."""


FeedItem = RecordedEvent | CaughtUp | Checkpoint | Idle


async def follow(
    store: Followed, head: Head, *, after: Position, filter_: EventFilter, idle_s: float
) -> AsyncGenerator[Sequence[FeedItem], None]:
    """Yield every event behind `after`, in order, each once, as much at a time as was read.

    Where nothing is to be said beside events, they are the very ones of the page. Says that it
    lives when `idle_s` without a word are nearly over. Ends only when `head` is closed. Raises
    `BeyondHead` at once when `after` is beyond the head, `Unavailable` when the store is.
    """
    history_end = await store.head()
    if after > history_end:
        raise BeyondHead(
            f"position {after} is beyond the head {history_end}", after=after, head=history_end
        )
    now = asyncio.get_running_loop().time
    caught_up = after == history_end
    position, said, spoke_at = after, after, now()
    if caught_up:
        yield [CaughtUp(position=position)]
    while not head.closed:
        page = await store.read_all(after=position, limit=PAGE, filter_=filter_)
        items: Sequence[FeedItem] = page.events
        if page.scanned_to > position:
            position = page.scanned_to
            if not filter_.everything:
                items, said = _with_checkpoints(page, said, filter_)
            if not caught_up and position >= history_end:
                caught_up = True
                items = [*items, CaughtUp(position=position)]
        elif now() - spoke_at >= idle_s * (1 - _BEAT):
            items = [Idle()]
        if items:
            spoke_at = now()
            yield items
        if page.scanned_to >= page.head:
            head.advance(page.head)
            await store.beyond(position, timeout_s=idle_s * _BEAT)


def _with_checkpoints(
    page: EventPage, said: Position, filter_: EventFilter
) -> tuple[Sequence[FeedItem], Position]:
    """Return a page's events with the checkpoints between them, and what is said with them."""
    items: list[FeedItem] = []
    for event in page.events:
        items += _checkpoints(said, event.position, filter_)
        items.append(event)
        said = event.position
    passed = _checkpoints(said, page.scanned_to, filter_)
    said = passed[-1].position if passed else said
    items += passed
    return (items if len(items) > len(page.events) else page.events), said


def _checkpoints(said: int, position: int, filter_: EventFilter) -> list[Checkpoint]:
    """Return a checkpoint for each `PAGE` positions that had nothing to deliver.

    One is enough where an index led over a long stretch.
    """
    if filter_.everything:
        return []
    if position - said > _STRETCH:
        return [Checkpoint(position=Position(position - (position - said) % PAGE))]
    return [Checkpoint(position=Position(at)) for at in range(said + PAGE, position + 1, PAGE)]
