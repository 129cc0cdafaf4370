"""The records that the parts of Penstock hand to each other.

Two chains, one shared tail:

    Command -> NewEvent -> RecordedEvent -> KafkaRecord -> RecordedEvent -> log -> rows
    WAL -> KafkaRecord -> Change | SourceMessage | TransactionEnd | … -> log

All are immutable. Times are timezone-aware UTC with microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from kernel.positions import KafkaOffset, Lsn, Position, Version

MESSAGES = "_messages"
"""What the logical messages of a transaction count as, beside its tables."""
FORMAT_AVRO = 0
"""`data_format` of Avro bytes in the Confluent framing."""
FORMAT_SEALED = 1
"""`data_format` reserved for encrypted data; readers that do not know it quarantine the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event that a caller wants to have recorded. `data` is JSON-shaped."""

    id: UUID
    type: str
    data: Mapping[str, object]
    metadata: Mapping[str, object]
    tags: tuple[str, ...]
    occurred_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEvent:
    """A fact in the store, as PostgreSQL, Kafka and the log carry it.

    `data` is Avro in the five-byte framing, `schema_id` the id inside that framing.
    Identity is (store_id, position, id, content).
    """

    store_id: str
    position: Position
    id: UUID
    stream: str
    version: Version
    category: str
    type: str
    schema_id: int
    data_format: int
    data: bytes
    subject: str | None
    key_id: str | None
    metadata: Mapping[str, object]
    tags: tuple[str, ...]
    occurred_at: datetime
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaRecord:
    """One record as the broker gives it.

    `headers` has the last value of each name, empty for none. Where a name occurs twice, or has no
    value, `told` are all of them in their order.
    """

    topic: str
    partition: int
    offset: KafkaOffset
    timestamp: datetime
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]
    told: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def every_header(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return all headers, in their order."""
        return self.told or (*self.headers.items(),)

    @staticmethod
    def with_headers(
        told: Iterable[tuple[str, bytes | None]],
    ) -> tuple[dict[str, bytes], tuple[tuple[str, bytes | None], ...]]:
        """Return `headers` and `told` of some headers."""
        pairs = (*told,)
        headers = {name: value or b"" for name, value in pairs}
        plain = len(headers) == len(pairs) and all(value is not None for _, value in pairs)
        return headers, () if plain else pairs


class Operation(StrEnum):
    """What happened to a row, in Debezium's letters."""

    INSERT = "c"
    UPDATE = "u"
    DELETE = "d"
    TRUNCATE = "t"
    READ = "r"


LOGICAL_MESSAGE = "m"
"""Debezium's letter of a logical message, which concerns no row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row-level change of a captured table.

    Order within a source is (`commit_order`, `lsn`, `total_order`): the commit position of the
    transaction before, which grows from one transaction to the next, then the row's place inside
    its own transaction. An LSN alone is not an order. Rows of a snapshot carry no transaction, the
    snapshot's own LSN as `commit_order`, and `snapshot` set.
    `value` and `key` are the original Avro bytes in the five-byte framing.
    """

    source: str
    table: str
    operation: Operation
    transaction_id: str | None
    lsn: Lsn
    commit_order: int
    total_order: int
    snapshot: bool
    committed_at: datetime
    event_time: datetime
    schema_id: int
    key_schema_id: int | None
    key: bytes | None
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMessage:
    """A logical message that somebody wrote inside a transaction of the source.

    It has its place among the transaction's rows, as a `Change` has. Prefix `penstock.ddl` tells of
    DDL: `content` is then the JSON of `schemas.schema_change`. `value` are the original bytes.
    """

    source: str
    prefix: str
    content: str
    transaction_id: str
    lsn: Lsn
    commit_order: int
    total_order: int
    committed_at: datetime
    schema_id: int
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionBegin:
    """A source transaction begins, or once more when its connector started again amid it."""

    source: str
    transaction_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """A committed source transaction: how many rows of which table belong to it.

    Logical messages count as rows of `MESSAGES`.
    """

    source: str
    transaction_id: str
    commit_lsn: Lsn
    counts: Mapping[str, int]
    committed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEnd:
    """A table's snapshot is complete: how many rows it has. `table` None ends the whole one."""

    source: str
    table: str | None
    rows: int
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """One record of an external topic, as it is: `CREATE SOURCE` says what its bytes mean.

    `own_time` is false where `event_time` is the record's Kafka timestamp. `schema_id` is that of
    a value in Avro.
    """

    source: str
    event_time: datetime
    own_time: bool
    schema_id: int | None
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A record that cannot be used, with where and why. It goes to quarantine with its bytes.

    `source` and `table` say what its topic belongs to, where that is a captured source: a table,
    as the topic is named after it, or `_transactions`, `_messages`, `_snapshots`.
    """

    record: KafkaRecord
    stage: str
    reason: str
    source: str | None = None
    table: str | None = None


Decoded = (
    RecordedEvent
    | Change
    | SourceMessage
    | TransactionBegin
    | TransactionEnd
    | SnapshotEnd
    | TopicRecord
    | Rejected
)
