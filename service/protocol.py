"""Small appends without an ASGI task each, inside uvicorn's own HTTP protocol.

    request read whole -> begin_append -> [group commit] -> one write

Parsing, keep-alive, pipelining and shutdown stay uvicorn's. A request that is not the plain case
(another route, a large body, a schema that nobody knows yet, anything to complain about) is handed
to the application as if nothing had been tried: nothing has been queued by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from service.appends import STREAMS_PREFIX, Begun, answer_to, begin_append
from service.connections import ClientLimits, WatchedProtocol
from service.edge import Edge
from service.http import Answer, Scope


class AppendingProtocol(WatchedProtocol):
    """One connection. Use `protocol_of` to make a class for one service."""

    edge: ClassVar[Edge]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._held: tuple[RequestResponseCycle, Any] | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Hold a small append until it has been read; start everything else."""
        if not _is_small_append(cycle):
            super()._start_asgi_task(cycle, app)
        elif cycle.more_body:
            self._held = (cycle, app)
        else:
            self._append(cycle, app)

    def on_message_complete(self) -> None:
        """Append what was held, now that its body is complete."""
        super().on_message_complete()
        held, self._held = self._held, None
        if held is not None:
            self._append(*held)

    def _append(self, cycle: RequestResponseCycle, app: Any) -> None:
        edge, scope = self.edge, cast(Scope, cycle.scope)
        try:
            edge.runtime.admission.check(scope)
            begun = begin_append(edge.runtime, scope, bytes(cycle.body))
        except Exception:
            # The application comes to the same complaint and knows how to word it.
            begun = None
        if begun is None:
            super()._start_asgi_task(cycle, app)
            return

        def answer(_: asyncio.Future[Any]) -> None:
            self._answer(cycle, begun)

        begun.appended.add_done_callback(answer)

    def _answer(self, cycle: RequestResponseCycle, begun: Begun) -> None:
        try:
            answer = answer_to(self.edge.runtime, begun)
        except Exception as error:
            answer = self.edge.answer_to(error, cast(Scope, cycle.scope))
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        self.transport.write(_response(answer, cycle))
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()


def protocol_of(edge: Edge, limits: ClientLimits) -> type[asyncio.Protocol]:
    """Return the protocol for a service whose clients have these limits."""
    return type("ServiceProtocol", (AppendingProtocol,), {"edge": edge, "limits": limits})


def _is_small_append(cycle: RequestResponseCycle) -> bool:
    scope = cycle.scope
    if scope["method"] != "POST" or cycle.waiting_for_100_continue or cycle.flow.write_paused:
        return False
    path = scope["path"]
    if not path.startswith(STREAMS_PREFIX) or "/" in path[len(STREAMS_PREFIX) :]:
        return False
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    # Beyond this uvicorn stops reading until somebody takes the body.
    return length.isdigit() and int(length) < HIGH_WATER_LIMIT


def _response(answer: Answer, cycle: RequestResponseCycle) -> bytes:
    headers: Iterable[tuple[bytes, bytes]] = (*cycle.default_headers, *answer.headers)
    lines = b"".join([b"%b: %b\r\n" % header for header in headers])
    close = b"" if cycle.keep_alive else b"connection: close\r\n"
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
        STATUS_LINE[answer.status],
        lines,
        close,
        len(answer.body),
        answer.body,
    )
