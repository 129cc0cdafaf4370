"""Answers without end over HTTP: server-sent events, or the same items as lines of JSON.

follow      -> event_chunks      -> FeedResponse -> socket
row changes -> ChangeFeed.chunks -> FeedResponse -> socket
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import assert_never

from fastapi.responses import StreamingResponse

from apps.service.connections import WatchedProtocol, connection_of
from apps.service.http import Receive, Scope, Send
from apps.service.ndjson import NDJSON
from apps.service.problems import problem_of
from apps.service.runtime import Runtime
from eventstore.feed import CaughtUp, Checkpoint, FeedItem, Idle
from kernel.errors import PenstockError
from kernel.positions import Position
from schemas.records import RecordedEvent

Feed = AsyncGenerator[list[FeedItem], None]
Chunks = AsyncGenerator["Chunk", None]
Document = Callable[[RecordedEvent], Awaitable[bytes]]
"""Gives an event as it is shown to callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Messages as they are sent, what tells a slow client how far it got with them, and how many
    events or changes they are.
    """

    body: bytes
    farewell: bytes = b""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How items are written."""

    media_type: str
    opening: bytes
    heartbeat: bytes
    event: Callable[[int, bytes], bytes]
    named: Callable[[str, int], bytes]
    failed: Callable[[bytes], bytes]


# A comment opens the stream, so that clients see it before the first event.
SSE = Form(
    media_type="text/event-stream",
    opening=b": penstock\n\n",
    heartbeat=b": heartbeat\n\n",
    event=lambda position, document: b"id: %d\ndata: %b\n\n" % (position, document),
    named=lambda name, position: (
        b'event: %b\nid: %d\ndata: {"position":%d}\n\n' % (name.encode(), position, position)
    ),
    failed=lambda problem: b"event: failed\ndata: %b\n\n" % problem,
)
LINES = Form(
    media_type=NDJSON,
    opening=b"",
    heartbeat=b'{"event":"heartbeat"}\n',
    event=lambda _position, document: document + b"\n",
    named=lambda name, position: b'{"event":"%b","position":%d}\n' % (name.encode(), position),
    failed=lambda problem: b'{"event":"failed","problem":%b}\n' % problem,
)


class FeedResponse(StreamingResponse):
    """An answer without end, which counts as the client's until it is over.

    `farewell` is told to a client who is too slow for the very first message.
    """

    def __init__(
        self, runtime: Runtime, form: Form, chunks: Chunks, first: Chunk, farewell: bytes
    ) -> None:
        super().__init__(
            iter(()),
            media_type=form.media_type,
            headers={
                "cache-control": "no-store",
                "x-accel-buffering": "no",
                "connection": "close",
            },
        )
        self._runtime = runtime
        self._form = form
        self._chunks = chunks
        self._first = first
        self._farewell = farewell

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the feed until the client or the service leaves, or the client is too slow."""
        runtime = self._runtime
        async with aclosing(self._chunks):
            with runtime.streams.entered(scope):
                runtime.metrics.subscribers.inc()
                connection = connection_of(scope)
                if connection is not None:
                    connection.polite = True
                self.body_iterator = self._messages(connection)
                try:
                    await super().__call__(scope, receive, send)
                finally:
                    runtime.metrics.subscribers.dec()

    async def _messages(self, connection: WatchedProtocol | None) -> AsyncIterator[bytes]:
        form, farewell = self._form, self._farewell
        yield form.opening
        try:
            async for chunk in self._all_chunks():
                if connection is not None and connection.evicted:
                    break
                self._runtime.metrics.delivered.inc(chunk.count)
                yield chunk.body
                farewell = chunk.farewell or farewell
                if connection is not None and connection.evicted:
                    break
        except PenstockError as error:
            # The answer began long ago: its status cannot say it any more.
            yield form.failed(problem_of(error).body())
        if connection is not None and connection.evicted:
            self._runtime.metrics.evicted.inc()
            yield farewell

    async def _all_chunks(self) -> AsyncIterator[Chunk]:
        yield self._first
        async for chunk in self._chunks:
            yield chunk


async def event_chunks(feed: Feed, start: Position, form: Form, document: Document) -> Chunks:
    """Write the items of a feed of events that began behind a position."""
    last = start
    async with aclosing(feed):
        async for items in feed:
            messages = [await _message(item, form, document) for item in items]
            last = _last(items, last)
            yield Chunk(
                body=b"".join(messages),
                farewell=form.named("evicted", last),
                count=sum(isinstance(item, RecordedEvent) for item in items),
            )


def _last(items: list[FeedItem], before: Position) -> Position:
    """Return the position up to which a client has all that it asked for."""
    return max((item.position for item in items if not isinstance(item, Idle)), default=before)


async def _message(item: FeedItem, form: Form, document: Document) -> bytes:
    match item:
        case RecordedEvent():
            return form.event(item.position, await document(item))
        case CaughtUp(position=position):
            return form.named("caught-up", position)
        case Checkpoint(position=position):
            return form.named("checkpoint", position)
        case Idle():
            return form.heartbeat
        case _:
            assert_never(item)
