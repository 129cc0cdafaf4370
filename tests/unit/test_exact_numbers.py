"""The one rule for numbers: what is sent comes back as the same number, or is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.metadata import check_metadata
from kernel.errors import Incompatible, InvalidRequest, SchemaViolation
from schemas import json_text
from schemas.inference import widened
from schemas.json_codec import JsonCodec, json_default


def codec(type_: object) -> JsonCodec:
    fields = [{"name": "v", "type": type_}]
    return JsonCodec(json.dumps({"type": "record", "name": "T", "fields": fields}))


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


DECIMAL = logical("bytes", "decimal", precision=38, scale=2)
ID = logical("string", "uuid")


def there_and_back(type_: object, text: str) -> Any:
    made = codec(type_)
    sent = json_text.parse(b'{"v": %b}' % text.encode())
    shown = orjson.dumps(made.decode(made.encode(sent)), default=json_default)
    return json.loads(shown, parse_float=Decimal)["v"]


@pytest.mark.parametrize(
    ("type_", "text", "back"),
    [
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "-9223372036854775808", -(2**63)),
        ("double", "20", Decimal("20.0")),
        ("double", "0.1", Decimal("0.1")),
        ("double", "1e20", Decimal("1e20")),
        # As JavaScript, Python, C ("%.17g") and exact printers write doubles.
        ("double", "123456789012345670000", Decimal("123456789012345670000")),
        ("double", "0.30000000000000004", Decimal("0.30000000000000004")),
        ("double", "0.10000000000000001", Decimal("0.1")),
        ("double", "0.1000000000000000055511151231257827021181583404541015625", Decimal("0.1")),
        ("float", "0.5", Decimal("0.5")),
        (DECIMAL, "1234567890123456.78", "1234567890123456.78"),
        (DECIMAL, "123456789012345678901234567890", "123456789012345678901234567890.00"),
        (DECIMAL, "1e3", "1000.00"),
        (DECIMAL, '"0e999999999"', "0.00"),
    ],
)
def test_a_number_comes_back_as_it_was_sent(type_: object, text: str, back: object) -> None:
    assert there_and_back(type_, text) == back


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("long", "9223372036854775808"),
        ("long", "-9223372036854775809"),
        ("long", "123456789012345678901234567890"),
        ("double", "9007199254740993"),
        ("double", "123456789012345678901234567890"),
        ("double", "1234567890123456.78"),
        ("double", "12345678901234.567"),
        ("double", "3.14159265358979323846"),
        ("double", "1e-400"),
        ("float", "1e300"),
        ("float", "16777217"),
        (DECIMAL, "1234567890123456.785"),
        (DECIMAL, '"1e-999999999"'),
        (DECIMAL, '"1e999999999"'),
        (DECIMAL, '"' + "9" * 5000 + '"'),
        (ID, '"0190a2c47d6e7b3a_f005b1d2c3e4f50"'),
        (ID, '"+190a2c47d6e7b3a9f005b1d2c3e4f50"'),
        (ID, '"\u0661190a2c47d6e7b3a9f005b1d2c3e4f50"'),
    ],
)
def test_what_would_not_come_back_is_refused_with_its_place(type_: object, text: str) -> None:
    with pytest.raises(SchemaViolation) as caught:
        there_and_back(type_, text)
    assert caught.value.fields["path"] == "$.v"


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1E+309", "1e99999999999999999999"])
def test_a_number_beyond_doubles_is_json_that_is_refused(number: str) -> None:
    told = r"line 2 column 2: .* beyond what a double holds"
    with pytest.raises(InvalidRequest, match=told) as refused:
        json_text.parse(b'{"v":\n %b}' % number.encode())
    assert "in quotes" in refused.value.remedy, "no schema of its field would take it as a number"
    for broken in (f"[{number}", f"[nonsense, {number}]", f"[{number}]]"):
        with pytest.raises((orjson.JSONDecodeError, InvalidRequest)):
            json_text.parse(broken.encode())


def test_a_byte_order_mark_says_nothing() -> None:
    mark = b"\xef\xbb\xbf"
    assert json_text.parse(mark + b'{"v": 9007199254740993}') == {"v": 9007199254740993}
    for broken in (mark, mark + mark + b"{}", b"{}" + mark):
        with pytest.raises(orjson.JSONDecodeError):
            json_text.parse(broken)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(16, 20))
def test_every_double_is_taken_however_many_digits_it_is_written_with(
    number: float, digits: int
) -> None:
    for text in (repr(number), format(number, f".{digits}e")):
        sent = json_text.parse(b'{"v": %b}' % text.encode())
        made = codec("double")
        back = made.decode(made.encode(sent))["v"]
        assert back == number


numbers = st.one_of(
    st.integers(),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    st.recursive(
        numbers,
        lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
        max_leaves=20,
    )
)
def test_parsing_keeps_every_number(value: object) -> None:
    text = orjson.dumps(_texts(value), default=str)
    text = text.replace(b'"number ', b"").replace(b' number"', b"")
    exact = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    assert _decimals(json_text.parse(text)) == exact
    assert _decimals(json_text.parse(json_text.dump(json_text.parse(text)))) == exact


def _texts(value: object) -> object:
    match value:
        case dict():
            return {key: _texts(item) for key, item in value.items()}
        case list():
            return [_texts(item) for item in value]
        case _:
            return f"number {value} number"


def _decimals(value: object) -> object:
    match value:
        case dict():
            return {key: _decimals(item) for key, item in value.items()}
        case list():
            return [_decimals(item) for item in value]
        case float():
            return Decimal(repr(value))
        case int():
            return Decimal(value)
        case _:
            return value


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a" : 1, "b": {"c": 1, "c" :2}}',
        '[{"x": ":\\":", "y\\":": 1, "a":1,"a":1}]',
        '{"a": 1, "a": 2, "x": "\\u0022:"}',
        '{"a": 1, "a": 2, "x": "\\"\\u003a"}',
        '{"a": 1, "a": 2, "x": "\\"\\u003A"}',
    ],
)
def test_a_key_that_occurs_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="occurs twice"):
        json_text.parse(text.encode())


def test_inference_refuses_what_no_type_holds_and_registers_nothing_wider() -> None:
    first = widened("order.placed", None, json_text.parse(b'{"n": 1, "x": 1.5}'))
    for text in (b'{"n": 123456789012345678901234567890}', b'{"x": 9007199254740993}'):
        with pytest.raises(SchemaViolation, match="send it as text"):
            widened("order.placed", first, json_text.parse(text))
        with pytest.raises(SchemaViolation):
            widened(
                "order.placed", None, json_text.parse(text.replace(b"9007199254740993", b"1e-400"))
            )


@pytest.mark.parametrize(
    "text",
    [
        '{"trace": 1e20}',
        '{"trace": -1e300}',
        '{"a": [1, {"b": 9223372036854775808}]}',
        '{"trace": 12345678901234.567}',
        '{"trace": -0.0}',
        '{"a": [{"b": -0e0}]}',
        '{"trace": "\\u0000"}',
        '{"\\u0000": 1}',
    ],
)
def test_metadata_that_would_not_come_back_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        check_metadata(json_text.parse(text.encode()), "$.metadata")


@pytest.mark.parametrize("value", ['"yes"', "1", "null", "{}"])
def test_what_says_that_an_event_is_silent_says_it_plainly(value: str) -> None:
    text = f'{{"penstock_silent": {value}}}'
    with pytest.raises(InvalidRequest, match=r"metadata\.penstock_silent: expected true or false"):
        check_metadata(json_text.parse(text.encode()), "$.metadata")


def test_metadata_of_every_kind_is_taken() -> None:
    text = (
        b'{"a": [1, -2.5, null, true, "x", {}], "b": 9223372036854775807, "c": 1e18, "d": 0.0,'
        b' "penstock_silent": true, "e": {"penstock_silent": "nothing of ours"}}'
    )
    check_metadata(json_text.parse(text), "$.metadata")


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (logical("int", "date"), 2**31 - 1),
        (logical("int", "date"), -(2**31)),
        (logical("int", "time-millis"), 24 * 60 * 60 * 1000),
        (logical("long", "time-micros"), -1),
        (logical("long", "timestamp-millis"), 2**62),
        (logical("long", "timestamp-micros"), 2**63 - 1),
        (logical("long", "local-timestamp-micros"), -(2**63)),
        (logical("long", "timestamp-micros"), "0001-01-01T00:00:00+05:00"),
    ],
)
def test_a_time_that_nobody_could_read_back_is_refused(type_: object, value: object) -> None:
    with pytest.raises(SchemaViolation):
        codec(type_).encode({"v": value})


@pytest.mark.parametrize(
    ("type_", "body"),
    [
        ("string", b""),
        ("string", b"\x04\xff\xff"),
        (["null", "long"], b"\x22"),
        (logical("long", "timestamp-micros"), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x10"),
    ],
)
def test_bytes_that_the_schema_did_not_write_are_a_refusal(type_: object, body: bytes) -> None:
    for read in (lambda: codec(type_).decode(body), lambda: codec(type_).decode_many([body])):
        with pytest.raises(Incompatible):
            read()
