"""Reading streams, all events, one event; subscribing to all events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, assert_never
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from apps.service.render import dump, event_document, event_documents
from apps.service.runtime import Opened, Runtime
from eventstore.feed import CaughtUp, Checkpoint, FeedItem, Idle, follow
from eventstore.intake import Intake
from eventstore.store import Direction, EventFilter
from kernel.errors import InvalidRequest
from kernel.positions import Position
from schemas.records import RecordedEvent

router = APIRouter(prefix="/v1")
_MAX_SCAN_PAGES = 10
_JSON = "application/json"

Limit = Annotated[int, Query(ge=1, le=5_000, description="Events in one answer")]
After = Annotated[int, Query(ge=0, description="Only events with a greater position")]
Category = Annotated[str | None, Query(description="Only events of this category")]
Type = Annotated[str | None, Query(description="Only events of this type")]
StreamPrefix = Annotated[str | None, Query(description="Only streams that begin so")]


def runtime_of(request: Request) -> Runtime:
    """Return the service's parts."""
    runtime = request.app.state.runtime
    assert isinstance(runtime, Runtime)
    return runtime


@router.get("/streams/{stream}", summary="Read one stream")
async def read_stream(
    request: Request,
    stream: str,
    from_version: Annotated[int | None, Query(ge=0)] = None,
    direction: Direction = "forward",
    limit: Limit = 100,
) -> Response:
    """Return events of a stream and its present version, which is the ETag too."""
    opened = runtime_of(request).opened
    page = await opened.store.read_stream(
        stream, from_version=from_version, direction=direction, limit=limit
    )
    document = {
        "stream": stream,
        "version": page.version,
        "events": await event_documents(page.events, opened.intake),
    }
    return Response(dump(document), media_type=_JSON, headers={"etag": f'"{page.version}"'})


@router.get("/events", summary="Read all events")
async def read_events(
    request: Request,
    after: After = 0,
    limit: Limit = 100,
    category: Category = None,
    type: Type = None,
    stream_prefix: StreamPrefix = None,
) -> Response:
    """Return events by position. `next_after` is where the next call goes on; it equals `head`
    when everything was looked at.
    """
    opened = runtime_of(request).opened
    filter_ = EventFilter(category=category, type=type, stream_prefix=stream_prefix)
    events: list[RecordedEvent] = []
    for _ in range(_MAX_SCAN_PAGES):
        page = await opened.store.read_all(after=after, limit=limit - len(events), filter_=filter_)
        events.extend(page.events)
        after = page.scanned_to
        if len(events) >= limit or after >= page.head:
            break
    document = {
        "events": await event_documents(events, opened.intake),
        "head": max(page.head, after if events else 0),
        "next_after": after,
    }
    return Response(dump(document), media_type=_JSON)


@router.get(
    "/events/subscribe",
    summary="Follow all events (server-sent events)",
    response_class=StreamingResponse,
)
async def subscribe(
    request: Request,
    after: Annotated[str, Query(description="A position, or `end` for what happens now")] = "0",
    category: Category = None,
    type: Type = None,
    stream_prefix: StreamPrefix = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """Send events behind a position as they are, then as they happen, without end.

    `id:` is the position; `Last-Event-ID` beats `after`. `event: caught-up` comes once, at the end
    of history; filtered feeds send `event: checkpoint` for each 1,000 positions without a match.
    """
    runtime = runtime_of(request)
    opened = runtime.opened
    start = await _start(opened, last_event_id if last_event_id is not None else after)
    feed = follow(
        opened.store,
        opened.store.feed_head,
        after=start,
        filter_=EventFilter(category=category, type=type, stream_prefix=stream_prefix),
        idle_s=runtime.config.heartbeat_s,
    )
    nothing: list[FeedItem] = []
    first = await anext(feed, nothing)  # Refusals must come before the answer begins.
    return StreamingResponse(
        _sse(runtime, first, feed),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


@router.get("/events/{event_id}", summary="Read one event")
async def read_event(request: Request, event_id: UUID) -> Response:
    """Return one event by its id."""
    opened = runtime_of(request).opened
    event = await opened.store.event(event_id)
    return Response(dump(await event_document(event, opened.intake)), media_type=_JSON)


async def _start(opened: Opened, text: str) -> Position:
    if text == "end":
        return await opened.store.head()
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return Position(int(text))
    raise InvalidRequest(f"{text!r} is no position", remedy="Send a whole number from 0, or `end`.")


async def _sse(
    runtime: Runtime, first: list[FeedItem], feed: AsyncGenerator[list[FeedItem], None]
) -> AsyncIterator[bytes]:
    intake = runtime.opened.intake
    metrics = runtime.metrics
    metrics.subscribers.inc()
    try:
        # A comment opens the stream, so that clients see it before the first event.
        yield b": penstock\n\n" + b"".join([await _message(item, intake) for item in first])
        async with aclosing(feed):
            async for items in feed:
                yield b"".join([await _message(item, intake) for item in items])
                metrics.delivered.inc(sum(isinstance(item, RecordedEvent) for item in items))
    finally:
        metrics.subscribers.dec()


async def _message(item: FeedItem, intake: Intake) -> bytes:
    match item:
        case RecordedEvent():
            document = dump(await event_document(item, intake))
            return b"id: %d\ndata: %b\n\n" % (item.position, document)
        case CaughtUp(position=position):
            return _named(b"caught-up", position)
        case Checkpoint(position=position):
            return _named(b"checkpoint", position)
        case Idle():
            return b": heartbeat\n\n"
        case _:
            assert_never(item)


def _named(name: bytes, position: int) -> bytes:
    return b'event: %b\nid: %d\ndata: {"position":%d}\n\n' % (name, position, position)
