"""Reading streams, all events, one event; queries; subscribing to all events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from eventstore.postgres.reading import PlainRow
from eventstore.sizes import PAGE_BYTES, bytes_of
from eventstore.store import Direction, EventFilter, EventPage
from kernel.errors import BeyondHead, InvalidRequest
from kernel.positions import Position
from schemas.json_values import shown
from schemas.records import RecordedEvent
from service.bodies import parse_json
from service.cloudevents_reads import PAGE_FORMS
from service.conditions import query_of
from service.connections import connection_of
from service.feed_channels import FeedKind
from service.feed_messages import LINES, SSE, Chunk
from service.feeds import FeedResponse
from service.http import category_header, read_body
from service.media_types import preferred
from service.models import json_body
from service.ndjson import (
    NDJSON,
    PAGE,
    NextPage,
    Page,
    lines_of,
    stream_lines,
    upcast_lines,
)
from service.openapi_shapes import MAX_VERSION
from service.preconditions import is_held
from service.render import EventData, answer, event_fragments, event_json
from service.requests import runtime_of
from service.runtime import Opened, Runtime
from service.streams import LinesResponse

router = APIRouter(prefix="/v1")
_MAX_SCAN_PAGES = 10
_USUAL_LIMIT = 100
_END = -1
_QUERY_KEYS = frozenset({"query", "after", "limit"})

Limit = Annotated[int | None, Query(ge=1, description="Events in one answer")]
After = Annotated[
    int, Query(ge=0, le=MAX_VERSION, description="Only events with a greater position")
]
Category = Annotated[str | None, Query(description="Only events of this category")]
Type = Annotated[str | None, Query(description="Only this type: placed, or order.placed")]
OfStream = Annotated[str | None, Query(description="Only this stream")]
StreamPrefix = Annotated[str | None, Query(description="Only streams that begin so")]
Tag = Annotated[str | None, Query(description="Only events with this tag")]
Upcast = Annotated[bool, Query(description="Data in the newest version of each event's schema")]
Accept = Annotated[str | None, Header(include_in_schema=False)]
IfNoneMatch = Annotated[list[str] | None, Header(include_in_schema=False)]


@router.get("/streams/{stream}", summary="Read one stream")
async def read_stream(
    request: Request,
    stream: str,
    from_version: Annotated[int | None, Query(ge=0, le=MAX_VERSION)] = None,
    direction: Direction = "forward",
    limit: Limit = None,
    upcast: Upcast = False,
    accept: Accept = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Return events of a stream and its present version, which is the ETag too.

    With `Accept: application/x-ndjson` all that is asked for, one event a line.
    """
    runtime = runtime_of(request)
    opened = runtime.opened
    # The version says nothing of upcasters, by which the same events are other data.
    held = [] if upcast else (if_none_match or [])
    if _wants_lines(accept):
        return await _stream_lines(runtime, stream, from_version, direction, limit, upcast, held)
    page = await opened.store.read_stream(
        stream, from_version=from_version, direction=direction, limit=page_size(runtime, limit)
    )
    headers = _headers(stream, page.version)
    if await _holds(opened, stream, headers["etag"], held):
        return Response(status_code=304, headers=headers)
    document = {
        "stream": stream,
        "version": page.version,
        "events": await event_fragments(page.events, _data(opened, upcast)),
    }
    return answer(document, headers=headers)


def _headers(stream: str, version: int | None) -> dict[str, str]:
    # One version has two forms, which a cache may not take for each other.
    return {"etag": f'"{version}"', "vary": "accept", **category_header(stream)}


async def _holds(opened: Opened, stream: str, etag: str, held: Sequence[str]) -> bool:
    """Say whether a reader has what a stream shows already; `etag` is its version.

    That says nothing of what a policy hides, or shows again, of the same events: a stream that ever
    had one is read. It is asked for behind the read, which may have seen a policy that is new.
    """
    if not is_held(etag, held):
        return False
    return (await opened.store.standing(stream)).metadata_version is None


