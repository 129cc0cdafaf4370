"""Kafka records to log rows, in Arrow batches, inside Spark's Python workers.

`decode_batches` is handed to `mapInArrow`; the same function runs in the driver and in tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Unavailable
from kernel.positions import KafkaOffset
from lake.table_columns import (
    CHANGE,
    DECODED,
    EVENT,
    IGNORED,
    MESSAGE,
    MESSAGES_TABLE,
    RECORD,
    REJECTED,
    SCHEMA_TABLE,
    SNAPSHOT_END,
    TRANSACTION_BEGIN,
    TRANSACTION_END,
)
from pipeline.decode.side_by_side import side_by_side
from schemas.header_text import text_of_headers
from schemas.records import (
    LOGICAL_MESSAGE,
    Change,
    Decoded,
    KafkaRecord,
    RecordedEvent,
    Rejected,
    SnapshotEnd,
    SourceMessage,
    TopicRecord,
    TransactionBegin,
    TransactionEnd,
)
from schemas.schema_change import MESSAGE_PREFIX

Decoder = Callable[[KafkaRecord], Decoded | None]
"""Turns one record into a fact, a rejection, or None when it carries none (a tombstone, say).

It raises `Unavailable` when it cannot tell now (the registry is away): the batch is retried.
"""

Row = dict[str, object]


class Router(Protocol):
    """Knows which decoder a topic takes. Must be picklable: it travels to Spark's workers."""

    def decoder(self, topic: str) -> Decoder | None:
        """Return the decoder of a topic; None for a topic that nothing claims."""
        ...


AT_ONCE_ROWS, AT_ONCE_BYTES = 10_000, 8 * 2**20
"""Batches that have fewer are put together before they are decoded."""


_CALENDAR = [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]


@dataclass(frozen=True, slots=True)
class BatchDecoder:
    """The function that `mapInArrow` runs, with the router it needs."""

    router: Router

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode batches of topic, partition, offset, timestamp, key, value, headers.

        Yields one `DECODED` row per record, in no order.
        """
        return decode_batches(put_together(batches), self.router)


def put_together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together, in their order, so that many records are decoded at once."""
    small: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        small.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= AT_ONCE_ROWS or size >= AT_ONCE_BYTES:
            yield from _one(small)
            small, rows, size = [], 0, 0
    yield from _one(small)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(pa.Table.from_batches(batches).combine_chunks().to_batches()) if batches else []


def decode_batches(batches: Iterator[pa.RecordBatch], router: Router) -> Iterator[pa.RecordBatch]:
    """Decode Arrow batches of Kafka records; see `BatchDecoder`."""
    decoders: dict[str, Decoder | None] = {}
    for batch in batches:
        yield from decode_batch(batch, router, decoders)


def decode_batch(
    batch: pa.RecordBatch, router: Router, decoders: dict[str, Decoder | None]
) -> Iterator[pa.RecordBatch]:
    """Decode one Arrow batch of Kafka records; see `BatchDecoder`.

    `decoders` holds the decoders of the topics that came before, from one batch to the next.
    """
    batch = _in_the_calendar(batch)
    for topic in pc.unique(batch.column("topic")).to_pylist():
        if topic not in decoders:
            decoders[topic] = router.decoder(topic)
    alike, rest = side_by_side(batch, decoders)
    yield from alike
    rows = [row_of(r, decode(r, decoders[r.topic])) for r in kafka_records(rest)]
    yield pa.RecordBatch.from_pylist(rows, schema=DECODED)


