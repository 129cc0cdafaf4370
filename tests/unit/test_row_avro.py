"""Rows as Avro: what has a form there, and what is refused by name."""

from __future__ import annotations

import json
from io import BytesIO

import pyarrow as pa
import pytest
from fastavro import schemaless_reader

from kernel.errors import Incompatible
from schemas.row_avro import avro_schema, encoder, plain


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(list(fields.items()))


def test_structs_whose_names_read_alike_are_records_of_their_own() -> None:
    columns = pa.schema(
        {
            "a": struct(b=struct(x=pa.int64()), b_2=struct(x=pa.string())),
            "a_b": struct(y=pa.string()),
        }
    )
    row = {"a": {"b": {"x": 1}, "b_2": {"x": "one"}}, "a_b": {"y": "z"}}
    schema = avro_schema(list(columns), "p")
    written = BytesIO(encoder(schema)(row))
    assert schemaless_reader(written, json.loads(schema), None) == row
    # Names that are not taken stay as they were: topics have them.
    assert '"name":"p_a_b"' in schema


@pytest.mark.parametrize("name", ["grün", "1st", "a-b"])
def test_a_name_that_avro_does_not_have_is_refused_at_any_depth(name: str) -> None:
    for kind in (pa.int64(), struct(**{name: pa.int64()})):
        with pytest.raises(Incompatible, match=f"{name} of column .* is no name in Avro"):
            avro_schema([pa.field(name if kind == pa.int64() else "a", kind)], "p")


def test_values_without_a_form_are_the_rows_own_fault() -> None:
    twice = pa.table({"m": pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))})
    with pytest.raises(Incompatible, match="duplicate key was 'a'"):
        plain(twice)
