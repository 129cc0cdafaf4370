"""Recorded events as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from eventstore.intake import Intake
from schemas.json_codec import json_default
from schemas.records import RecordedEvent

_OPTIONS = orjson.OPT_UTC_Z


async def event_document(event: RecordedEvent, intake: Intake) -> dict[str, Any]:
    """Return an event as it is shown to callers, its data decoded."""
    return {
        "id": event.id,
        "stream": event.stream,
        "category": event.category,
        "version": event.version,
        "position": event.position,
        "type": event.type,
        "schema_id": event.schema_id,
        "data": await intake.decode(event),
        "metadata": event.metadata,
        "tags": event.tags,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
    }


async def event_documents(events: Iterable[RecordedEvent], intake: Intake) -> list[dict[str, Any]]:
    """Return events as they are shown to callers, in order."""
    return [await event_document(event, intake) for event in events]


def dump(document: object) -> bytes:
    """Render a document that may hold decoded data."""
    return orjson.dumps(document, default=json_default, option=_OPTIONS)
