"""Appending over HTTP: `POST /v1/streams/{stream}` and `POST /v1/append`.

    body -> NewEvent -> Intake.encode -> AppendRequest -> EventStore.append -> answer

Bare ASGI: these two calls are the hot path, and a framework's routing costs as much as they do.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import orjson

from eventstore.conditions import Condition
from eventstore.names import category_of
from eventstore.store import (
    Appended,
    AppendRequest,
    EncodedEvent,
    Expected,
    StreamAppend,
)
from service.bodies import StreamBody, append_bodies, stream_body
from service.cloudevents import append_body
from service.http import (
    JSON,
    Answer,
    Receive,
    Scope,
    Send,
    category_header,
    read_body,
    respond,
)
from service.parameters import check_parameters
from service.preconditions import Preconditioned, precondition_of, refuse_preconditions
from service.problems import refusal
from service.requests import context_of
from service.runtime import Opened, Runtime

STREAMS_PREFIX = "/v1/streams/"
APPEND_PATH = "/v1/append"


@dataclass(frozen=True, slots=True)
class Begun:
    """An append that is queued: its answer to come, its precondition, and when it came in."""

    appended: asyncio.Future[Appended]
    precondition: Expected | None
    at: float


def begin_append(runtime: Runtime, scope: Scope, body: bytes) -> Begun | None:
    """Queue an append to one stream at once. None when its schema has to be asked for first.

    Raises what refuses the request; nothing is queued then.
    """
    begun = time.perf_counter()
    parsed, precondition = _parsed(runtime, scope, body)
    events = runtime.opened.intake.encode_known(parsed.category, parsed.events)
    return None if events is None else _enqueued(runtime, parsed, precondition, events, begun)


def _enqueued(
    runtime: Runtime,
    parsed: StreamBody,
    precondition: Expected | None,
    events: tuple[EncodedEvent, ...],
    at: float,
) -> Begun:
    request = AppendRequest(appends=(_stream_append(parsed, precondition, events),))
    return Begun(runtime.opened.store.enqueue(request), precondition, at)


def answer_to(runtime: Runtime, begun: Begun) -> Answer:
    """Answer an append that has ended. Raises what refused it."""
    with Preconditioned(begun.precondition):
        appended = begun.appended.result()
    runtime.metrics.append_seconds.observe(time.perf_counter() - begun.at)
    (answer,) = appended.appends
    return Answer(
        _status(appended),
        orjson.dumps(answer),
        (
            (b"content-type", JSON),
            (b"etag", b'"%d"' % answer.last_version),
            (b"penstock-category", category_of(answer.stream).encode()),
        ),
    )


async def append_to_stream(runtime: Runtime, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve `POST /v1/streams/{stream}`."""
    body = await read_body(scope, receive, runtime.config.max_body_bytes)
    at = time.perf_counter()
    parsed, precondition = _parsed(runtime, scope, body)
    events = await runtime.opened.intake.encode(parsed.category, parsed.events)
    begun = _enqueued(runtime, parsed, precondition, events, at)
    await asyncio.wait([begun.appended])
    answer = answer_to(runtime, begun)
    await respond(send, answer.status, answer.body, answer.headers)


async def append_to_streams(runtime: Runtime, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve `POST /v1/append`."""
    begun = time.perf_counter()
    check_parameters(scope["query_string"])
    headers = dict(scope["headers"])
    refuse_preconditions(headers, "Say expected_version in each entry of appends.")
    body = await read_body(scope, receive, runtime.config.max_body_bytes)
    opened = runtime.opened
    parsed = append_bodies(body, context_of(runtime.config, headers))
    appended = await _append(opened, parsed.entries, parsed.condition)
    runtime.metrics.append_seconds.observe(time.perf_counter() - begun)
    named = category_header(*(answer.stream for answer in appended.appends))
    told = [(name.encode(), value.encode()) for name, value in named.items()]
    await respond(send, _status(appended), orjson.dumps({"appends": appended.appends}), told)


async def _append(
    opened: Opened, bodies: tuple[StreamBody, ...], condition: Condition | None
) -> Appended:
    opened.storage.check()
    appends = []
    for body in bodies:
        events = await opened.intake.encode(body.category, body.events)
        appends.append(_stream_append(body, None, events))
    return await opened.store.append(AppendRequest(appends=tuple(appends), condition=condition))


def _parsed(runtime: Runtime, scope: Scope, body: bytes) -> tuple[StreamBody, Expected | None]:
    """Parse a request to one stream; return it with the precondition of its headers.

    Raises also when there is no store yet, or no room on its disk.
    """
    check_parameters(scope["query_string"])
    opened = runtime.opened
    headers = dict(scope["headers"])
    stream = scope["path"][len(STREAMS_PREFIX) :]
    body = append_body(headers, stream, body, runtime.config.limits.json_depth)
    parsed = stream_body(stream, body, context_of(runtime.config, headers))
    expected = precondition_of(headers)
    if expected is not None and parsed.expected is not None:
        raise refusal(
            400,
            "two-expectations",
            "Two expected versions",
            "If-Match (or If-None-Match) and expected_version were both given",
            "Send one of them.",
        )
    opened.storage.check()
    return parsed, expected


def _stream_append(
    body: StreamBody, precondition: Expected | None, events: tuple[EncodedEvent, ...]
) -> StreamAppend:
    expected = precondition if precondition is not None else body.expected
    return StreamAppend(
        stream=body.stream,
        category=body.category,
        expected="any" if expected is None else expected,
        events=events,
    )


def _status(appended: Appended) -> int:
    return 200 if appended.repeated else 201
