"""Changes of a projection's rows as the records of a Kafka topic.

    Changes -> KeyedRecord: key and value as Avro in the Confluent framing, headers

The value is the new row; a row that is gone is a tombstone, which has no value. Headers tell what
happened to the row and which run of the projection did it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa

from kernel.errors import Incompatible
from projections.serve.keyed_rows import named
from projections.serve.table_steps import Changes
from projections.sinks.placed_transactions import KeyedRecord
from schemas.registry import SchemaRegistry
from schemas.row_avro import Encode, avro_schema, encoder
from schemas.wire import frame

OPERATION, EPOCH, GENERATION = "penstock-operation", "penstock-epoch", "penstock-generation"


class RecordForm:
    """Makes records for one topic, under schemas that it registers: `TOPIC-key`, `TOPIC-value`."""

    def __init__(
        self, *, projection: str, topic: str, key: tuple[str, ...], registry: SchemaRegistry
    ) -> None:
        self._projection = projection
        self._topic = topic
        self._key = key
        self._registry = registry
        self._columns: pa.Schema | None = None
        self._encode_key: Encode = _none
        self._encode_value: Encode = _none

    def records(self, changes: Changes) -> list[KeyedRecord]:
        """Return the records of some changes, in their order.

        Raises `Incompatible` where the columns do not go with what the topic had before.
        """
        if not changes.rows:
            return []
        self._take(changes.columns)
        about = [(EPOCH, changes.epoch), (GENERATION, changes.generation)]
        run = [(name, str(number).encode()) for name, number in about if number is not None]
        return [
            KeyedRecord(
                key=self._encode_key(change.key),
                value=None if change.new is None else self._encode_value(change.new),
                headers=((OPERATION, change.operation.encode()), *run),
            )
            for change in changes.rows
        ]

    def _take(self, columns: pa.Schema) -> None:
        """Register the schemas of columns that are not those of before."""
        if columns == self._columns:
            return
        key = [columns.field(name) for name in named(columns, self._key)]
        self._encode_key = self._registered("key", key)
        self._encode_value = self._registered("value", list(columns))
        self._columns = columns

    def _registered(self, part: str, columns: Sequence[pa.Field]) -> Encode:
        subject, is_key = f"{self._topic}-{part}", part == "key"
        name = f"{self._projection}_key" if is_key else self._projection
        schema = avro_schema(columns, name, key=is_key)
        complaints = self._registry.compatible(subject, schema)
        before = self._registry.latest(subject) if is_key else None
        if before is not None and json.loads(before.schema) != json.loads(schema):
            # Another type gives other bytes: what was sent under a key's old bytes would stay.
            complaints = [*complaints, "the key had other columns or types"]
        if complaints:
            raise Incompatible(
                f"the columns do not go with what the topic {self._topic} had before: "
                + "; ".join(complaints),
                remedy="Declare another topic as the sink, which gets all rows: "
                "penstock projection apply FILE.sql",
            )
        schema_id, encode = self._registry.register(subject, schema), encoder(schema)
        return lambda row: frame(schema_id, encode(row))


def _none(row: object) -> bytes:
    raise AssertionError("no schema was registered")
