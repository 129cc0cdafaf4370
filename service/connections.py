"""Connections of clients: what each may send and take, judged before anybody knows who it is.

There are so many at most; a head has so many bytes; a request arrives within a time, and is never
silent for long. A client that takes no bytes for a while is let go: what it was sent last is told
as the last thing it gets, should it read on within a short grace, and it resumes from there.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.head_requests import takes_head
from service.http import Scope
from service.problems import CONTENT_TYPE, HttpRefusal, refusal

_EXTENSION = "penstock.connection"
_WITHOUT_CHUNKS = "penstock.without_chunks"
_GRACE_S = 5.0
_UPGRADING = (b"upgrade", b"http2-settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """What clients may take.

    One of them: events in a page of JSON (`page`), feeds and answers in lines at a time
    (`subscriptions`), seconds of taking no byte (`slow_s`), seconds of sending none in the midst of
    a request (`idle_s`), seconds for sending one (`request_s`), bytes of its head. All together:
    `streams` (feeds and answers in lines) and `connections`.
    """

    page: int = 1_000
    subscriptions: int = 50
    streams: int = 500
    connections: int = 800
    header_bytes: int = 32 * 1024
    slow_s: float = 30.0
    idle_s: float = 10.0
    request_s: float = 60.0


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
    _begun_at: float | None = None
    """When the request began that has not arrived as a whole."""
    _in_head = False
    _head_bytes = 0
    """Bytes of the head that is incomplete after the packets so far. Behind a head, those since the
    last part of the body: of what stands between its chunks, and of fields behind it."""
    _endless = False
    """Whether an answer was asked for that the end of the connection alone ends."""
    _unread_framing: HttpRefusal | None = None
    """What is said of the body's codings where they are not read here."""
    _packet_bytes = 0
    """Bytes of the packet at hand, none once a head, a part of a body or a request ended in it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch, or turn the client away where there are too many."""
        # Not an instance of the class where the loop is not asyncio's own.
        super().connection_made(cast(asyncio.Transport, transport))
        self._heard_at = self.loop.time()
        first_s = min(self.limits.idle_s, self.limits.request_s)
        self._idle = self.loop.call_later(first_s, self._check_idle)
        if len(self.connections) > self.limits.connections:
            self._turn_away(_too_many_connections(self.limits.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop watching."""
        for timer in (self._slow, self._idle):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hear from the client."""
        self._heard_at = self.loop.time()
        self._packet_bytes = len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._stay_with_http(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            refused = self._unread_framing or _malformed()
            large = self._too_large()
            self._turn_away(_head_too_large(self.limits.header_bytes) if large else refused)
        else:
            self._head_bytes += self._packet_bytes
            if self._head_bytes > self.limits.header_bytes:
                self._turn_away(_head_too_large(self.limits.header_bytes))

    def eof_received(self) -> Any:  # A bool for asyncio, which uvicorn's signature leaves out.
        """Answer a client that has sent all it will and reads on, and close behind the answer.

        One that is gone looks the same: it is sent nothing without end, and is handed no events.
        """
        cycle = self.cycle
        if self._endless or cycle is None or cycle.more_body or cycle.response_complete:
            return False
        cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        """Let the application see the connection."""
        super().on_message_begin()
        self.patient = False
        self._begun_at = self._heard_at
        self._in_head = True
        self._head_bytes = 0
        cast(Scope, self.scope)["extensions"] = {_EXTENSION: self}

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Fields behind a body are left out (RFC 9110, 6.5.1): none was judged."""
        if self._in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._head_bytes = self._packet_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Start the request, unless it is one that `_stay_with_http` will put in other words."""
        if self._head_bytes + self._packet_bytes > self.limits.header_bytes and self._too_large():
            raise ValueError("the head is too large")
        self._unread_framing = self._refused_framing()
        if self._unread_framing is not None:
            raise ValueError("where the body ends is not known")
        if not self.parser.should_upgrade():
            if not self.url.startswith((b"/", b"*")):
                self._take_host_of_target()
            super().on_headers_complete()
            scope = cast(Scope, self.scope)
            self._endless |= not takes_head(scope["path"])
            if self.parser.get_http_version() == "1.0":
                # Nor does it know an answer before the answer (RFC 9110, 10.1.1).
                self.cycle.waiting_for_100_continue = False
                scope["extensions"][_WITHOUT_CHUNKS] = self.cycle
        self._in_head = False
        self._head_bytes = self._packet_bytes = 0

    def _refused_framing(self) -> HttpRefusal | None:
        """Return what is wrong with the codings of a body, all of which have to be undone here.

        The parser undoes `chunked` where it is the last one, whatever others stand before it.
        """
        values = [value for name, value in self.headers if name == b"transfer-encoding"]
        if not values:
            return None
        codings = [coding.strip().lower() for coding in b",".join(values).split(b",")]
        if self.parser.get_http_version() != "1.1" or codings.pop() != b"chunked":
            return _malformed()
        if b"chunked" in codings or b"" in codings:
            return _malformed()
        return _unknown_coding(codings[0]) if codings else None

    def _take_host_of_target(self) -> None:
        """Let a target such as `http://name/path` say whom it is for (RFC 9112, 3.2.2)."""
        authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
        self.headers[:] = [each for each in self.headers if each[0] != b"host"]
        self.headers.append((b"host", authority.rpartition(b"@")[2]))

    def on_message_complete(self) -> None:
        """The request has arrived."""
        if not self.parser.should_upgrade():
            self._begun_at = None
            self._packet_bytes = 0
            super().on_message_complete()

    def _stay_with_http(self, rest: bytes) -> None:
        """Serve a request that asked for another protocol as if it had not.

        The parser ends at its head, whatever body follows: a parser of its own reads the head
        again without the question, as RFC 9110 lets a server do.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._turn_away(_malformed())
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b\r\n" % (method, self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = (token.strip() for token in value.split(b","))
                value = b", ".join(token for token in kept if token.lower() not in _UPGRADING)
            if name not in _UPGRADING and (value or name != b"connection"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # As uvicorn has it.
        self.data_received(b"".join(lines) + b"\r\n" + rest)

    def _too_large(self) -> bool:
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        return size > self.limits.header_bytes

    def pause_writing(self) -> None:
        """More waits to be sent than the client takes."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._slow = self.loop.call_later(self.limits.slow_s, self._check_slow)

    def push(self, part: bytes) -> bool:
        """Send a part of the answer under way, framed by `framed`, past everything between.

        Returns whether the client takes it: one that is too slow just now does not.
        """
        cycle = self.cycle
        if self.evicted or self.flow.write_paused or cycle is None or not cycle.chunked_encoding:
            return False
        if not cycle.disconnected:
            self.transport.write(part)
        return True

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
            self._slow = self.loop.call_later(_GRACE_S, self.break_off)
            self.flow.resume_writing()
        else:
            self.break_off()

    def break_off(self) -> None:
        """End the connection amid an answer; that of HTTP/1.0 is reset: closed, it looks whole."""
        if cycle_without_chunks(cast(Scope, self.scope)) is not None:
            reset_when_closed(self.transport, True)
        self.transport.abort()

    def _check_idle(self) -> None:
        now = self.loop.time()
        begun_at = now if self._begun_at is None else self._begun_at
        silent_until = self._heard_at + self.limits.idle_s
        whole_until = begun_at + self.limits.request_s
        if self._answering():
            again_s = min(self.limits.idle_s, self.limits.request_s)
        elif now < min(silent_until, whole_until):
            again_s = min(silent_until, whole_until) - now
        elif self._begun_at is None:
            self.transport.close()
            return
        else:
            silent = now >= silent_until
            limits = self.limits
            self._turn_away(
                silent_body(limits.idle_s) if silent else _slow_request(limits.request_s)
            )
            return
        self._idle = self.loop.call_later(again_s, self._check_idle)

    def _answering(self) -> bool:
        """Whether the next step is the application's: the request is there, or it watches."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return False
        return not cycle.more_body or self.patient

    def _turn_away(self, refused: HttpRefusal) -> None:
        """Close the connection; say why, unless an answer has begun or nothing was asked."""
        if self._may_answer() and not self.transport.is_closing():
            if self.cycle is not None:
                self.cycle.response_started = self.cycle.response_complete = True
                # What its application still says is for nobody.
                self.cycle.disconnected = True
            problem = refused.problem
            body = problem.body()
            self.transport.write(
                b"%bconnection: close\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
                % (STATUS_LINE[problem.status], CONTENT_TYPE.encode(), len(body), body)
            )
        self.transport.close()

    def _may_answer(self) -> bool:
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return self._in_head or cycle is None
        return cycle.more_body and not cycle.response_started


def _too_many_connections(most: int) -> HttpRefusal:
    return refusal(
        503,
        "too-many-connections",
        "The service has too many connections",
        f"{most} connections are open",
        "Keep connections and share them, or raise service.max_connections.",
    )


def _head_too_large(most: int) -> HttpRefusal:
    return refusal(
        431,
        "head-too-large",
        "The address and headers are too large",
        f"more than {most} bytes",
        "Send fewer or shorter headers, or raise service.max_header_bytes.",
    )


def _malformed() -> HttpRefusal:
    return refusal(
        400,
        "malformed-request",
        "The request is not HTTP/1.1",
        "it cannot be parsed",
        "Send HTTP/1.1, as clients do by themselves; the service has neither TLS nor HTTP/2.",
    )


def _unknown_coding(coding: bytes) -> HttpRefusal:
    return refusal(
        501,
        "unknown-transfer-coding",
        "The body has a transfer coding that is not read here",
        f"Transfer-Encoding: {coding[:40].decode('latin-1')}",
        "Send the body as it is, by Content-Length or by Transfer-Encoding: chunked.",
        ("connection", "close"),
    )


def _slow_request(seconds: float) -> HttpRefusal:
    return refusal(
        408,
        "slow-request",
        "The request takes too long to arrive",
        f"it has not arrived within {seconds:g} seconds",
        "Send less at a time, POST /v1/import without bound, or raise service.request_seconds.",
        ("connection", "close"),
    )


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


def framed(body: bytes) -> bytes:
    """Return what is not empty as a chunk of an answer without a known length."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def connection_of(scope: Scope) -> WatchedProtocol | None:
    """Return the connection that a request came by; None under another server."""
    connection = scope.get("extensions", {}).get(_EXTENSION)
    return connection if isinstance(connection, WatchedProtocol) else None


def reset_when_closed(transport: asyncio.BaseTransport, reset: bool) -> None:
    """Have a connection that is still there be reset when it is closed, or end in order again."""
    opened = transport.get_extra_info("socket")
    if opened is not None and opened.fileno() >= 0:
        linger = struct.pack("ii", int(reset), 0)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def cycle_without_chunks(scope: Scope) -> RequestResponseCycle | None:
    """Return how a request is answered whose client reads no chunks; None where it reads them."""
    cycle = scope.get("extensions", {}).get(_WITHOUT_CHUNKS)
    return cycle if isinstance(cycle, RequestResponseCycle) else None
