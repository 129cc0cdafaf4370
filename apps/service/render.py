"""Recorded events as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import orjson

from schemas.json_codec import json_default
from schemas.records import RecordedEvent

_OPTIONS = orjson.OPT_UTC_Z


class EventData(Protocol):
    """Gives the data of recorded events: as written (`Intake`), or in the newest shape."""

    async def decode(self, event: RecordedEvent) -> dict[str, Any]:
        """Return an event's data as values that `dump` takes."""
        ...


async def event_document(event: RecordedEvent, data: EventData) -> dict[str, Any]:
    """Return an event as it is shown to callers, its data decoded."""
    return {
        "id": event.id,
        "stream": event.stream,
        "category": event.category,
        "version": event.version,
        "position": event.position,
        "type": event.type,
        "schema_id": event.schema_id,
        "data": await data.decode(event),
        "metadata": event.metadata,
        "tags": event.tags,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
    }


async def event_documents(events: Iterable[RecordedEvent], data: EventData) -> list[dict[str, Any]]:
    """Return events as they are shown to callers, in order."""
    return [await event_document(event, data) for event in events]


def dump(document: object) -> bytes:
    """Render a document that may hold decoded data."""
    return orjson.dumps(document, default=json_default, option=_OPTIONS)
