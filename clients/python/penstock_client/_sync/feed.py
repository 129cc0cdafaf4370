# Written by generate_sync.py from penstock_client/_async/feed.py: edit that file.
"""Answers without end: server-sent events over as many connections as it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import closing
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock_client._sync.connection import Connection
from penstock_client.errors import PenstockError, Unavailable, error_of
from penstock_client.lines import Lines, Message, Messages
from penstock_client.wire import load

SILENCE_S = 45.0
"""A feed is dead after so long without a byte: the service gives a sign each 15 seconds."""

Item = TypeVar("Item")


class Feed(ABC, Generic[Item]):
    """Items in order, each once, without end.

    A broken connection is made again from the last place, with growing waits. After
    `Retry.reconnects` failures in a row the last one is raised. Close it, or use it as a context
    manager: it holds a connection. It is for one thread.
    """

    def __init__(self, connection: Connection, path: str, *, silence_s: float) -> None:
        self._connection = connection
        self._path = path
        self._silence_s = silence_s
        self._feed = self._items()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        try:
            return self._feed.__next__()
        except KeyboardInterrupt:
            # What was broken off has ended; who waits anew goes on from the last place.
            self._feed = self._items()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it and give its connection back."""
        self._feed.close()

    @abstractmethod
    def _asked(self) -> Mapping[str, Any]:
        """Return the parameters by which the feed goes on from where it is."""

    @abstractmethod
    def _taken(self, message: Message, document: Any) -> Item | None:
        """Note the place of a message; return what the caller is to see of it."""

    def _items(self) -> Generator[Item, None, None]:
        failures = 0
        while True:
            error: PenstockError = Unavailable("the feed ended", remedy="It is opened again.")
            opened = False
            try:
                with closing(self._messages()) as messages:
                    for message in messages:
                        # The first sign of life says only that the feed was opened.
                        if opened or message.data:
                            failures = 0
                        opened = True
                        item = self._item(message)
                        if item is not None:
                            yield item
            except PenstockError as caught:
                if not caught.worth_a_retry:
                    raise
                error = caught
            failures += 1
            if failures >= self._connection.retry.reconnects:
                raise error
            self._connection.pause(failures, error)

    def _item(self, message: Message) -> Item | None:
        if not message.data:
            return None
        document: Any = load(message.data)
        if message.event == "failed":
            raise error_of(int(document["status"]), message.data, {})
        return self._taken(message, document)

    def _messages(self) -> Generator[Message, None, None]:
        lines, messages = Lines(), Messages()
        with self._connection.pieces(
            self._path,
            params=self._asked(),
            headers={"accept": "text/event-stream"},
            silence_s=self._silence_s,
        ) as (_, pieces):
            for piece in pieces:
                for line in lines.feed(piece):
                    message = messages.feed(line)
                    if message is not None:
                        yield message
