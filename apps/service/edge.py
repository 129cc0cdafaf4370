"""The outermost layer: who may come in, where appends go, how errors leave.

Errors of every route, the framework's own included, leave as problem documents and are counted.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import MutableMapping
from typing import Any, Protocol

from apps.service.appends import (
    APPEND_PATH,
    STREAMS_PREFIX,
    append_to_stream,
    append_to_streams,
)
from apps.service.cloudevents_reads import answer_cloud_events, wants_cloud_events
from apps.service.http import Answer, Receive, Scope, Send, header, problem_answer, respond
from apps.service.pages import PATHS as PAGES
from apps.service.problems import problem_of, refusal
from apps.service.runtime import Runtime

_log = logging.getLogger("penstock.service")
_OPEN_PREFIX = "/health/"


class Asgi(Protocol):
    """An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        ...


class Edge:
    """Wraps the application that has all routes but the two appends."""

    def __init__(self, inner: Asgi, runtime: Runtime) -> None:
        self._inner = inner
        self.runtime = runtime
        token = runtime.config.token
        self._bearer = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        started = False

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self.admit(scope)
            await self._route(scope, receive, watched)
        except Exception as error:
            answer = self.answer_to(error, scope)
            if started:
                raise
            await respond(send, answer.status, answer.body, answer.headers)

    def answer_to(self, error: Exception, scope: Scope) -> Answer:
        """Return an error as an answer. It is counted, and logged where it is our own."""
        problem = problem_of(error)
        self.runtime.metrics.refusals.labels(problem.type).inc()
        if problem.status == 500:
            _log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        return problem_answer(problem)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            path: str = scope["path"]
            if path.startswith(STREAMS_PREFIX) and "/" not in path[len(STREAMS_PREFIX) :]:
                await append_to_stream(self.runtime, scope, receive, send)
                return
            if path == APPEND_PATH:
                await append_to_streams(self.runtime, scope, receive, send)
                return
        if wants_cloud_events(scope):
            await answer_cloud_events(self._inner, self.runtime, scope, receive, send)
            return
        await self._inner(scope, receive, send)

    def admit(self, scope: Scope) -> None:
        """Let the bearer of the token in.

        Health needs none, so that probes carry no secret, and so do the pages for browsers.
        """
        path = scope["path"]
        if self._bearer is None or path.startswith(_OPEN_PREFIX) or path in PAGES:
            return
        given = header(scope, b"authorization") or ""
        if not hmac.compare_digest(given.encode("latin-1"), self._bearer):
            raise refusal(
                401,
                "unauthorized",
                "A token is needed",
                "the Authorization header is missing or wrong",
                "Send: Authorization: Bearer TOKEN, with the value of PENSTOCK_TOKEN.",
                ("www-authenticate", "Bearer"),
            )
