"""From a record of an external topic to a row of its log: its bytes, and the time that they tell.

Runs inside Spark's Python workers. A record enters the log only where the declared columns can be
read from it, so that whoever makes typed rows of the log later meets nothing that cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from kernel.errors import NotFound
from schemas.foreign_rows import MOMENT
from schemas.records import KafkaRecord, Rejected, TopicRecord
from schemas.registry import SchemaLookup
from schemas.topic_records import AVRO, TopicRecords, TopicShape, event_times, moment_of
from schemas.wire import schema_id_of


@dataclass(frozen=True, slots=True)
class TopicDecoder:
    """Decodes the records of one external topic. Picklable as its schemas are."""

    shape: TopicShape
    schemas: SchemaLookup
    _records: TopicRecords = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_records", TopicRecords(self.shape, self.schemas))

    def __call__(self, record: KafkaRecord) -> TopicRecord | Rejected:
        """Decode one record.

        One that does not fit its declaration is `Rejected`, with the path of the value. Raises
        `Unavailable` when the registry does not answer: that says nothing about the record.
        """
        try:
            return self._decoded(record)
        except NotFound as error:
            return Rejected(record=record, stage="schema", reason=error.message)
        except UnicodeDecodeError as error:
            return Rejected(record=record, stage="decode", reason=f"not UTF-8: {error}")

    def _decoded(self, record: KafkaRecord) -> TopicRecord:
        schema_id = None
        if self.shape.format == AVRO:
            ((_, rows),) = self._records.parts([record.key], [record.value])
            told = event_times(self.shape, rows, pa.array([record.timestamp], MOMENT))
            own = bool(told["own"][0].as_py())
            event_time = told["time"][0].as_py()
            schema_id = None if record.value is None else schema_id_of(record.value)
        else:
            micros = moment_of(self.shape, self._records.values(record.key, record.value))
            own = micros is not None
            event_time = record.timestamp if micros is None else micros
        return TopicRecord(
            source=self.shape.source,
            event_time=event_time,
            own_time=own,
            schema_id=schema_id,
            key=record.key,
            value=record.value,
        )
