"""Answers without end over HTTP: server-sent events, or the same items as lines of JSON.

follow      -> event_chunks      -> FeedResponse -> socket
row changes -> ChangeFeed.chunks -> FeedResponse -> socket
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import assert_never

from fastapi.responses import StreamingResponse

from eventstore.feed import CaughtUp, Checkpoint, FeedItem, Idle
from kernel.errors import PenstockError
from kernel.positions import Position
from schemas.records import RecordedEvent
from service.connections import WatchedProtocol, connection_of
from service.feed_messages import Chunk, Form, Written
from service.http import Receive, Scope, Send
from service.ndjson import NDJSON
from service.problems import problem_of
from service.runtime import Runtime

Feed = AsyncGenerator[Sequence[FeedItem], None]
Chunks = AsyncGenerator[Chunk, None]
Document = Callable[[RecordedEvent], Awaitable[bytes]]
"""Gives an event as it is shown to callers."""


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
        self._connection: WatchedProtocol | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the feed until the client or the service leaves, or the client is too slow."""
        runtime = self._runtime
        async with aclosing(self._chunks):
            with runtime.streams.entered(scope):
                runtime.metrics.subscribers.inc()
                connection = connection_of(scope)
                if connection is not None:
                    connection.polite = True
                self._connection = connection
                try:
                    await super().__call__(scope, receive, send)
                finally:
                    runtime.metrics.subscribers.dec()

    async def stream_response(self, send: Send) -> None:
        """Send the head of the answer, and what comes, as it comes."""
        status, headers = self.status_code, self.raw_headers
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await _say(send, self._form.opening)
        try:
            chunk: Chunk | None = self._first
            while chunk is not None and not self._evicted:
                await self._pass(chunk, send)
                chunk = None if self._evicted else await anext(self._chunks, None)
        except PenstockError as error:
            # The answer began long ago: its status cannot say it any more.
            await _say(send, self._form.failed(problem_of(error).body()))
        if self._evicted:
            self._runtime.metrics.evicted.inc()
            await _say(send, self._farewell)
        await _say(send, b"", more=False)

    @property
    def _evicted(self) -> bool:
        return self._connection is not None and self._connection.evicted

    async def _pass(self, chunk: Chunk, send: Send) -> None:
        self._runtime.metrics.delivered.inc(chunk.count)
        await _say(send, chunk.body)
        self._farewell = chunk.farewell or self._farewell


async def _say(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def event_chunks(
    feed: Feed, start: Position, form: Form, document: Document, written: Written | None = None
) -> Chunks:
    """Write the items of a feed of events that began behind a position.

    `written` is shared by feeds whose events are written by the same `document`.
    """
    last = start
    async with aclosing(feed):
        async for items in feed:
            chunk = None if written is None else written.find(form, items)
            last = _last(items, last)
            if chunk is None:
                messages = [await _message(item, form, document) for item in items]
                chunk = Chunk(
                    body=b"".join(messages),
                    farewell=form.named("evicted", last),
                    count=sum(isinstance(item, RecordedEvent) for item in items),
                )
                if written is not None:
                    written.keep(form, items, chunk)
            yield chunk


def _last(items: Sequence[FeedItem], before: Position) -> Position:
    """Return the position up to which a client has all that it asked for."""
    for item in reversed(items):
        if not isinstance(item, Idle):
            return item.position
    return before


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
