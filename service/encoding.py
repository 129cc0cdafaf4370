"""`POST /v1/encode`: events as `es.append` takes them, for transactions of the caller's own."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from eventstore.postgres.in_transaction import given_event
from service.bodies import encode_body
from service.http import read_body
from service.models import json_body
from service.preconditions import refuse_preconditions
from service.render import answer
from service.requests import context_of, runtime_of

router = APIRouter(prefix="/v1")
_BODY = json_body({"type": "object"})


@router.post("/encode", summary="Encode events without appending them", openapi_extra=_BODY)
async def encode_events(request: Request) -> Response:
    """Check events against their schemas and return them in the form that `es.append` takes.

    The body is that of an append to one stream, with the stream's name in it.
    """
    runtime = runtime_of(request)
    headers = dict(request.headers.raw)
    refuse_preconditions(headers, "Nothing is appended: give es.append the version to expect.")
    body = await read_body(request.scope, request.receive, runtime.config.max_body_bytes)
    parsed = encode_body(body, context_of(runtime.config, headers))
    encoded = await runtime.opened.intake.encode(parsed.category, parsed.events)
    return answer({"stream": parsed.stream, "events": [given_event(event) for event in encoded]})
