"""Avro bodies that say more of themselves than they have: a reason, in bounded memory and time."""

from __future__ import annotations

import io
import json
import tracemalloc
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest

from kernel.errors import Incompatible, SchemaViolation
from pipeline.decode.records import decode
from pipeline.decode.topic_decoder import TopicDecoder
from schemas.avro_bodies import MOST_DEEP, BodyReader
from schemas.avro_vectors import read_columns
from schemas.columns import decode_rows
from schemas.json_codec import JsonCodec
from schemas.records import KafkaRecord, Rejected, TopicRecord
from schemas.registry import MemoryRegistry
from schemas.topic_records import TopicShape
from schemas.wire import frame

AT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
SYMBOLS = {"type": "enum", "name": "E", "symbols": ["x", "y"]}
NOTHING = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}
TREE = {"type": "array", "items": "R"}


def schema(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]})


def number(value: int) -> bytes:
    """Write a long as Avro does."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", value)
    return out.getvalue()


BAD = {
    "an array of nulls": ({"type": "array", "items": "null"}, number(2**20) + b"\0"),
    "an array of records of nulls": ({"type": "array", "items": NOTHING}, number(2**20) + b"\0"),
    "many arrays of nulls": (
        {"type": "array", "items": {"type": "array", "items": "null"}},
        number(40) + (number(90) + b"\0") * 40 + b"\0",
    ),
    "a list in a list": (["null", "R"], b"\2" * 300_000),
    "a tree": (TREE, b"\2" * 300_000),
    "itself": ("R", b""),
    "branch -1": (["null", "long"], b"\1\x08"),
    "symbol -1": (SYMBOLS, b"\1"),
    "a block of -2**63": ({"type": "array", "items": "long"}, number(-(2**63)) + b"\0\0"),
    "a number without an end": ({"type": "map", "values": "long"}, b"\xff" * 11 + b"\0"),
}


@pytest.mark.parametrize(("kind", "body"), BAD.values(), ids=BAD.keys())
def test_p8_a_body_beyond_bounds_is_rejected_with_a_reason(kind: Any, body: bytes) -> None:
    registry = MemoryRegistry()
    value = frame(registry.register("t-value", schema(kind)), body)
    shape = TopicShape(source="s", topic="t", format="avro")
    record = KafkaRecord(
        topic="t", partition=0, offset=0, key=None, value=value, timestamp=AT, headers=()
    )
    tracemalloc.start()
    found = decode(record, TopicDecoder(shape, registry))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, Rejected)
    assert "do not fit their schema" in found.reason
    assert peak < 4 * 2**20


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "array", "items": "null"}, [None] * 3),
        ({"type": "array", "items": ["null", "long", SYMBOLS]}, [None, 5, "y"]),
        (["null", "R"], {"v": {"v": None}}),
        (TREE, [{"v": []}, {"v": [{"v": []}]}]),
        ({"type": "map", "values": {"type": "fixed", "name": "F", "size": 2}}, {"a": b"12"}),
    ],
)
def test_what_a_writer_writes_is_read(kind: Any, value: Any) -> None:
    registry, out = MemoryRegistry(), io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema(kind))), {"v": value})
    body = out.getvalue()
    strict = BodyReader(fastavro.parse_schema(json.loads(schema(kind))), strict=True)
    assert strict.read_whole(body) == ({"v": value}, True)
    framed = frame(registry.register("t-value", schema(kind)), body)
    assert decode_rows([framed], schema(kind), "topic").num_rows == 1
    shape = TopicShape(source="s", topic="t", format="avro")
    record = KafkaRecord(
        topic="t", partition=0, offset=0, key=None, value=framed, timestamp=AT, headers=()
    )
    assert isinstance(decode(record, TopicDecoder(shape, registry)), TopicRecord)


def test_blocks_that_say_how_long_they_are_are_read() -> None:
    reader = BodyReader(fastavro.parse_schema({"type": "array", "items": "long"}), strict=True)
    body = number(-2) + number(2) + number(1) + number(2) + number(1) + number(3) + b"\0"
    assert reader.read(body) == [1, 2, 3]


def test_as_deep_as_bounds_have_it_is_read_and_no_deeper() -> None:
    reader = BodyReader(fastavro.parse_schema(json.loads(schema(["null", "R"]))))
    assert reader.read(b"\2" * (MOST_DEEP - 1) + b"\0")
    with pytest.raises(SchemaViolation, match=f"more than {MOST_DEEP} deep"):
        reader.read(b"\2" * MOST_DEEP + b"\0")


def test_the_store_says_of_such_data_that_nobody_encoded_them() -> None:
    codec = JsonCodec(schema(["null", "R"]))
    good, bad = codec.encode({"v": {"v": None}}), b"\2" * 300_000
    with pytest.raises(Incompatible, match="more than"):
        codec.decode(bad)
    with pytest.raises(Incompatible, match="more than"):
        codec.decode_many([good, bad])
    assert codec.decode_many([good, good]) == [{"v": {"v": None}}] * 2


def test_events_without_a_field_are_read_many_at_once() -> None:
    codec = JsonCodec(json.dumps({"type": "record", "name": "R", "fields": []}))
    assert codec.decode_many([b""] * 1_000) == [{}] * 1_000


@pytest.mark.parametrize("length", [2**62, 2**63 - 1, 70_000])
def test_lengths_beyond_a_record_are_not_read_side_by_side(length: int) -> None:
    text = schema("string")
    bad = frame(1, number(length) + b"abc")
    fill = frame(1, number(60_000) + b"a" * 60_000)
    assert read_columns([bad] * 20 + [fill] * 20, text, [("v",)]) is None
    with pytest.raises(SchemaViolation):
        decode_rows([bad] * 20 + [fill] * 20, text, "topic")


@pytest.mark.parametrize("leaf", ["null", {"type": "fixed", "name": "F", "size": 0}])
def test_records_that_double_what_takes_no_bytes_are_refused(leaf: Any) -> None:
    kind: dict[str, Any] = {"type": "record", "name": "N0", "fields": [{"name": "n", "type": leaf}]}
    for n in range(1, 15):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"N{n - 1}"}]
        kind = {"type": "record", "name": f"N{n}", "fields": fields}
    with pytest.raises(SchemaViolation, match="values that take no bytes"):
        JsonCodec(schema(kind)).decode(b"")
