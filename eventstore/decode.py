"""From the broker's record back to the event that was appended.

Runs inside Spark's Python workers: pure, and quick to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

import orjson

from kernel.errors import SchemaViolation
from kernel.positions import Position, Version
from schemas.records import FORMAT_AVRO, KafkaRecord, RecordedEvent, Rejected
from schemas.wire import schema_id_of

STAGE = "decode"


def decode_event(record: KafkaRecord) -> RecordedEvent | Rejected:
    """Decode a record of a topic `events.<category>`.

    `data` stays the framed bytes. A record without one of the headers, in a data format that is
    not known, or whose framing contradicts its headers is `Rejected`, never an exception.
    """
    try:
        return _decode(record.headers, record.value)
    except _Unusable as unusable:
        reason = str(unusable)
    except (ValueError, SchemaViolation) as error:
        reason = f"{type(error).__name__}: {error}"
    return Rejected(record=record, stage=STAGE, reason=reason)


class _Unusable(Exception):
    """Carries the reason out of the header functions; never leaves this module."""


def _decode(headers: Mapping[str, bytes], value: bytes | None) -> RecordedEvent:
    if value is None:
        raise _Unusable("an event has no tombstone: the value is null")
    data_format = int(_text(headers, "data_format"))
    if data_format != FORMAT_AVRO:
        raise _Unusable(f"data_format {data_format} is not known; {FORMAT_AVRO} is framed Avro")
    schema_id = int(_text(headers, "schema_id"))
    if schema_id_of(value) != schema_id:
        raise _Unusable(f"header schema_id {schema_id}, but framed with {schema_id_of(value)}")
    return RecordedEvent(
        store_id=_text(headers, "store_id"),
        position=Position(_natural(headers, "position", least=1)),
        id=UUID(_text(headers, "id")),
        stream=_text(headers, "stream"),
        version=Version(_natural(headers, "version", least=0)),
        category=_text(headers, "category"),
        type=_text(headers, "type"),
        schema_id=schema_id,
        data_format=data_format,
        data=value,
        subject=_optional(headers, "subject"),
        key_id=_optional(headers, "key_id"),
        metadata=_metadata(_optional(headers, "metadata")),
        tags=_tags(_optional(headers, "tags")),
        occurred_at=_time(headers, "occurred_at"),
        recorded_at=_time(headers, "recorded_at"),
    )


def _optional(headers: Mapping[str, bytes], name: str) -> str | None:
    """Read a header that may be absent; a null column arrives as a null or empty header."""
    raw: bytes | None = headers.get(name)
    return raw.decode() if raw else None


def _text(headers: Mapping[str, bytes], name: str) -> str:
    text = _optional(headers, name)
    if text is None:
        raise _Unusable(f"header {name} is missing")
    return text


def _natural(headers: Mapping[str, bytes], name: str, *, least: int) -> int:
    number = int(_text(headers, name))
    if number < least:
        raise _Unusable(f"header {name} is {number}, must be at least {least}")
    return number


def _time(headers: Mapping[str, bytes], name: str) -> datetime:
    moment = datetime.fromisoformat(_text(headers, name))
    if moment.tzinfo is None:
        raise _Unusable(f"header {name} has no time zone")
    return moment.astimezone(UTC)


def _metadata(text: str | None) -> Mapping[str, object]:
    parsed = orjson.loads(text) if text else {}
    if not isinstance(parsed, dict):
        raise _Unusable("header metadata is not a JSON object")
    return parsed


def _tags(text: str | None) -> tuple[str, ...]:
    parsed = orjson.loads(text) if text else []
    if not isinstance(parsed, list) or not all(isinstance(tag, str) for tag in parsed):
        raise _Unusable("header tags is not a JSON array of texts")
    return tuple(parsed)
