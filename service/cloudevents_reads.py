"""Answers of reads as CloudEvents, where `Accept` asks for them.

The routes answer as ever; what they say is put into the other form on its way out. A page goes out
as a batch, and what stands beside its events as headers.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final, Protocol
from urllib.parse import quote
from uuid import UUID

import orjson

from service.cloudevents import BATCH, EVENT, cloud_event
from service.http import JSON, Receive, Scope, Send, header
from service.media_types import preferred
from service.runtime import Runtime

_PATHS: Final = ("/v1/events", "/v1/streams/")
_ANY: Final = "application/cloudevents"
_USUAL: Final = JSON.decode()
_BINARY: Final = f"{_USUAL};cloudevents=binary"
PAGE_FORMS: Final = (BATCH, EVENT, _ANY, _USUAL)
"""What a page of events may be asked for as: it goes out as a batch, or as ever."""
_EVENT_FORMS: Final = (BATCH, _BINARY, EVENT, _ANY, _USUAL)
_HEADER_BYTES: Final = 8 * 1024
# Printable characters that the HTTP binding of CloudEvents leaves as they are.
_PLAIN: Final = "".join(map(chr, range(0x21, 0x7F))).translate({ord(each): None for each in '"%'})
_BESIDE: Final = {"head": b"penstock-head", "next_after": b"penstock-next-after"}


class Routes(Protocol):
    """The application that has the routes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        ...


def wants_cloud_events(scope: Scope) -> bool:
    """Return whether a request reads events and asks for CloudEvents."""
    accept = header(scope, b"accept")
    return (
        accept is not None
        and scope["path"].startswith(_PATHS)
        and preferred(accept, *_EVENT_FORMS) != _USUAL
    )


async def answer_cloud_events(
    inner: Routes, runtime: Runtime, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a read by `inner` and send its events as CloudEvents.

    Problems stay what they are, and so do answers without end: only one document can be put into
    another form.
    """
    started: MutableMapping[str, Any] = {}
    body = bytearray()

    async def convert(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and not started:
            headers = dict(message["headers"])
            if message["status"] == 200 and headers.get(b"content-type") == JSON:
                started.update(message)
                return
        if not started:
            await send(message)
            return
        body.extend(message.get("body", b""))
        if not message.get("more_body", False):
            accept = header(scope, b"accept") or ""
            headers, content = await _converted(bytes(body), runtime, accept)
            headers = dict(started["headers"]) | headers
            headers[b"content-length"] = str(len(content)).encode()
            await send(dict(started) | {"headers": list(headers.items())})
            await send({"type": "http.response.body", "body": content})

    await inner(scope, receive, convert)


async def _converted(
    body: bytes, runtime: Runtime, accept: str
) -> tuple[dict[bytes, bytes], bytes]:
    """Return headers and body of an answer; one that is not about events stays as it is."""
    document = orjson.loads(body)
    if "events" in document and preferred(accept, *PAGE_FORMS) != _USUAL:
        store_id = await _store_id(runtime, document["events"])
        events = [cloud_event(event, store_id) for event in document["events"]]
        beside = {
            name: str(document[key]).encode() for key, name in _BESIDE.items() if key in document
        }
        return beside | {b"content-type": BATCH.encode()}, orjson.dumps(events)
    if "recorded_at" in document:
        event = cloud_event(document, await _store_id(runtime, [document]))
        form = preferred(accept, *_EVENT_FORMS)
        if form == BATCH:
            return {b"content-type": BATCH.encode()}, orjson.dumps([event])
        if form == _BINARY and (headers := _headers(event)) is not None:
            return headers, orjson.dumps(event["data"])
        return {b"content-type": EVENT.encode()}, orjson.dumps(event)
    return {}, body


def _headers(event: dict[str, Any]) -> dict[bytes, bytes] | None:
    """Return the attributes as headers, None where they are too large for headers."""
    headers = {
        f"ce-{name}".encode(): quote(_text(value), safe=_PLAIN).encode()
        for name, value in event.items()
        if name not in ("data", "datacontenttype")
    }
    if sum(len(name) + len(value) for name, value in headers.items()) > _HEADER_BYTES:
        return None
    return headers | {b"content-type": JSON}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def _store_id(runtime: Runtime, events: list[Any]) -> str:
    """Return the id of the store that events came from."""
    if not events:
        return ""
    return (await runtime.opened.store.event(UUID(events[0]["id"]))).store_id
