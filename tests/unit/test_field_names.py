"""Columns whose names Avro cannot write: rows, keys and shapes have the real names."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pytest

from schemas.columns import decode_rows, key_columns, shape_of
from schemas.field_names import NAME


def column(field: str, name: str, kind: str = "string") -> dict[str, object]:
    carried = {"type": kind, "connect.parameters": {NAME: name}}
    return {"name": field, "type": ["null", carried], "default": None}


SCHEMA = {
    "type": "record",
    "name": "Key",
    "fields": [
        {"name": "order_id", "type": "long"},
        column("order_id_2", "order-id", "long"),
        column("gr__e", "größe"),
        column("_2nd", "2nd"),
    ],
}
NAMES = ["order_id", "order-id", "größe", "2nd"]


def framed(row: dict[str, object]) -> bytes:
    out = io.BytesIO(b"\0\0\0\0\1")
    out.seek(5)
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), row)
    return out.getvalue()


@pytest.mark.parametrize("count", [1, 20], ids=["row by row", "side by side"])
def test_fields_have_their_columns_names(count: int) -> None:
    text = json.dumps(SCHEMA)
    row = {"order_id": 1, "order_id_2": 2, "gr__e": "groß", "_2nd": None}
    rows = decode_rows(pa.array([framed(row)] * count, pa.binary()), text, "self")
    assert rows.column_names[:4] == NAMES
    assert rows.to_pylist()[-1] | {"__present": True} == {
        **dict(zip(NAMES, (1, 2, "groß", None), strict=True)),
        "__present": True,
    }
    assert list(key_columns(text)) == shape_of(text).schema.names == NAMES
