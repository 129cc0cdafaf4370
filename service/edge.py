"""The outermost layer: where appends go, how errors leave; `admission` says who may come in.

Errors of every route, the framework's own included, leave as problem documents and are counted.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Protocol

from starlette.requests import ClientDisconnect

from service.appends import (
    APPEND_PATH,
    STREAMS_PREFIX,
    append_to_stream,
    append_to_streams,
)
from service.cloudevents_reads import answer_cloud_events, wants_cloud_events
from service.connections import connection_of, cycle_without_chunks
from service.head_requests import head_alone, takes_head
from service.http import Answer, Receive, Scope, Send, header, problem_answer, respond
from service.preconditions import matching, refuse_preconditions
from service.problems import problem_of
from service.runtime import Runtime
from service.unbounded_answers import until_close

_log = logging.getLogger("penstock.service")


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        started = False
        cycle = cycle_without_chunks(scope)
        if cycle is not None:
            send = until_close(cycle, send)

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            self.runtime.admission.check(scope)
            await self._route(scope, receive, watched)
        except ClientDisconnect:
            return  # Nobody is there to be answered, or it has been said why nothing is done.
        except Exception as error:
            answer = self.answer_to(error, scope)
            if started:
                connection = connection_of(scope)
                if cycle is not None and connection is not None:
                    connection.break_off()
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
        if scope["method"] == "HEAD" and takes_head(scope["path"]):
            scope, send = {**scope, "method": "GET"}, head_alone(send)
        if scope["method"] == "GET" and (tags := header(scope, b"if-match")) is not None:
            if not takes_head(scope["path"]):
                refuse_preconditions({b"if-match": b""}, "What is sent has no state: leave it out.")
            send = matching(tags, send, lambda error: self.answer_to(error, scope))
        if wants_cloud_events(scope):
            await answer_cloud_events(self._inner, self.runtime, scope, receive, send)
            return
        await self._inner(scope, receive, send)
