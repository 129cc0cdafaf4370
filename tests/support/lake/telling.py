"""A lake that is told events as JSON: from the service's intake to epochs and typed tables.

Everything between them is the product's own; Kafka and PostgreSQL alone are left out.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa

from eventstore.codecs import Codecs
from eventstore.decode import EventDecoder
from eventstore.intake import Intake
from eventstore.store import EncodedEvent
from kernel.positions import KafkaOffset
from lake.layout import Lake
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.commit.manifest_rows import Committed
from pipeline.decode.records import decode, row_of
from pipeline.history.tables import HistoryTables
from pipeline.typed.tables import TypedTables
from projections.run.derived_tables import Brought, DerivedTables
from schemas.records import KafkaRecord, NewEvent
from schemas.registry import MemoryRegistry
from tests.support.lake.ingested import BatchedLake
from tests.support.store.memory import MemorySchemaCache

STORE = "0b0f7a0e-0000-4000-8000-000000000002"
AT = datetime(2013, 1, 1, tzinfo=UTC)


@dataclass
class BreakingRegistry(MemoryRegistry):
    """A registry that fails for some schemas in a way that a test chose."""

    broken: dict[int, Exception | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()

    def schema(self, schema_id: int) -> str:
        found = self.broken.get(schema_id)
        if isinstance(found, Exception):
            raise found
        return found or super().schema(schema_id)


@dataclass(frozen=True)
class Known:
    """All schemas that a registry ever had."""

    registry: MemoryRegistry

    def schema(self, schema_id: int) -> str:
        """Return the text of a schema."""
        return MemoryRegistry.schema(self.registry, schema_id)


@dataclass
class ToldLake(BatchedLake):
    """Events of category `order`, one epoch at a time."""

    lake: Lake
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    position: int = 0
    _records: list[KafkaRecord] = field(default_factory=list)
    offset: int = 0
    batch: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()
        self.intake = Intake(self.registry, MemorySchemaCache(), "infer", Codecs())
        self.typed = TypedTables(self.lake, self.tables, self.registry)
        self.derived = DerivedTables(
            self.lake,
            self.tables,
            self.manifest,
            self.typed,
            # There are no histories.
            cast("HistoryTables", None),
        )

    def tell(self, type_: str, data: Mapping[str, Any]) -> int:
        """Append an event; return its position. Raises what an append of it raises."""
        self.send(self.appended(type_, data))
        return self.position

    def appended(self, type_: str, data: Mapping[str, Any]) -> KafkaRecord:
        """Append an event; return its record, which is not sent yet."""
        event = NewEvent(
            id=uuid.uuid4(), type=type_, data=dict(data), metadata={}, tags=(), occurred_at=AT
        )
        (encoded,) = asyncio.run(self.intake.encode("order", [event]))
        self.position += 1
        return _record(encoded, self.position)

    def send(self, record: KafkaRecord) -> None:
        """Put a record at the end of the topic, whoever wrote it."""
        self._records.append(replace(record, offset=KafkaOffset(self.offset)))
        self.offset += 1

    def epoch(self) -> Committed:
        """Make an epoch of what was told since the last one."""
        self.batch = self.redecode(self._records).to_pylist()
        self._records.clear()
        return self.between({}, {"events.order": {"0": self.offset}})

    def redecode(self, records: Sequence[KafkaRecord]) -> pa.Table:
        """Decode records. Ingest has every schema in its cache, whatever the registry loses."""
        decoder = EventDecoder(Known(self.registry))
        rows = [row_of(record, decode(record, decoder)) for record in records]
        return pa.Table.from_pylist(rows, schema=DECODED)

    def bring(self) -> Brought:
        """Bring typed tables up to the last epoch."""
        last = self.manifest.last()
        assert last is not None, "there is an epoch"
        return self.derived.bring(self.derived.at(), last, [])

    def rows(self, type_: str) -> list[dict[str, Any]]:
        """Return a type's rows in the order of their positions."""
        found = Tables().read(self.lake.path(f"typed/events.order.{type_}"))
        return [] if found is None else found.sort_by("position").to_pylist()


def _record(event: EncodedEvent, position: int) -> KafkaRecord:
    headers = {
        "id": str(event.id),
        "store_id": STORE,
        "type": event.type,
        "stream": "order-9",
        "category": "order",
        "version": str(position - 1),
        "position": str(position),
        "schema_id": str(event.schema_id),
        "data_format": "0",
        "metadata": "{}",
        "tags": "[]",
        "occurred_at": AT.isoformat(),
        "recorded_at": AT.isoformat(),
    }
    return KafkaRecord(
        topic="events.order",
        partition=0,
        offset=KafkaOffset(0),
        timestamp=AT,
        key=b"order-9",
        value=event.data,
        headers={name: text.encode() for name, text in headers.items()},
    )