def _in_the_calendar(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return records of which each has a time that Python and SQL can write.

    A producer sets it as it likes, and brokers before 4.0 take any: what lies beyond the year 9999
    or before the year 1 is the last or the first moment there is.
    """
    times = batch.column("timestamp")
    numbers = times.cast(pa.int64())
    first, last = pa.array(_CALENDAR, times.type).cast(pa.int64()).to_pylist()
    found = pc.min_max(numbers).as_py()
    if not len(times) or first <= found["min"] <= found["max"] <= last:
        return batch
    held = pc.min_element_wise(pc.max_element_wise(numbers, first), last)
    place = batch.schema.get_field_index("timestamp")
    return batch.set_column(place, batch.schema.field(place), held.cast(times.type))


def kafka_records(batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
    """Iterate over a batch as Kafka records, in its order."""
    for raw in batch.to_pylist():
        own = raw["headers"] or ()
        headers, told = KafkaRecord.with_headers((each["key"], each["value"]) for each in own)
        yield KafkaRecord(
            topic=raw["topic"],
            partition=raw["partition"],
            offset=KafkaOffset(raw["offset"]),
            timestamp=_utc(raw["timestamp"]),
            key=raw["key"],
            value=raw["value"],
            headers=headers,
            told=told,
        )


def decode(record: KafkaRecord, decoder: Decoder | None) -> Decoded | None:
    """Decode one record. Whatever a decoder trips over becomes a rejection with its reason.

    Raises `Unavailable` only: everything else is a property of the record.
    """
    if decoder is None:
        return Rejected(record=record, stage="route", reason=f"no source claims {record.topic}")
    try:
        return decoder(record)
    except Unavailable:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Rejected(record=record, stage="decode", reason=reason[:2000])


def row_of(record: KafkaRecord, decoded: Decoded | None) -> Row:
    """Lay out a decoded record as a `DECODED` row."""
    place: Row = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "kafka_time": record.timestamp,
    }
    match decoded:
        case None:
            return {**place, "kind": IGNORED}
        case RecordedEvent():
            return place | _event(decoded)
        case Change():
            return place | _change(decoded)
        case SourceMessage():
            return place | _message(decoded)
        case TopicRecord():
            return place | _record(decoded) | {"metadata": text_of_headers(record.every_header)}
        case TransactionBegin():
            return place | {
                "kind": TRANSACTION_BEGIN,
                "source": decoded.source,
                "transaction_id": decoded.transaction_id,
            }
        case TransactionEnd():
            return place | {
                "kind": TRANSACTION_END,
                "source": decoded.source,
                "transaction_id": decoded.transaction_id,
                "lsn": decoded.commit_lsn,
                "counts": json.dumps(dict(decoded.counts)),
                "recorded_at": decoded.committed_at,
            }
        case SnapshotEnd():
            return place | {
                "kind": SNAPSHOT_END,
                "source": decoded.source,
                "table": decoded.table,
                "counts": json.dumps({"rows": decoded.rows}),
                "recorded_at": decoded.finished_at,
            }
        case Rejected():
            return place | {
                "kind": REJECTED,
                "stage": decoded.stage,
                "reason": decoded.reason,
                "key": record.key,
                "value": record.value,
                "metadata": text_of_headers(record.every_header),
                "source": decoded.source,
                "table": decoded.table,
            }
        case _:
            assert_never(decoded)


def _event(event: RecordedEvent) -> Row:
    return {
        "kind": EVENT,
        "source": event.store_id,
        "table": event.category,
        "position": event.position,
        "event_id": str(event.id),
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "data_format": event.data_format,
        "subject": event.subject,
        "key_id": event.key_id,
        "metadata": json.dumps(dict(event.metadata)),
        "tags": list(event.tags),
        "event_time": event.occurred_at,
        "recorded_at": event.recorded_at,
        "schema_id": event.schema_id,
        "value": event.data,
    }


def _change(change: Change) -> Row:
    return {
        "kind": CHANGE,
        "source": change.source,
        "table": change.table,
        "operation": change.operation.value,
        "transaction_id": change.transaction_id,
        "lsn": change.lsn,
        "commit_order": change.commit_order,
        "total_order": change.total_order,
        "snapshot": change.snapshot,
        "recorded_at": change.committed_at,
        "event_time": change.event_time,
        "schema_id": change.schema_id,
        "key_schema_id": change.key_schema_id,
        "key": change.key,
        "value": change.value,
    }


def _record(record: TopicRecord) -> Row:
    return {
        "kind": RECORD,
        "source": record.source,
        "table": record.source,
        "event_time": record.event_time,
        "own_time": record.own_time,
        "schema_id": record.schema_id,
        "key": record.key,
        "value": record.value,
    }


def _message(message: SourceMessage) -> Row:
    return {
        "kind": MESSAGE,
        "source": message.source,
        "table": SCHEMA_TABLE if message.prefix == MESSAGE_PREFIX else MESSAGES_TABLE,
        "operation": LOGICAL_MESSAGE,
        "transaction_id": message.transaction_id,
        "lsn": message.lsn,
        "commit_order": message.commit_order,
        "total_order": message.total_order,
        "snapshot": False,
        "recorded_at": message.committed_at,
        "event_time": message.committed_at,
        "counts": message.content,
        "schema_id": message.schema_id,
        "value": message.value,
    }


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
