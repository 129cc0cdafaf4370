"""From the broker's record back to the event that was appended.

Runs inside Spark's Python workers. Whoever can write to a topic can send a record with headers that
claim the position of an event. So a record is an event only when its place and its body agree with
its headers: an event whose position somebody else took would be dropped as its own repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

import pyarrow as pa

from eventstore.event_vectors import read_events
from eventstore.headers import Unusable, metadata_of, tags_of
from kernel.errors import NotFound, SchemaViolation
from kernel.positions import LARGEST, Position, Version
from schemas.columns import decode_value
from schemas.records import FORMAT_AVRO, KafkaRecord, RecordedEvent, Rejected
from schemas.registry import SchemaLookup
from schemas.wire import schema_id_of


@dataclass(frozen=True, slots=True)
class EventDecoder:
    """Decodes every topic of the event store, with `decode_event`. Picklable as its schemas are."""

    schemas: SchemaLookup

    def __call__(self, record: KafkaRecord) -> RecordedEvent | Rejected:
        """Decode one record."""
        return decode_event(record, self.schemas)

    def many(self, topic: str, records: pa.RecordBatch) -> pa.Table | None:
        """Decode many ordinary events of one topic and schema at once; see `event_vectors`.

        None, or an error, where that is not possible: then each is to be decoded for itself.
        """
        schema_id = schema_id_of(records.column("value")[0].as_py())
        return read_events(topic, records, schema_id, self.schemas.schema(schema_id))


def decode_event(record: KafkaRecord, schemas: SchemaLookup) -> RecordedEvent | Rejected:
    """Decode a record of a topic `events.<category>`.

    `data` stays the framed bytes, of which is known that their schema reads them. A record without
    one of the headers, in a data format that is not known, whose topic, key or framing contradicts
    its headers, or whose body cannot be read is `Rejected`, never an exception.
    Raises `Unavailable` when the registry does not answer: that says nothing about the record.
    """
    stage = "decode"
    try:
        event = _decode(record.headers, record.value)
        _check_place(record, event)
        decode_value(event.data, schemas.schema(event.schema_id))
        return event
    except Unusable as unusable:
        reason = str(unusable)
    except NotFound as error:
        stage, reason = "schema", error.message
    except (ValueError, SchemaViolation) as error:
        reason = f"{type(error).__name__}: {error}"
    return Rejected(record=record, stage=stage, reason=reason)


def _decode(headers: Mapping[str, bytes], value: bytes | None) -> RecordedEvent:
    if value is None:
        raise Unusable("an event has no tombstone: the value is null")
    data_format = int(_text(headers, "data_format"))
    if data_format != FORMAT_AVRO:
        raise Unusable(f"data_format {data_format} is not known; {FORMAT_AVRO} is framed Avro")
    schema_id = int(_text(headers, "schema_id"))
    if schema_id_of(value) != schema_id:
        raise Unusable(f"header schema_id {schema_id}, but framed with {schema_id_of(value)}")
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
        metadata=metadata_of(_optional(headers, "metadata")),
        tags=tags_of(_optional(headers, "tags")),
        occurred_at=_time(headers, "occurred_at"),
        recorded_at=_time(headers, "recorded_at"),
    )


def _check_place(record: KafkaRecord, event: RecordedEvent) -> None:
    """Refuse an event that lies where the outbox would not have put it (`cdc.connectors`)."""
    if record.topic.rpartition(".")[2] != event.category:
        raise Unusable(f"topic {record.topic} is not that of category {event.category}")
    if record.key != event.stream.encode():
        raise Unusable(f"the record's key is not its stream {event.stream}")


def _optional(headers: Mapping[str, bytes], name: str) -> str | None:
    """Read a header that may be absent; a null column arrives as a null or empty header."""
    raw: bytes | None = headers.get(name)
    return raw.decode() if raw else None


def _text(headers: Mapping[str, bytes], name: str) -> str:
    text = _optional(headers, name)
    if text is None:
        raise Unusable(f"header {name} is missing")
    return text


def _natural(headers: Mapping[str, bytes], name: str, *, least: int) -> int:
    number = int(_text(headers, name))
    if not least <= number <= LARGEST:
        raise Unusable(f"header {name} is {number}, must be from {least} to {LARGEST}")
    return number


def _time(headers: Mapping[str, bytes], name: str) -> datetime:
    moment = datetime.fromisoformat(_text(headers, name))
    if moment.tzinfo is None:
        raise Unusable(f"header {name} has no time zone")
    return moment.astimezone(UTC)
