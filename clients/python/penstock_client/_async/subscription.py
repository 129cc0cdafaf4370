"""Following all events: history, then what happens, over as many connections as it takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from penstock_client._async.connection import AsyncConnection
from penstock_client.errors import PenstockError, Unavailable, error_of
from penstock_client.lines import Lines, Message, Messages
from penstock_client.model import CaughtUp, Event
from penstock_client.wire import event_of, load

SILENCE_S = 45.0
"""A feed is dead after so long without a byte: the service gives a sign each 15 seconds."""


class AsyncSubscription:
    """Events behind a position, in order, each once, without end; `CaughtUp` in between.

    A broken connection is made again from the last position, with growing waits; `CaughtUp` comes
    again then. After `Retry.reconnects` failures in a row the last one is raised. Close it, or
    use it as a context manager: it holds a connection. It is for one task.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        *,
        after: int | str,
        filters: Mapping[str, str],
        silence_s: float = SILENCE_S,
    ) -> None:
        self._connection = connection
        self._after = after
        self._filters = filters
        self._silence_s = silence_s
        self._feed = self._items()

    @property
    def position(self) -> int | None:
        """Where a later subscription goes on: all up to here was given, or did not match.

        None until a subscription from `end` has heard where that is.
        """
        return self._after if isinstance(self._after, int) else None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event | CaughtUp:
        return await self._feed.__anext__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it and give its connection back."""
        await self._feed.aclose()

    async def _items(self) -> AsyncGenerator[Event | CaughtUp, None]:
        failures = 0
        while True:
            error: PenstockError = Unavailable("the feed ended", remedy="It is opened again.")
            try:
                async with aclosing(self._messages()) as messages:
                    async for message in messages:
                        failures = 0
                        item = self._taken(message)
                        if item is not None:
                            yield item
            except PenstockError as caught:
                if not caught.worth_a_retry:
                    raise
                error = caught
            failures += 1
            if failures >= self._connection.retry.reconnects:
                raise error
            await self._connection.pause(failures, error)

    def _taken(self, message: Message) -> Event | CaughtUp | None:
        """Note the position of a message; return what the caller is to see of it."""
        if not message.data:
            return None
        document: Any = load(message.data)
        known = self._after if isinstance(self._after, int) else -1
        if message.event == "":
            event = event_of(document)
            if event.position <= known:
                return None
            self._after = event.position
            return event
        if message.event in ("caught-up", "checkpoint"):
            self._after = max(known, int(document["position"]))
            return CaughtUp(position=self._after) if message.event == "caught-up" else None
        if message.event == "failed":
            raise error_of(int(document["status"]), message.data, {})
        return None

    async def _messages(self) -> AsyncGenerator[Message, None]:
        lines, messages = Lines(), Messages()
        async with self._connection.pieces(
            "/v1/events/subscribe",
            params={"after": self._after, **self._filters},
            headers={"accept": "text/event-stream"},
            silence_s=self._silence_s,
        ) as (_, pieces):
            async for piece in pieces:
                for line in lines.feed(piece):
                    message = messages.feed(line)
                    if message is not None:
                        yield message
