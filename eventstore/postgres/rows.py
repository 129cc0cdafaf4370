"""Rows of `es.events` to records, and events with their places to COPY lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, cast
from uuid import UUID

import orjson

from eventstore.decision import Placed
from eventstore.lifecycle import StreamPolicy
from eventstore.store import EncodedEvent
from kernel.positions import Position, Version
from schemas.records import RecordedEvent

T = TypeVar("T")
EVENT_COLUMNS = (
    "position, id, stream, version, category, type, schema_id, data_format, data, subject, "
    "key_id, metadata, tags, occurred_at, recorded_at"
)
COPY_EVENTS = (
    "COPY es.events (position, store_id, id, stream, version, category, type, schema_id, "
    "data_format, data, subject, key_id, metadata, tags, occurred_at, recorded_at) FROM STDIN"
)
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def of_row(kind: type[T], row: Sequence[Any]) -> T:
    """Make a value of a row that was selected by the names of its fields, in their order."""
    return kind(**dict(zip(_fields_of(cast("Any", kind)), row, strict=True)))


def recorded(row: Sequence[Any], store_id: str) -> RecordedEvent:
    """Make a record of a row that was selected by `EVENT_COLUMNS`."""
    return RecordedEvent(
        store_id=store_id,
        position=Position(row[0]),
        id=row[1],
        stream=row[2],
        version=Version(row[3]),
        category=row[4],
        type=row[5],
        schema_id=row[6],
        data_format=row[7],
        data=row[8],
        subject=row[9],
        key_id=row[10],
        metadata=row[11],
        tags=tuple(row[12]),
        occurred_at=row[13],
        recorded_at=row[14],
    )


def stored(row: Sequence[Any]) -> tuple[UUID, Placed]:
    """Make an event with its place of a row that was selected by `EVENT_COLUMNS`."""
    event = EncodedEvent(
        id=row[1],
        type=row[5],
        schema_id=row[6],
        data_format=row[7],
        data=row[8],
        subject=row[9],
        key_id=row[10],
        metadata=row[11],
        tags=tuple(row[12]),
        occurred_at=row[13],
    )
    place = Placed(
        event=event,
        stream=row[2],
        category=row[4],
        version=row[3],
        position=row[0],
        occurred_at=row[13],
        recorded_at=row[14],
    )
    return event.id, place


def policy_values(policies: Mapping[str, StreamPolicy]) -> dict[str, object]:
    """Return what `set_policies.sql` needs for the policies of some streams."""
    names = _fields_of(StreamPolicy)
    columns = {name: [getattr(each, name) for each in policies.values()] for name in names}
    return {"streams": [*policies], **columns}


def copy_lines(placed: Sequence[Placed], store_id: str) -> bytes:
    """Render events in COPY's text format, one line each, columns as in `COPY_EVENTS`."""
    lines = []
    last: datetime | None = None
    recorded_at = ""
    for place in placed:
        event = place.event
        if place.recorded_at is not last:
            last, recorded_at = place.recorded_at, place.recorded_at.isoformat()
        occurred_at = recorded_at if place.occurred_at is last else place.occurred_at.isoformat()
        metadata = _escaped(orjson.dumps(event.metadata).decode()) if event.metadata else "{}"
        lines.append(
            f"{place.position}\t{store_id}\t{event.id}\t{_escaped(place.stream)}\t{place.version}"
            f"\t{place.category}\t{event.type}\t{event.schema_id}\t{event.data_format}"
            f"\t\\\\x{event.data.hex()}\t{_nullable(event.subject)}\t{_nullable(event.key_id)}"
            f"\t{metadata}\t{_escaped(_array(event.tags))}\t{occurred_at}\t{recorded_at}\n"
        )
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    """Escape for COPY. Most texts hold nothing to escape, and `isprintable` is the quick test."""
    return text if text.isprintable() and "\\" not in text else text.translate(_COPY_ESCAPES)


def _nullable(text: str | None) -> str:
    return "\\N" if text is None else _escaped(text)


def _array(items: Sequence[str]) -> str:
    """Render an array literal, every element quoted."""
    if not items:
        return "{}"
    quoted = (item.replace("\\", "\\\\").replace('"', '\\"') for item in items)
    return "{" + ",".join(f'"{item}"' for item in quoted) + "}"