async def _stream_lines(
    runtime: Runtime,
    stream: str,
    from_version: int | None,
    direction: Direction,
    limit: int | None,
    upcast: bool,
    held: Sequence[str],
) -> Response:
    opened = runtime.opened
    left = limit
    version: int | None = None

    def ended(found: int, last: int) -> bool:
        nonlocal left
        left = None if left is None else left - found
        near_end = last == 0 if direction == "backward" else last == version
        return found == 0 or left == 0 or near_end

    step = 1 if direction == "forward" else -1

    async def plain_page(place: int) -> Page[PlainRow]:
        nonlocal version
        count = PAGE if left is None else min(PAGE, left)
        at = None if place == _END else place
        version, rows = await opened.store.rows_of_stream(
            stream, from_version=at, direction=direction, limit=count
        )
        last = rows[-1][3] if rows else 0
        done = ended(len(rows), last)
        return Page(rows=rows, scanned_to=_END if done else last + step)

    async def event_page(place: int) -> Page[RecordedEvent]:
        nonlocal version
        count = PAGE if left is None else min(PAGE, left)
        at = None if place == _END else place
        page = await opened.store.read_stream(
            stream, from_version=at, direction=direction, limit=count
        )
        version = page.version
        last = page.events[-1].version if page.events else 0
        done = ended(len(page.events), last)
        return Page(rows=page.events, scanned_to=_END if done else last + step)

    start = _END if from_version is None else from_version
    lines = await _lines(opened, start, event_page if upcast else None, plain_page)
    headers = _headers(stream, version)
    if await _holds(opened, stream, headers["etag"], held):
        return Response(status_code=304, headers=headers)
    return LinesResponse(runtime.streams, lines, headers)


async def _lines(
    opened: Opened,
    start: int,
    upcast: NextPage[RecordedEvent] | None,
    plain: NextPage[PlainRow],
) -> AsyncIterator[bytes]:
    """Read the first page, so that refusals come before the answer begins; return the lines."""
    if upcast is not None:
        events = await upcast(start)
        return stream_lines(
            events, upcast, lambda rows: upcast_lines(rows, opened.deciders), end=_END
        )
    first = await plain(start)
    return stream_lines(first, plain, lambda rows: lines_of(rows, opened.intake), end=_END)


@router.get("/events", summary="Read all events")
async def read_events(
    request: Request,
    after: After = 0,
    limit: Limit = None,
    category: Category = None,
    type: Type = None,
    stream: OfStream = None,
    stream_prefix: StreamPrefix = None,
    tag: Tag = None,
    upcast: Upcast = False,
    accept: Accept = None,
) -> Response:
    """Return events by position. `next_after` is where the next call goes on; it equals `head`
    when everything was looked at.

    With `Accept: application/x-ndjson` all events up to the present head, one a line.
    """
    runtime = runtime_of(request)
    opened = runtime.opened
    filter_ = EventFilter(
        category=category, type=type, stream=stream, stream_prefix=stream_prefix, tag=tag
    )
    if _wants_lines(accept):
        return await _event_lines(runtime, after, limit, filter_, upcast)

    async def read(after: int, limit: int) -> EventPage:
        return await opened.store.read_all(after=after, limit=limit, filter_=filter_)

    return await _gathered(read, after, page_size(runtime, limit), _data(opened, upcast))


_TEXTS = {"type": "array", "items": {"type": "string"}}
_ITEM = {"type": "object", "properties": {"types": _TEXTS, "tags": _TEXTS}}
_QUERY = {
    "type": "object",
    "required": ["query"],
    "additionalProperties": False,
    "properties": {
        "query": {"type": "array", "minItems": 1, "items": _ITEM},
        "after": {"type": "integer", "minimum": 0},
        "limit": {"type": "integer", "minimum": 1},
    },
}


@router.post(
    "/events/query", summary="Read events by types and tags", openapi_extra=json_body(_QUERY)
)
async def query_events(request: Request, upcast: Upcast = False) -> Response:
    """Return events that one of the items matches: one of its types, and all of its tags.

    Once `next_after` equals `head`, `head` is the `after` of a condition on the same query.
    """
    runtime = runtime_of(request)
    raw = await read_body(request.scope, request.receive, runtime.config.max_body_bytes)
    document = parse_json(raw, runtime.config.limits.json_depth)
    if not isinstance(document, dict) or not document.keys() <= _QUERY_KEYS:
        raise InvalidRequest(
            "$: expected an object with query and, if you like, after and limit",
            remedy='Send {"query": [{"types": ["enrolled"], "tags": ["course:7"]}]}',
        )
    query = query_of(document.get("query"))
    after = _number(document, "after", 0, least=0)
    limit = page_size(runtime, _number(document, "limit", _USUAL_LIMIT, least=1), whole=False)
    opened = runtime.opened

    async def read(after: int, limit: int) -> EventPage:
        return await opened.store.query(query, after=after, limit=limit)

    return await _gathered(read, after, limit, _data(opened, upcast))


async def _gathered(
    read: Callable[[int, int], Awaitable[EventPage]], after: int, limit: int, data: EventData
) -> Response:
    """Answer with what several bounded reads give, up to the limit or the head."""
    events: list[RecordedEvent] = []
    start, size = after, 0
    for _ in range(_MAX_SCAN_PAGES):
        page = await read(after, limit - len(events))
        _check_head(start, page.head)
        events.extend(page.events)
        after = page.scanned_to
        size += sum(map(bytes_of, page.events))
        if len(events) >= limit or after >= page.head or size >= PAGE_BYTES:
            break
    document = {
        "events": await event_fragments(events, data),
        "head": max(page.head, after if events else 0),
        "next_after": after,
    }
    return answer(document)


