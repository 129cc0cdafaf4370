"""Messages of feeds as they are sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import assert_never

from eventstore.feed import CaughtUp, Checkpoint, FeedItem, FeedReach, Idle
from schemas.records import RecordedEvent
from service.ndjson import NDJSON

Document = Callable[[RecordedEvent], Awaitable[bytes]]
"""Gives an event as it is shown to callers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Messages as they are sent, what tells a slow client how far it got with them, and how many
    events or changes they are.
    """

    body: bytes
    farewell: bytes = b""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How items are written."""

    media_type: str
    opening: bytes
    heartbeat: bytes
    event: Callable[[int, bytes], bytes]
    named: Callable[[str, int], bytes]
    failed: Callable[[bytes], bytes]


Feed = AsyncGenerator[Sequence[FeedItem], None]
Chunks = AsyncGenerator[Chunk, None]


# A comment opens the stream, so that clients see it before the first event.
SSE = Form(
    media_type="text/event-stream",
    opening=b": penstock\n\n",
    heartbeat=b": heartbeat\n\n",
    event=lambda position, document: b"id: %d\ndata: %b\n\n" % (position, document),
    named=lambda name, position: (
        b'event: %b\nid: %d\ndata: {"position":%d}\n\n' % (name.encode(), position, position)
    ),
    failed=lambda problem: b"event: failed\ndata: %b\n\n" % problem,
)
LINES = Form(
    media_type=NDJSON,
    opening=b"",
    heartbeat=b'{"event":"heartbeat"}\n',
    event=lambda _position, document: document + b"\n",
    named=lambda name, position: b'{"event":"%b","position":%d}\n' % (name.encode(), position),
    failed=lambda problem: b'{"event":"failed","problem":%b}\n' % problem,
)


async def event_chunks(feed: Feed, place: FeedReach, form: Form, document: Document) -> Chunks:
    """Write the items of a feed of events, whose place is given."""
    async with aclosing(feed):
        async for items in feed:
            messages = [await _message(item, form, document) for item in items]
            yield Chunk(
                body=b"".join(messages),
                farewell=form.named("evicted", place.said),
                count=sum(isinstance(item, RecordedEvent) for item in items),
            )


async def _message(item: FeedItem, form: Form, document: Document) -> bytes:
    match item:
        case RecordedEvent():
            return form.event(item.position, await document(item))
        case CaughtUp(position=position):
            return form.named("caught-up", position)
        case Checkpoint(position=position):
            return form.named("checkpoint", position)
        case Idle():
            return form.heartbeat
        case _:
            assert_never(item)
