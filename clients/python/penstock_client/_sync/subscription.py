# Written by generate_sync.py from penstock_client/_async/subscription.py: edit that file.
"""Following all events: history, then what happens, over as many connections as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_client._sync.connection import Connection
from penstock_client._sync.feed import SILENCE_S, Feed
from penstock_client.lines import Message
from penstock_client.model import CaughtUp, Event
from penstock_client.wire import event_of


class Subscription(Feed[Event | CaughtUp]):
    """Events behind a position, in order, each once, without end; `CaughtUp` in between.

    A broken connection is made again from the last position, with growing waits; `CaughtUp` comes
    again then. After `Retry.reconnects` failures in a row the last one is raised. Close it, or
    use it as a context manager: it holds a connection. It is for one thread.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        after: int | str,
        filters: Mapping[str, str],
        silence_s: float = SILENCE_S,
    ) -> None:
        super().__init__(connection, "/v1/events/subscribe", silence_s=silence_s)
        self._after = after
        self._filters = filters

    @property
    def position(self) -> int | None:
        """Where a later subscription goes on: all up to here was given, or did not match.

        None until a subscription from `end` has heard where that is.
        """
        return self._after if isinstance(self._after, int) else None

    def _asked(self) -> Mapping[str, Any]:
        return {"after": self._after, **self._filters}

    def _taken(self, message: Message, document: Any) -> Event | CaughtUp | None:
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
        return None
