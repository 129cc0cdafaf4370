"""What many follow alike is read, written and framed once, and goes to each of them in one write.

    history -> a feed of each one's own -> caught up -> [ one feed for all: Channel ] -> connections

1. A reader gets history by itself. Once it has looked at all that there was, it joins the channel
   of those who want the same in the same form.
2. A channel has one feed. What that gives is put on the connection of each member, one after the
   other, without a task of the member's own.
3. Who joins ahead of the channel is passed over until the channel has come there. Who is too slow
   for a write, or joined in the midst of what comes next, leaves before it, and goes on alone from
   its place: in the end it joins again. When a channel ends, each member goes on alone, and meets
   by itself what ended it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from eventstore.feed import FeedReach, Head, follow
from eventstore.store import EventFilter
from eventstore.tail import Tail
from kernel.errors import PenstockError
from kernel.positions import Position
from service.connections import WatchedProtocol, framed
from service.feed_messages import Chunk, Chunks, Document, Form, event_chunks

_log = logging.getLogger("penstock.service")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedKind:
    """What a reader wants, and how: those of one kind get the same bytes."""

    filter_: EventFilter
    form: Form
    upcast: bool


@dataclass(slots=True, eq=False)
class _Member:
    """A reader at its own place, which stands still while it is a member."""

    connection: WatchedProtocol
    place: FeedReach
    left: asyncio.Event = field(default_factory=asyncio.Event)


class _Channel:
    """One feed for all its members."""

    def __init__(self, place: FeedReach, chunks: Chunks, delivered: Callable[[int], None]) -> None:
        self.place = place
        self.members: dict[_Member, None] = {}
        self.task: asyncio.Task[None] | None = None
        self._chunks = chunks
        self._delivered = delivered
        self._given = place.position, place.said

    async def run(self) -> None:
        """Give to all what comes. Raises nothing."""
        try:
            async with aclosing(self._chunks):
                async for chunk in self._chunks:
                    self._give(chunk)
        except PenstockError:
            pass  # Each member meets it by itself, and is told.
        except Exception:
            _log.exception("a channel of feeds failed")

    def end(self) -> None:
        """Let all go on alone."""
        for member in [*self.members]:
            self._release(member, *self._given)

    def _give(self, chunk: Chunk) -> None:
        part, place, takers = framed(chunk.body), self.place, 0
        for member in [*self.members]:
            has = member.place.position
            if has <= place.begun:
                if member.connection.push(part):
                    takers += 1
                else:
                    self._release(member, place.begun, self._given[1])
            elif has < place.position:
                self._release(member, has, member.place.said)
        self._given = place.position, place.said
        self._delivered(takers * chunk.count)

    def _release(self, member: _Member, position: Position, said: Position) -> None:
        del self.members[member]
        theirs = member.place
        theirs.position = max(position, theirs.position)
        theirs.said = max(said, theirs.said)
        member.left.set()


class EventFeeds:
    """Feeds of events of one service. `delivered` is told of events that went to members."""

    def __init__(
        self,
        tail: Tail,
        head: Head,
        *,
        idle_s: float,
        upcast: Document,
        delivered: Callable[[int], None],
    ) -> None:
        self._tail = tail
        self._head = head
        self._idle_s = idle_s
        self._upcast = upcast
        self._delivered = delivered
        self._channels: dict[FeedKind, _Channel] = {}

    async def chunks(
        self, kind: FeedKind, start: Position, connection: WatchedProtocol | None
    ) -> Chunks:
        """Yield what is sent to a reader that has all up to `start`; see `follow`.

        What it gets as a member goes to its connection by itself: before it asks for what follows a
        chunk, it has sent that one. Without a connection it is never a member.
        """
        place = FeedReach.at(start)
        alone = self._alone(kind, place)
        async with aclosing(alone):
            async for chunk in alone:
                yield chunk
                if connection is None or not place.live:
                    continue
                if await self._together(kind, _Member(connection, place)):
                    yield Chunk(body=b"", farewell=kind.form.named("evicted", place.said))

    def _alone(self, kind: FeedKind, place: FeedReach) -> Chunks:
        feed = follow(
            self._tail, self._head, place=place, filter_=kind.filter_, idle_s=self._idle_s
        )
        document = self._upcast if kind.upcast else self._tail.document
        return event_chunks(feed, place, kind.form, document)

    async def _together(self, kind: FeedKind, member: _Member) -> bool:
        """Be a member for as long as that goes well; return whether it was one."""
        channel = self._channel(kind, member.place)
        if channel.place.position > member.place.position:
            return False
        channel.members[member] = None
        try:
            await member.left.wait()
        finally:
            channel.members.pop(member, None)
            if not channel.members:
                self._forget(kind, channel)
                if channel.task is not None:
                    channel.task.cancel()
        return True

    def _channel(self, kind: FeedKind, place: FeedReach) -> _Channel:
        """Return the channel of a kind. It begins where its first member is."""
        channel = self._channels.get(kind)
        if channel is None:
            own = FeedReach(position=place.position, said=place.said, begun=place.begun, live=True)
            channel = _Channel(own, self._alone(kind, own), self._delivered)
            self._channels[kind] = channel
            channel.task = asyncio.create_task(self._run(kind, channel), name="channel of feeds")
        return channel

    async def _run(self, kind: FeedKind, channel: _Channel) -> None:
        try:
            await channel.run()
        finally:
            self._forget(kind, channel)
            channel.end()

    def _forget(self, kind: FeedKind, channel: _Channel) -> None:
        if self._channels.get(kind) is channel:
            del self._channels[kind]
