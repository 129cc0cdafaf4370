"""Readers follow the head: from any position through history into what happens now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from eventstore.store import EVERYTHING, EventFilter, EventPage
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

    async def beyond(self, position: int, *, filter_: EventFilter, timeout_s: float) -> None:
        """Wait until a filter lets more pass behind a position, at most for about so long."""
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


@dataclass(slots=True, kw_only=True)
class FeedReach:
    """How far a feed has come: it looked at all up to `position`, and spoke of `said` last.

    `begun` is where the newest look began. `live`: it has said that it caught up, and looked at all
    that there was; it does not begin with history. Who delivers in a feed's stead, while it is not
    asked, moves its place.
    """

    position: Position
    said: Position
    begun: Position
    live: bool = False

    @classmethod
    def at(cls, position: Position) -> FeedReach:
        """Return the place of a feed that has not begun."""
        return cls(position=position, said=position, begun=position)


async def follow(
    store: Followed, head: Head, *, place: FeedReach, filter_: EventFilter, idle_s: float
) -> AsyncGenerator[Sequence[FeedItem], None]:
    """Yield every event behind a place, in order, each once, as much at a time as was read.

    `place` is moved before its items are given. Says that it lives when `idle_s` without a word are
    nearly over. Ends only when `head` is closed. Raises `BeyondHead` at once when the place is
    beyond the head, `Unavailable` when the store is.
    """
    caught_up, history_end = place.live, place.position
    now = asyncio.get_running_loop().time
    spoke_at = now()
    if not caught_up:
        history_end = await _history_end(store, place)
        if caught_up := place.position == history_end:
            place.live = True
            yield [CaughtUp(position=place.position)]
    while not head.closed:
        place.begun = place.position
        page = await store.read_all(after=place.position, limit=PAGE, filter_=filter_)
        items: Sequence[FeedItem] = page.events
        if page.scanned_to > place.position:
            place.position = page.scanned_to
            if filter_.everything:
                place.said = page.scanned_to
            else:
                items, place.said = _with_checkpoints(page, place.said, filter_)
            if not caught_up and place.position >= history_end:
                caught_up = True
                place.said = place.position
                items = [*items, CaughtUp(position=place.position)]
        elif now() - spoke_at >= idle_s * (1 - _BEAT):
            items = [Idle()]
        place.live = caught_up and page.scanned_to >= page.head
        if items:
            spoke_at = now()
            yield items
        if page.scanned_to >= page.head:
            head.advance(page.head)
            # Whatever comes behind a page that was short of the end of history has to be told.
            wanted = filter_ if caught_up else EVERYTHING
            await store.beyond(place.position, filter_=wanted, timeout_s=idle_s * _BEAT)


async def _history_end(store: Followed, place: FeedReach) -> Position:
    """Return where live events begin for a feed. Raises `BeyondHead`."""
    found = await store.head()
    if place.position > found:
        raise BeyondHead(
            f"position {place.position} is beyond the head {found}",
            after=place.position,
            head=found,
        )
    return found


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
