"""What a record of an external topic says, format by format, and what is refused."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from kernel.errors import SchemaViolation
from pipeline.decode.records import decode
from pipeline.decode.topic_decoder import TopicDecoder
from pipeline.typed.topic_rows import columns_of
from schemas.csv_line import fields_of
from schemas.records import KafkaRecord, Rejected, TopicRecord
from schemas.registry import MemoryRegistry
from schemas.topic_records import TopicRecords, TopicShape
from schemas.wire import frame

AT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
COLUMNS = (
    ("b", "BOOLEAN"),
    ("i", "INT"),
    ("n", "BIGINT"),
    ("f", "FLOAT"),
    ("d", "DOUBLE"),
    ("m", "DECIMAL(20, 2)"),
    ("s", "STRING"),
    ("x", "BINARY"),
    ("day", "DATE"),
    ("at", "TIMESTAMP"),
)
VALUES: dict[str, object] = {
    "b": True,
    "i": -3,
    "n": 2**53 + 1,
    "f": 0.5,
    "d": 0.1,
    "m": Decimal("123456789012345678.90"),
    "s": "ä, b",
    "x": b"\x01\xff",
    "day": date(2013, 1, 31),
    "at": AT,
}
JSON = (
    b'{"b": true, "i": -3, "n": 9007199254740993, "f": 0.5, "d": 0.1, "m": 123456789012345678.90,'
    b' "s": "\xc3\xa4, b", "x": "Af8=", "day": "2013-01-31", "at": "2013-01-01T06:15:00+01:00"}'
)
CSV = (
    'true,-3,9007199254740993,0.5,0.1,123456789012345678.90,"ä, b",Af8=,2013-01-31,'
    "2013-01-01T05:15:00Z\r\n"
).encode()


def shape(form: str, **more: Any) -> TopicShape:
    return TopicShape(source="s", topic="t", format=form, **{"columns": COLUMNS, **more})


def read(
    form: str, value: bytes | None, own_key: bytes | None = None, **more: Any
) -> dict[str, Any]:
    records = TopicRecords(shape(form, **more), MemoryRegistry())
    (row,) = columns_of(records, [own_key], [value]).to_pylist()
    return row


@pytest.mark.parametrize(("form", "value"), [("json", JSON), ("csv", CSV)])
def test_each_type_is_read_exactly(form: str, value: bytes) -> None:
    assert read(form, value) == VALUES


def test_json_is_read_behind_the_framing_of_its_serializer_and_protobuf_is_named() -> None:
    assert read("json", b"\0\0\0\0\x05" + JSON) == read("json", JSON) == VALUES
    with pytest.raises(SchemaViolation, match="Protobuf is not read"):
        read("json", b"\0\0\0\0\x05\0\x08\x96\x01")


def test_what_is_missing_is_null_and_what_is_nested_is_its_text() -> None:
    found = read("json", b'{"s": {"a": [1, 2.50]}, "at": 1357017300000, "other": 1}')
    assert found == dict.fromkeys(VALUES) | {"s": '{"a":[1,2.5]}', "at": AT}
    assert read("csv", b',,,,,,"",,,') == dict.fromkeys(VALUES) | {"s": ""}


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        ('"i": 2147483648', r"\$.i: 2147483648 does not fit int"),
        ('"n": 1.5', r"\$.n: expected a whole number"),
        ('"d": 0.12345678901234567890', r"\$.d: .* would become"),
        ('"m": "1.234"', r"\$.m: .* does not fit decimal\(20, 2\)"),
        ('"s": 1', r"\$.s: expected text, found the number 1"),
        ('"b": "true"', r"\$.b: expected true or false"),
        ('"at": "noon"', r"\$.at: expected a time"),
        ('"at": 99999999999999999', r"\$.at: .* is not within the years"),
        ('"day": "2013-02-30"', r"\$.day: expected a date"),
    ],
)
def test_a_value_that_its_type_would_change_is_refused_with_its_path(
    field: str, complaint: str
) -> None:
    with pytest.raises(SchemaViolation, match=complaint):
        read("json", f"{{{field}}}".encode())


@pytest.mark.parametrize("value", [b"1,2", b",,,,,,,,,,", b'"open,,,,,,,,,', b",,,,,,,,,noon"])
def test_a_line_that_does_not_fit_is_refused(value: bytes) -> None:
    with pytest.raises(SchemaViolation):
        read("csv", value)


def test_a_line_is_parted_as_rfc_4180_has_it() -> None:
    assert fields_of('a,"b ""c"", d",,""\r\n') == ["a", 'b "c", d', None, ""]
    assert fields_of('"two\nlines"') == ["two\nlines"]
    assert fields_of("") == [None]


@pytest.mark.parametrize(
    ("form", "key", "columns"),
    [
        ("json", b'{"n": 7, "s": "x", "z": 1}', ("n", "s")),
        ("json", b"7", ("n",)),
        ("json", b'"x"', ("s",)),
        ("json", b"x", ("s",)),
        ("json", b'\0\0\0\0\x05{"n": 7, "s": "x"}', ("n", "s")),
        ("json", b'\0\0\0\0\x05"x"', ("s",)),
        ("json", b"\0\0\0\0\x057", ("n",)),
        ("csv", b"7,x", ("n", "s")),
        ("avro", b"x", ("s",)),
    ],
)
def test_a_tombstone_has_the_columns_of_its_key(
    form: str, key: bytes, columns: tuple[str, ...]
) -> None:
    expected = {"n": 7, "s": "x"}
    found = read(form, None, key, key=columns)
    assert found == dict.fromkeys(VALUES) | {name: expected[name] for name in columns}


def test_a_tombstone_without_its_key_is_refused() -> None:
    for key in (None, b"not a number"):
        with pytest.raises(SchemaViolation):
            read("json", None, key, key=("n",))
    assert read("json", None) == dict.fromkeys(VALUES)


def registered(fields: list[dict[str, Any]], value: dict[str, Any]) -> tuple[MemoryRegistry, bytes]:
    schema = {"type": "record", "name": "R", "fields": fields}
    registry, out = MemoryRegistry(), io.BytesIO()
    number = registry.register("t-value", json.dumps(schema))
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return registry, frame(number, out.getvalue())


def test_avro_is_read_as_the_declared_columns_or_as_its_own() -> None:
    fields = [
        {"name": "N", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "unknown", "type": "string"},
    ]
    registry, value = registered(fields, {"N": 5, "at": AT, "unknown": "u"})
    rows = columns_of(TopicRecords(shape("avro"), registry), [None, None], [None, value])
    assert rows.to_pylist() == [
        dict.fromkeys(VALUES),
        dict.fromkeys(VALUES) | {"n": 5, "at": AT},
    ]
    own = columns_of(TopicRecords(shape("avro", columns=()), registry), [None], [value])
    assert own.to_pylist() == [{"N": 5, "at": AT, "unknown": "u"}]


def test_avro_of_another_type_than_declared_is_refused() -> None:
    registry, value = registered([{"name": "n", "type": "string"}], {"n": "5"})
    with pytest.raises(SchemaViolation, match=r"\$.n: the schema has string"):
        columns_of(TopicRecords(shape("avro"), registry), [None], [value])


def record(value: bytes | None) -> KafkaRecord:
    return KafkaRecord(
        topic="t", partition=0, offset=0, timestamp=AT, key=None, value=value, headers={}
    )


@pytest.mark.parametrize("form", ["json", "csv", "avro"])
@pytest.mark.parametrize("value", [b"\xff\xfe", b"\0\0\0\0\x09x", b"", b"[]", b"{"])
def test_p8_garbage_is_rejected_with_a_reason(form: str, value: bytes) -> None:
    decoder = TopicDecoder(shape(form, columns=COLUMNS[:2]), MemoryRegistry())
    found = decode(record(value), decoder)
    assert isinstance(found, Rejected)
    assert found.reason
    assert (found.source, found.table) == (None, None), "it holds nothing"


def test_a_time_that_is_none_gives_way_to_the_kafka_timestamp() -> None:
    decoder = TopicDecoder(shape("json", event_time="AT"), MemoryRegistry())
    told = [decoder(record(v)) for v in (b'{"at": "noon"}', b"{}", b'{"at": "2020-01-01"}', None)]
    facts = [(each.event_time, each.own_time) for each in told if isinstance(each, TopicRecord)]
    assert facts == [
        (AT, False),
        (AT, False),
        (datetime(2020, 1, 1, tzinfo=UTC), True),
        (AT, False),
    ]


@pytest.mark.parametrize(
    "line",
    ["1_000,,,", "\u0661,,,", ",1_0.5,,", ",nan,,", ",,1_0.5,", ",, 1,", ",,,20130131", ",,,2013"],
)
def test_a_text_that_is_no_plain_number_or_time_is_refused(line: str) -> None:
    columns = (("n", "BIGINT"), ("d", "DOUBLE"), ("m", "DECIMAL(20, 2)"), ("at", "TIMESTAMP"))
    with pytest.raises(SchemaViolation):
        read("csv", line.encode(), columns=columns)
    plain = read("csv", b"-1,1e-3,.5,1359590400000", columns=columns)
    at = datetime(2013, 1, 31, tzinfo=UTC)
    assert plain == {"n": -1, "d": 0.001, "m": Decimal("0.50"), "at": at}


def test_a_line_may_begin_with_a_byte_order_mark_and_ends_with_a_whole_line_break() -> None:
    columns = (("s", "STRING"), ("t", "STRING"))
    assert read("csv", b"\xef\xbb\xbfa,b", columns=columns) == {"s": "a", "t": "b"}
    with pytest.raises(SchemaViolation):
        fields_of("a,b\r")


@pytest.mark.parametrize("key", [b"null", b"{", b'"', b'"\\ud800"', b'{"s": null}'])
def test_a_key_of_json_that_is_none_or_broken_is_not_a_text(key: bytes) -> None:
    with pytest.raises((SchemaViolation, ValueError)):
        read("json", None, key, key=("s",))


def test_json_may_begin_with_a_byte_order_mark() -> None:
    assert read("json", b"\xef\xbb\xbf" + JSON) == VALUES
    assert read("json", None, b'\xef\xbb\xbf{"n": 7}', key=("n",))["n"] == 7


def test_what_is_nested_too_deeply_for_a_text_is_said_so() -> None:
    with pytest.raises(SchemaViolation, match=r"\$\.s: nested too deeply"):
        read("json", b'{"s": ' + b"[" * 500 + b"]" * 500 + b"}")


def of_avro(kind: object, value: int, **more: Any) -> TopicRecord | Rejected:
    """Decode a record of a long that means something, whatever its value."""
    base = kind["type"] if isinstance(kind, dict) else kind
    raw = {"type": "record", "name": "R", "fields": [{"name": "v", "type": base}]}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(raw), {"v": value})
    registry = MemoryRegistry()
    meant = raw | {"fields": [{"name": "v", "type": kind}]}
    schema_id = registry.register("t-value", json.dumps(meant))
    found = decode_one(TopicDecoder(shape("avro", columns=(), **more), registry), schema_id, body)
    assert isinstance(found, TopicRecord | Rejected)
    return found


def decode_one(decoder: TopicDecoder, schema_id: int, body: io.BytesIO) -> object:
    value = frame(schema_id, body.getvalue())
    record = KafkaRecord(
        topic="t", partition=0, offset=0, key=None, value=value, timestamp=AT, headers=()
    )
    return decode(record, decoder)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"type": "int", "logicalType": "date"}, 2**31 - 1),
        ({"type": "int", "logicalType": "date"}, -719163),
        ({"type": "long", "logicalType": "timestamp-millis"}, 253402300800000),
        ({"type": "long", "logicalType": "timestamp-micros"}, -(2**63)),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, -62135596800001),
        ({"type": "int", "logicalType": "time-millis"}, -1),
        ({"type": "long", "logicalType": "time-micros"}, 86_400_000_001),
    ],
)
def test_a_moment_that_the_lake_has_no_place_for_is_refused_and_never_another_one(
    kind: dict[str, str], value: int
) -> None:
    """Within a table of ours its text would stand beside; a record of others has no such place."""
    found = of_avro(kind, value)
    assert isinstance(found, Rejected)
    assert "$.v: no column of the lake holds" in found.reason
    if "timestamp" in kind["logicalType"]:
        told = of_avro(kind, value, event_time="v")
        assert isinstance(told, TopicRecord)
        assert told.event_time == AT


@pytest.mark.parametrize("name", ["timestamp-nanos", "local-timestamp-nanos"])
def test_an_event_time_of_nanoseconds_is_one(name: str) -> None:
    micros = int(AT.timestamp()) * 1_000_000 + 123_456
    found = of_avro({"type": "long", "logicalType": name}, micros * 1000 + 789, event_time="v")
    assert isinstance(found, TopicRecord)
    assert found.event_time == AT.replace(microsecond=123_456)
