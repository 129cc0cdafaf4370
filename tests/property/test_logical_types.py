"""What a schema's types mean is one thing to whoever reads an event as JSON, and in the lake."""

from __future__ import annotations

import io
import json
from datetime import time
from itertools import product
from typing import Any
from uuid import UUID

import fastavro
import pytest

from schemas.column_vectors import FEW
from schemas.columns import decode_rows
from schemas.json_codec import JsonCodec
from schemas.wire import frame

RAW: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 19_000,
    "long": 50_000_000_000,
    "float": 1.5,
    "double": 2.5,
    "string": "cf468130-867b-49fb-8318-a28dcf1834ab",
    "bytes": b"\x01\x02",
    "fixed": b"\x01\x02",
    "enum": "A",
}
"""A value of each type that every logical type takes, could it be of that type."""

LOGICAL = (
    "date",
    "time-millis",
    "time-micros",
    "timestamp-millis",
    "timestamp-micros",
    "local-timestamp-millis",
    "local-timestamp-micros",
    "decimal",
    "uuid",
    "org.apache.kafka.connect.data.Date",
    "unknown",
)


def framed(type_: object, value: object) -> tuple[str, bytes]:
    """Return the text of a schema with one field, and a record of it."""
    schema = {"type": "record", "name": "T", "fields": [{"name": "v", "type": type_}]}
    out = io.BytesIO()
    bare = json.loads(json.dumps(schema))
    if isinstance(type_, dict):
        bare["fields"][0]["type"].pop("logicalType", None)
    fastavro.schemaless_writer(out, fastavro.parse_schema(bare), {"v": value})
    return json.dumps(schema), frame(7, out.getvalue())


def in_the_lake(value: object) -> object:
    """Return how the lake has what is read as JSON: times of day and UUIDs as text."""
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if isinstance(value, time) else value


@pytest.mark.parametrize("count", [1, FEW + 2], ids=["row by row", "side by side"])
@pytest.mark.parametrize(("kind", "logical"), list(product(RAW, LOGICAL)))
def test_a_logical_type_means_the_same_everywhere(kind: str, logical: str, count: int) -> None:
    type_: dict[str, object] = {"type": kind, "logicalType": logical, "precision": 4, "scale": 2}
    if kind in ("fixed", "enum"):
        type_ |= {"name": "N", "size": 2, "symbols": ["A", "B"]}
    schema, record = framed(type_, RAW[kind])
    meant = in_the_lake(JsonCodec(schema).decode(record[5:])["v"])
    rows = decode_rows([record] * count, schema, "event")
    assert ("v" in rows.schema.names) is (kind != "null")
    assert kind == "null" or rows["v"].to_pylist() == [meant] * count
