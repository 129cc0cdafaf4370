"""JSON values to Avro and back, by type."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest

from kernel.errors import SchemaViolation
from schemas.json_codec import JsonCodec, json_default

UUID_TEXT = "cf468130-867b-49fb-8318-a28dcf1834ab"
ENUM = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
TREE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"], "default": None}],
}


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def codec(type_: object) -> JsonCodec:
    field = {"name": "v", "type": type_}
    return JsonCodec(json.dumps({"type": "record", "name": "T", "fields": [field]}))


def there_and_back(type_: object, value: object) -> Any:
    made = codec(type_)
    return made.decode(made.encode({"v": value}))["v"]


@pytest.mark.parametrize(
    ("type_", "value", "back"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 1, 1.0),
        ("double", 1.5, 1.5),
        ("string", "", ""),
        ("string", "☃\x00", "☃\x00"),
        ("bytes", "AP8=", b"\x00\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, "AP8=", b"\x00\xff"),
        (ENUM, "BLUE", "BLUE"),
        ({"type": "array", "items": "long"}, [1, 2], [1, 2]),
        ({"type": "map", "values": "long"}, {"a b": 1}, {"a b": 1}),
        (["null", "string"], None, None),
        (["string", "null"], "x", "x"),
        (["null", "long", "double", "string"], 1.5, 1.5),
        (["null", "long", "string"], "1", "1"),
        (["null", ENUM, {"type": "array", "items": "long"}], [7], [7]),
        (TREE, {"next": {"next": None}}, {"next": {"next": None}}),
        (
            logical("long", "timestamp-micros"),
            "2013-01-01T05:15:00.000001+01:00",
            datetime(2013, 1, 1, 4, 15, 0, 1, UTC),
        ),
        (logical("long", "timestamp-micros"), -1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        (
            logical("long", "timestamp-millis"),
            "1960-01-01T00:00:00.5Z",
            datetime(1960, 1, 1, 0, 0, 0, 500000, UTC),
        ),
        (
            logical("long", "local-timestamp-micros"),
            "2013-01-01T05:15:00",
            datetime(2013, 1, 1, 5, 15),  # noqa: DTZ001
        ),
        (logical("int", "date"), "1969-12-31", date(1969, 12, 31)),
        (logical("int", "time-millis"), "05:15:00.25", time(5, 15, 0, 250000)),
        (logical("long", "time-micros"), "05:15:00.000001", time(5, 15, 0, 1)),
        (logical("string", "uuid"), UUID_TEXT.upper(), UUID(UUID_TEXT)),
        (logical("bytes", "decimal", precision=4, scale=2), "-12.34", Decimal("-12.34")),
        (logical("bytes", "decimal", precision=4, scale=2), 0.1, Decimal("0.10")),
        (logical("bytes", "decimal", precision=4, scale=2), "-1.28", Decimal("-1.28")),
        (logical("bytes", "decimal", precision=4, scale=0), "12e2", Decimal(1200)),
        (
            {**logical("fixed", "decimal", precision=9, scale=2), "name": "D", "size": 4},
            99999.99,
            Decimal("99999.99"),
        ),
        (
            logical("long", "timestamp-micros"),
            "2013-01-01t05:15:00z",
            datetime(2013, 1, 1, 5, 15, tzinfo=UTC),
        ),
        (logical("long", "from-the-future"), 7, 7),
        ({"type": "string", "doc": "told"}, "x", "x"),
    ],
)
def test_values_go_there_and_back(type_: object, value: object, back: object) -> None:
    found = there_and_back(type_, value)
    assert found == back
    assert type(found) is type(back)


@pytest.mark.parametrize(
    ("type_", "value", "complaint"),
    [
        ("boolean", 1, "expected true or false, found the number 1"),
        ("int", 2**31, "does not fit int"),
        ("long", 2**63, "does not fit long"),
        ("long", 1.0, "expected a whole number (long), found the number 1.0"),
        ("long", True, "found the boolean true"),
        ("double", "1", "expected a number, found the text '1'"),
        ("double", False, "expected a number"),
        ("string", 1, "expected text, found the number 1"),
        ("string", None, "expected text, found null"),
        ("bytes", "!", "expected base64 text"),
        ("bytes", "é", "expected base64 text"),
        ({"type": "fixed", "name": "F", "size": 3}, "größe", "expected base64 text"),
        ({"type": "fixed", "name": "F", "size": 3}, "AP8=", "expected 3 bytes"),
        (ENUM, "GREEN", "expected one of RED, BLUE, found the text 'GREEN'"),
        ({"type": "array", "items": "long"}, {}, "expected a list, found an object"),
        ({"type": "map", "values": "long"}, [], "expected an object, found a list"),
        (["null", "long", "string"], 1.5, "expected null or long or string"),
        (logical("long", "timestamp-micros"), "2013-01-01T05:15:00", "with an offset"),
        (logical("long", "local-timestamp-micros"), "2013-01-01T05:15:00Z", "without an offset"),
        (logical("long", "timestamp-millis"), "2013-01-01T05:15:00.0001Z", "finer than"),
        (logical("long", "timestamp-micros"), "2013-01-01T05:15:00.1234567Z", "finer than a"),
        (logical("long", "timestamp-millis"), "2013-01-01T05:15:00.123000999Z", "finer than a"),
        (logical("long", "time-micros"), "05:15:00.000000001", "finer than a"),
        (logical("int", "date"), "2013-02-30", "expected a date"),
        (logical("int", "time-millis"), "25:00", "expected a time"),
        (logical("string", "uuid"), "7", "expected a UUID"),
        (logical("bytes", "decimal", precision=4, scale=2), "0.001", "does not fit decimal(4, 2)"),
        (logical("bytes", "decimal", precision=4, scale=2), "100", "does not fit decimal(4, 2)"),
        (logical("bytes", "decimal", precision=4, scale=2), "1e99", "does not fit decimal(4, 2)"),
        (logical("bytes", "decimal", precision=4, scale=2), "Infinity", "a finite decimal"),
        (logical("bytes", "decimal", precision=4, scale=2), "x", "expected a decimal"),
        (logical("bytes", "decimal", precision=4, scale=0), "1_000", "expected a decimal"),
        (logical("bytes", "decimal", precision=4, scale=0), " 1", "expected a decimal"),
    ],
)
def test_what_does_not_fit_is_named(type_: object, value: object, complaint: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        codec(type_).encode({"v": value})
    assert caught.value.fields["path"] == "$.v"
    assert complaint in str(caught.value.fields["complaint"])


def test_the_path_leads_through_containers() -> None:
    item = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "long"}]}
    made = codec({"type": "map", "values": {"type": "array", "items": ["null", item]}})
    with pytest.raises(SchemaViolation) as caught:
        made.encode({"v": {"a": [None, {"n": 1}, {"n": "x"}]}})
    assert caught.value.fields["path"] == "$.v['a'][2].n"


def test_fields_of_a_record_are_exact_but_for_nulls() -> None:
    made = codec(["null", "long"])
    assert made.decode(made.encode({"v": 1, "unknown": None})) == {"v": 1}
    for data in ({"v": 1, "more": 0}, {}):
        with pytest.raises(SchemaViolation):
            made.encode(data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"string"',
        '{"type": "record", "name": "T"}',
        '{"type": "record", "name": "T", "fields": [{"name": "a"}]}',
        '{"type": "record", "name": "T", "fields": [{"name": "a-b", "type": "long"}]}',
        '{"type": "record", "name": "T", "fields": [{"name": "a", "type": "unheard"}]}',
    ],
)
def test_what_is_no_schema_of_an_event(text: str) -> None:
    with pytest.raises(SchemaViolation):
        JsonCodec(text)


def test_decoded_values_become_json() -> None:
    made = codec({"type": "array", "items": ["string", "bytes", logical("int", "date")]})
    data = made.decode(made.encode({"v": ["x", "AP8=", 0]}))
    decimal = there_and_back(logical("bytes", "decimal", precision=4, scale=2), 1)
    assert orjson.loads(orjson.dumps(data | {"d": decimal}, default=json_default)) == {
        "v": ["x", "AP8=", "1970-01-01"],
        "d": "1.00",
    }
