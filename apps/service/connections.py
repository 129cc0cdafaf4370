"""Connections of clients: how long a silent or slow one is borne, and how many feeds one has.

A client that takes no bytes for a while is let go: what it was sent last is told as the last thing
it gets, should it read on within a short grace, and it resumes from there. One that does not send
the rest of its request is let go too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from apps.service.http import Scope
from apps.service.problems import CONTENT_TYPE, HttpRefusal, refusal

_EXTENSION = "penstock.connection"
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What one client may take: events in a page of JSON, feeds at a time, seconds of taking no
    byte, seconds of sending none.
    """

    page: int = 1_000
    subscriptions: int = 50
    slow_s: float = 30.0
    idle_s: float = 60.0


class WatchedProtocol(HttpToolsProtocol):
    """Speaks HTTP as uvicorn does, and watches the clock over the client."""

    limits = ClientLimits()
    polite = False
    """Whether the answer under way says farewell by itself when it sees `evicted`."""
    patient = False
    """Whether the application watches by itself how the body arrives."""
    evicted = False
    _slow: asyncio.TimerHandle | None = None
    _idle: asyncio.TimerHandle | None = None
    _unsent = 0
    _heard_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch."""
        # Not an instance of the class where the loop is not asyncio's own.
        super().connection_made(cast(asyncio.Transport, transport))
        self._heard_at = self.loop.time()
        self._idle = self.loop.call_later(self.limits.idle_s, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        for timer in (self._slow, self._idle):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hear from the client."""
        self._heard_at = self.loop.time()
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Let the application see the connection."""
        super().on_message_begin()
        self.patient = False
        cast(Scope, self.scope)["extensions"] = {_EXTENSION: self}

    def pause_writing(self) -> None:
        """More waits to be sent than the client takes."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._slow = self.loop.call_later(self.limits.slow_s, self._check_slow)

    def resume_writing(self) -> None:
        """The client has caught up with what was sent."""
        if self._slow is not None:
            self._slow.cancel()
        super().resume_writing()

    def _check_slow(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._unsent = unsent
            self._slow = self.loop.call_later(self.limits.slow_s, self._check_slow)
        elif self.polite and not self.evicted:
            self.evicted = True
            self._slow = self.loop.call_later(_GRACE_S, self.transport.abort)
            self.flow.resume_writing()
        else:
            self.transport.abort()

    def _check_idle(self) -> None:
        answering = self.cycle is not None and not (
            self.cycle.response_complete or (self.cycle.more_body and not self.patient)
        )
        silent_s = self.loop.time() - self._heard_at
        if not answering and silent_s >= self.limits.idle_s:
            self._say_goodbye()
            self.transport.close()
            return
        again_s = self.limits.idle_s if answering else self.limits.idle_s - silent_s
        self._idle = self.loop.call_later(again_s, self._check_idle)

    def _say_goodbye(self) -> None:
        """Answer a request whose body stopped arriving, unless an answer has begun."""
        cycle = self.cycle
        if cycle is None or not cycle.more_body or cycle.response_started:
            return
        body = silent_body(self.limits.idle_s).problem.body()
        head = (
            b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n"
            b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (CONTENT_TYPE.encode(), len(body))
        )
        cycle.response_started = cycle.response_complete = True
        self.transport.write(head + body)


def silent_body(seconds: float) -> HttpRefusal:
    """Return the refusal of a request whose body does not arrive."""
    return refusal(
        408,
        "slow-body",
        "The body does not arrive",
        f"nothing came for {seconds:g} seconds",
        "Send it again with the same event ids: what is there already is recognised.",
        ("connection", "close"),
    )


def connection_of(scope: Scope) -> WatchedProtocol | None:
    """Return the connection that a request came by; None under another server."""
    connection = scope.get("extensions", {}).get(_EXTENSION)
    return connection if isinstance(connection, WatchedProtocol) else None


class Subscriptions:
    """How many feeds each client has, by its address."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: Counter[str] = Counter()

    def enter(self, scope: Scope) -> str:
        """Count a feed in and return whom it is counted for, or refuse with 429."""
        client = str((scope.get("client") or ("",))[0])
        if self._open[client] >= self._most:
            raise refusal(
                429,
                "too-many-subscriptions",
                "The client has too many subscriptions",
                f"{client} has {self._most} subscriptions open",
                "Close one, share one among consumers, or raise service.max_subscriptions.",
                ("retry-after", "5"),
            )
        self._open[client] += 1
        return client

    def leave(self, client: str) -> None:
        """Count a feed out."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
