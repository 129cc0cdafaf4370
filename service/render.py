"""Recorded events as JSON documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import orjson
from fastapi import Response

from kernel.errors import ContractViolation, Incompatible, NotFound
from schemas.json_codec import json_default
from schemas.records import RecordedEvent

_OPTIONS = orjson.OPT_UTC_Z
_REASON_CHARS = 500


class EventData(Protocol):
    """Gives the data of recorded events: as written (`Intake`), or in the newest shape."""

    async def decode(self, event: RecordedEvent) -> dict[str, Any]:
        """Return an event's data as values that `dump` takes."""
        ...


async def event_document(event: RecordedEvent, data: EventData) -> dict[str, Any]:
    """Return an event as it is shown to callers, its data decoded.

    Raises what `data.decode` raises.
    """
    return _document(event, await data.decode(event), event.metadata)


async def event_json(event: RecordedEvent, data: EventData) -> bytes:
    """Render an event as it is shown to callers.

    One that cannot be rendered is shown without data, and says why under `unreadable`: readers get
    on with what follows. Raises `Unavailable` when its schema cannot be asked for just now.
    """
    try:
        return dump(await event_document(event, data))
    except (Incompatible, NotFound, ContractViolation, orjson.JSONEncodeError) as error:
        return dump(unreadable_document(event, str(error)))


def unreadable_document(event: RecordedEvent, why: str) -> dict[str, Any]:
    """Return an event whose content cannot be shown: all that can be said of it."""
    return {**_document(event, None, {}), "unreadable": why[:_REASON_CHARS]}


def _document(event: RecordedEvent, data: object, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": event.id,
        "stream": event.stream,
        "category": event.category,
        "version": event.version,
        "position": event.position,
        "type": event.type,
        "schema_id": event.schema_id,
        "data": data,
        "metadata": metadata,
        "tags": event.tags,
        "occurred_at": event.occurred_at,
        "recorded_at": event.recorded_at,
    }


async def event_fragments(
    events: Iterable[RecordedEvent], data: EventData
) -> list[orjson.Fragment]:
    """Return events as they are shown to callers, in order, each rendered by itself."""
    return [orjson.Fragment(await event_json(event, data)) for event in events]


def answer(
    document: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with a document, of which dataclasses may be a part: an object of their fields."""
    return Response(
        dump(document), status_code=status, media_type="application/json", headers=headers
    )


def dump(document: object) -> bytes:
    """Render a document that may hold decoded data."""
    return orjson.dumps(document, default=json_default, option=_OPTIONS)