async def _event_lines(
    runtime: Runtime, after: int, limit: int | None, filter_: EventFilter, upcast: bool
) -> Response:
    opened = runtime.opened
    head = await opened.store.head()
    _check_head(after, head)
    left = limit

    def ended(found: int, scanned_to: int) -> bool:
        nonlocal left
        left = None if left is None else left - found
        return scanned_to >= head or left == 0

    async def plain_page(place: int) -> Page[PlainRow]:
        count = PAGE if left is None else min(PAGE, left)
        page = await opened.store.rows_of_all(after=place, up_to=head, limit=count, filter_=filter_)
        done = ended(len(page.rows), page.scanned_to)
        return Page(rows=page.rows, scanned_to=_END if done else page.scanned_to)

    async def event_page(place: int) -> Page[RecordedEvent]:
        count = PAGE if left is None else min(PAGE, left)
        page = await opened.store.read_all(after=place, limit=count, filter_=filter_)
        rows = [event for event in page.events if event.position <= head]
        done = ended(len(rows), page.scanned_to)
        return Page(rows=rows, scanned_to=_END if done else page.scanned_to)

    lines = await _lines(opened, after, event_page if upcast else None, plain_page)
    return LinesResponse(runtime.streams, lines, {"penstock-head": str(head)})


@router.get(
    "/events/subscribe",
    summary="Follow all events (server-sent events or NDJSON)",
    response_class=StreamingResponse,
)
async def subscribe(
    request: Request,
    after: Annotated[str, Query(description="A position, or `end` for what happens now")] = "0",
    category: Category = None,
    type: Type = None,
    stream: OfStream = None,
    stream_prefix: StreamPrefix = None,
    tag: Tag = None,
    upcast: Upcast = False,
    last_event_id: Annotated[str | None, Header()] = None,
    accept: Accept = None,
) -> FeedResponse:
    """Send events behind a position as they are, then as they happen, without end.

    `id:` is the position; `Last-Event-ID` beats `after`. `event: caught-up` comes once, at the end
    of history; filtered feeds send `event: checkpoint` where 1,000 positions had no match.
    """
    runtime = runtime_of(request)
    opened = runtime.opened
    filter_ = EventFilter(
        category=category, type=type, stream=stream, stream_prefix=stream_prefix, tag=tag
    )
    start = await _start(opened, last_event_id or after)
    form = LINES if preferred(accept, NDJSON, SSE.media_type) == NDJSON else SSE
    kind = FeedKind(filter_=filter_, form=form, upcast=upcast)
    chunks = opened.feeds.chunks(kind, start, connection_of(request.scope))
    first = await anext(chunks, Chunk(body=b""))  # Refusals must come before the answer begins.
    return FeedResponse(runtime, form, chunks, first, form.named("evicted", start))


@router.get("/events/{event_id}", summary="Read one event")
async def read_event(request: Request, event_id: UUID, upcast: Upcast = False) -> Response:
    """Return one event by its id."""
    opened = runtime_of(request).opened
    event = await opened.store.event(event_id)
    return answer(orjson.Fragment(await event_json(event, _data(opened, upcast))))


def _wants_lines(accept: str | None) -> bool:
    return preferred(accept, NDJSON, *PAGE_FORMS) == NDJSON


def _check_head(after: int, head: int) -> None:
    """Refuse a place where the store has not come: events up to it would be passed over."""
    if after > head:
        raise BeyondHead(f"position {after} is beyond the head {head}", after=after, head=head)


def _data(opened: Opened, upcast: bool) -> EventData:
    return opened.deciders if upcast else opened.intake


async def _start(opened: Opened, text: str) -> Position:
    if text == "end":
        return await opened.store.head()
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return Position(int(text))
    raise InvalidRequest(
        f"{shown(text)} is no position", remedy="Send a whole number from 0, or `end`."
    )


def page_size(runtime: Runtime, limit: int | None, *, whole: bool = True) -> int:
    """Return how many entries a page of JSON may have; `whole`: all of them can be had at once.

    Raises `InvalidRequest`.
    """
    most = runtime.config.clients.page
    if limit is None:
        return min(_USUAL_LIMIT, most)
    if limit > most:
        raise InvalidRequest(
            f"limit: {limit} is more than the {most} entries that a page may have",
            remedy=f"Read page after page, or all of it at once with Accept: {NDJSON}."
            if whole
            else "Read page after page: each answer says where the next one begins.",
        )
    return limit


def _number(document: dict[str, object], name: str, usual: int, *, least: int) -> int:
    value = document.get(name, usual)
    if type(value) is int and least <= value < 2**63:
        return value
    raise InvalidRequest(f"$.{name}: expected a whole number from {least}")
