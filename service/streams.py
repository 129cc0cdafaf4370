"""Answers without a foreseeable end: how many there are, of each client and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager

from fastapi.responses import StreamingResponse

from service.connections import ClientLimits
from service.http import Receive, Scope, Send
from service.ndjson import NDJSON
from service.problems import refusal


class Streams:
    """Counts feeds and answers in lines, by the client's address."""

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._open: Counter[str] = Counter()

    @contextmanager
    def entered(self, scope: Scope) -> Iterator[None]:
        """Count an answer for as long as it lasts, or refuse it with 429."""
        client = str((scope.get("client") or ("",))[0])
        self._check(client)
        self._open[client] += 1
        try:
            yield
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def _check(self, client: str) -> None:
        limits = self._limits
        if self._open[client] >= limits.subscriptions:
            whose, most, setting = client, limits.subscriptions, "service.max_subscriptions"
        elif self._open.total() >= limits.streams:
            whose, most, setting = "the service", limits.streams, "service.max_streams"
        else:
            return
        raise refusal(
            429,
            "too-many-subscriptions",
            "Too many streams are open",
            f"{whose} has {most} subscriptions and answers in lines open",
            f"Close one, share one among consumers, or raise {setting}.",
            ("retry-after", "5"),
        )


class LinesResponse(StreamingResponse):
    """Events as lines, which count as one of the client's streams until they are sent."""

    def __init__(
        self, streams: Streams, lines: AsyncIterator[bytes], headers: Mapping[str, str]
    ) -> None:
        super().__init__(lines, media_type=NDJSON, headers=headers)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._streams.entered(scope):
            await super().__call__(scope, receive, send)
