"""Making requests for event stores, shortly."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from eventstore.names import category_of
from eventstore.store import AppendRequest, EncodedEvent, Expected, StreamAppend
from schemas.wire import frame


def event(
    body: bytes = b"x",
    *,
    id_: uuid.UUID | None = None,
    type_: str = "happened",
    tags: tuple[str, ...] = (),
    metadata: Mapping[str, object] | None = None,
    occurred_at: datetime | None = None,
) -> EncodedEvent:
    """Make an event; the body stands for Avro."""
    return EncodedEvent(
        id=id_ or uuid.uuid4(),
        type=type_,
        schema_id=7,
        data=frame(7, body),
        metadata=metadata or {},
        tags=tags,
        occurred_at=occurred_at,
    )


def to(
    stream: str, events: Sequence[EncodedEvent] | None = None, expected: Expected = "any"
) -> StreamAppend:
    """Address events to a stream (one new event when none are given)."""
    given = tuple(events) if events is not None else (event(),)
    return StreamAppend(
        stream=stream, category=category_of(stream), expected=expected, events=given
    )


def request(*appends: StreamAppend) -> AppendRequest:
    """Ask for all of them together."""
    return AppendRequest(appends=appends)
