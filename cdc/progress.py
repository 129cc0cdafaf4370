"""How far the first snapshot is, from the notifications that the connector writes to Kafka."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from cdc.decode import SNAPSHOT
from kernel.errors import SchemaViolation, Unavailable
from schemas.columns import decode_value
from schemas.registry import SchemaLookup
from schemas.wire import schema_id_of

_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotProgress:
    """The latest attempt at a snapshot. `tables` maps tables that are through to their rows.

    `state`: not started, running, completed, aborted. `at`: when it was last heard of.
    """

    state: str
    attempts: int
    tables: dict[str, int]
    current: str | None
    at: datetime | None


def snapshot_progress(bootstrap: str, topic: str, schemas: SchemaLookup) -> SnapshotProgress:
    """Read a source's notification topic from its beginning; it has a few records per table.

    Raises `Unavailable` when the broker or the registry does not answer.
    """
    state, attempts, current, at = "not started", 0, None, None
    tables: dict[str, int] = {}
    for told in _notifications(bootstrap, topic, schemas):
        details = told["additional_data"] or {}
        at = datetime.fromtimestamp(told["timestamp"] / 1000, UTC)
        match told["type"]:
            case "STARTED":
                state, attempts, current, tables = "running", attempts + 1, None, {}
            case "IN_PROGRESS":
                current = details.get("current_collection_in_progress")
            case "TABLE_SCAN_COMPLETED":
                tables[details["scanned_collection"]] = int(details["total_rows_scanned"])
            case "COMPLETED":
                state, current = "completed", None
            case "ABORTED":
                state = "aborted"
    return SnapshotProgress(state=state, attempts=attempts, tables=tables, current=current, at=at)


def _notifications(bootstrap: str, topic: str, schemas: SchemaLookup) -> Iterator[dict[str, Any]]:
    for value in _values(bootstrap, topic):
        try:
            told = decode_value(value, schemas.schema(schema_id_of(value)))
        except SchemaViolation:
            # Not a notification: ingest puts it into quarantine, progress can do without it.
            continue
        if told.get("aggregate_type") == SNAPSHOT:
            yield told


def _values(bootstrap: str, topic: str) -> Iterator[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"penstock-progress-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        parts = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        if not parts:
            return
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in parts])
        open_parts = len(parts)
        while open_parts:
            message = consumer.poll(_TIMEOUT_S)
            if message is None:
                raise Unavailable(f"no answer from {bootstrap} while reading {topic}")
            value, error = message.value(), message.error()
            if error is None:
                if value is not None:
                    yield value
            elif error.name() == "_PARTITION_EOF":
                open_parts -= 1
            else:
                raise Unavailable(f"{topic}: {error}")
    except KafkaException as error:
        raise Unavailable(f"Kafka at {bootstrap} does not answer: {error}") from error
    finally:
        consumer.close()
