"""Answers without end over HTTP: server-sent events, or the same items as lines of JSON.

follow      -> event_chunks -> EventFeeds.chunks -> FeedResponse -> socket
row changes -> ChangeFeed.chunks                 -> FeedResponse -> socket
"""

from __future__ import annotations

from contextlib import aclosing

from fastapi.responses import StreamingResponse

from kernel.errors import PenstockError
from service.connections import WatchedProtocol, connection_of
from service.feed_messages import Chunk, Chunks, Form
from service.http import Receive, Scope, Send
from service.problems import problem_of
from service.runtime import Runtime


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
