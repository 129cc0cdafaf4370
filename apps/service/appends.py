"""Appending over HTTP: `POST /v1/streams/{stream}` and `POST /v1/append`.

    body -> NewEvent -> Intake.encode -> AppendRequest -> EventStore.append -> answer

Bare ASGI: these two calls are the hot path, and a framework's routing costs as much as they do.
"""

from __future__ import annotations

import re
import time

import orjson

from apps.service.bodies import StreamBody, append_bodies, stream_body
from apps.service.cloudevents import append_body
from apps.service.http import Receive, Scope, Send, header, read_body, respond
from apps.service.problems import HttpRefusal, problem_of, refusal
from apps.service.requests import context_of
from apps.service.runtime import Opened, Runtime
from eventstore.conditions import Condition
from eventstore.store import Appended, AppendRequest, Expected, StreamAppend, StreamAppended
from kernel.errors import InvalidRequest, VersionConflict
from kernel.positions import Version

STREAMS_PREFIX = "/v1/streams/"
APPEND_PATH = "/v1/append"
_ETAG = re.compile(r'"(\d{1,18})"')


async def append_to_stream(runtime: Runtime, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve `POST /v1/streams/{stream}`."""
    begun = time.perf_counter()
    body = await read_body(scope, receive, runtime.config.max_body_bytes)
    opened = runtime.opened
    headers = dict(scope["headers"])
    stream = scope["path"][len(STREAMS_PREFIX) :]
    body = append_body(headers, stream, body)
    parsed = stream_body(stream, body, context_of(runtime.config, headers))
    precondition = _precondition(scope)
    if precondition is not None and parsed.expected is not None:
        raise refusal(
            400,
            "two-expectations",
            "Two expected versions",
            "If-Match (or If-None-Match) and expected_version were both given",
            "Send one of them.",
        )
    try:
        appended = await _append(opened, (parsed,), precondition=precondition)
    except VersionConflict as conflict:
        if precondition is None:
            raise
        raise _precondition_failed(conflict) from conflict
    (answer,) = appended.appends
    runtime.metrics.append_seconds.observe(time.perf_counter() - begun)
    etag = f'"{answer.last_version}"'.encode()
    await respond(send, _status(appended), orjson.dumps(_answer(answer)), ((b"etag", etag),))


async def append_to_streams(runtime: Runtime, scope: Scope, receive: Receive, send: Send) -> None:
    """Serve `POST /v1/append`."""
    begun = time.perf_counter()
    body = await read_body(scope, receive, runtime.config.max_body_bytes)
    opened = runtime.opened
    parsed = append_bodies(body, context_of(runtime.config, dict(scope["headers"])))
    appended = await _append(opened, parsed.entries, condition=parsed.condition)
    runtime.metrics.append_seconds.observe(time.perf_counter() - begun)
    document = {"appends": [_answer(answer) for answer in appended.appends]}
    await respond(send, _status(appended), orjson.dumps(document))


async def _append(
    opened: Opened,
    bodies: tuple[StreamBody, ...],
    *,
    precondition: Expected | None = None,
    condition: Condition | None = None,
) -> Appended:
    opened.storage.check()
    appends = []
    for body in bodies:
        expected = precondition if precondition is not None else body.expected
        appends.append(
            StreamAppend(
                stream=body.stream,
                category=body.category,
                expected="any" if expected is None else expected,
                events=await opened.intake.encode(body.category, body.events),
            )
        )
    return await opened.store.append(AppendRequest(appends=tuple(appends), condition=condition))


def _status(appended: Appended) -> int:
    return 200 if appended.repeated else 201


def _answer(answer: StreamAppended) -> dict[str, object]:
    return {
        "stream": answer.stream,
        "first_version": answer.first_version,
        "last_version": answer.last_version,
        "first_position": answer.first_position,
        "last_position": answer.last_position,
    }


def _precondition(scope: Scope) -> Expected | None:
    """Read `If-Match: "3"`, `If-Match: *` (exists) and `If-None-Match: *` (does not exist)."""
    if_match = header(scope, b"if-match")
    if_none_match = header(scope, b"if-none-match")
    if if_match is not None and if_none_match is None:
        if if_match.strip() == "*":
            return "stream_exists"
        match = _ETAG.fullmatch(if_match.strip())
        if match is not None:
            return Version(int(match.group(1)))
    elif if_none_match is not None and if_match is None:
        if if_none_match.strip() == "*":
            return "no_stream"
    elif if_match is None:
        return None
    raise InvalidRequest(
        "If-Match or If-None-Match cannot be used as given",
        remedy='Send one of: If-Match: "3" (the ETag of the last version), If-Match: *, '
        "If-None-Match: *",
    )


def _precondition_failed(conflict: VersionConflict) -> HttpRefusal:
    problem = problem_of(conflict)
    failed = refusal(412, problem.type, problem.title, problem.detail, problem.remedy)
    failed.problem.fields.update(problem.fields)
    return failed
