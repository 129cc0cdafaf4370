"""Avro to Arrow without a registry or a broker: shapes, values, what was left alone."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from kernel.errors import SchemaViolation
from schemas import debezium
from schemas.column_types import column_type
from schemas.column_vectors import FEW
from schemas.columns import (
    PRESENT,
    UNCHANGED_COLUMNS,
    decode_keys,
    decode_rows,
    envelope_shape,
    key_columns,
    shape_of,
)
from schemas.pg_moments import DATE_MAX, DATE_MIN, time_text
from schemas.wire import frame

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
PLACED = {
    "type": "record",
    "name": "placed",
    "namespace": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": MONEY},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": ["null", "Kind"], "default": None},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [
                        {"name": "sku", "type": "string"},
                        {"name": "due", "type": MILLIS},
                    ],
                },
            },
        },
        {"name": "extra", "type": {"type": "map", "values": "double"}},
        {"name": "either", "type": ["null", "long", "string"], "default": None},
    ],
}


def text(schema: object) -> str:
    return json.dumps(schema)


def framed(schema: object, value: Mapping[str, object]) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, fastavro.parse_schema(schema), value)
    return frame(1, body.getvalue())


def order(**changed: object) -> dict[str, object]:
    return {
        "id": 7,
        "total": Decimal("-12.50"),
        "at": datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC),
        "day": date(2024, 2, 29),
        "clock": 45_296_789,
        "kind": "A",
        "again": "B",
        "lines": [{"sku": "x", "due": datetime(2024, 3, 1, tzinfo=UTC)}],
        "extra": {"a": 1.5},
        "either": "text",
    } | changed


def test_an_event_becomes_columns() -> None:
    written = json.loads(text(PLACED))
    written["fields"][4]["type"] = "int"
    table = decode_rows([framed(written, order()), None], text(PLACED), "self")
    assert table[PRESENT].to_pylist() == [True, False]
    first, second = table.drop_columns([PRESENT]).to_pylist()
    assert first == order(
        clock="12:34:56.789",
        extra=[("a", 1.5)],
        either="text",
    )
    assert set(second.values()) == {None}


def test_the_shape_of_an_event() -> None:
    schema = shape_of(text(PLACED)).schema
    assert schema.field("total").type == pa.decimal128(9, 2)
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert schema.field("clock").type == pa.string()
    assert schema.field("lines").type == pa.list_(
        pa.struct([("sku", pa.string()), ("due", pa.timestamp("us", "UTC"))])
    )
    assert key_columns(text(PLACED))[:2] == ("id", "total")


def column(name: str, avro: object) -> dict[str, object]:
    return {"name": name, "type": ["null", avro], "default": None}


def source(kind: str, length: int, scale: int) -> dict[str, str]:
    return {
        "__debezium.source.column.type": kind,
        "__debezium.source.column.length": str(length),
        "__debezium.source.column.scale": str(scale),
    }


def envelope(*columns: dict[str, object]) -> dict[str, object]:
    row = {"type": "record", "name": "Value", "fields": list(columns)}
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "s.public.t",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
        ],
    }


def numeric(length: int, scale: int) -> dict[str, object]:
    return {"type": "string", "connect.parameters": source("NUMERIC", length, scale)}


@pytest.mark.parametrize(
    ("length", "scale", "wanted"),
    [
        (12, 2, pa.decimal128(12, 2)),
        (38, 10, pa.decimal128(38, 10)),
        (39, 10, pa.string()),
        (0, 0, pa.string()),
        (131089, 0, pa.string()),
        (5, 2046, pa.decimal128(7, 0)),
        (2, 5, pa.decimal128(5, 5)),
    ],
)
def test_numerics_are_decimals_where_they_fit(length: int, scale: int, wanted: pa.DataType) -> None:
    shape = envelope_shape(text(envelope(column("n", numeric(length, scale)))))
    assert shape.schema.field("n").type == wanted


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("NAN", "NaN"), ("POSITIVE_INFINITY", "Infinity"), ("NEGATIVE_INFINITY", "-Infinity")],
)
def test_special_numerics_are_words_or_null(sent: str, kept: str) -> None:
    schema = envelope(column("free", numeric(0, 0)), column("fixed", numeric(9, 2)))
    bytes_ = framed(schema, {"before": None, "after": {"free": sent, "fixed": sent}, "op": "c"})
    (row,) = decode_rows([bytes_], text(schema), "after").to_pylist()
    assert (row["free"], row["fixed"]) == (kept, None)


def test_what_an_update_left_alone_is_named_and_null() -> None:
    schema = envelope(
        column("id", "int"),
        column("body", "string"),
        column("raw", "bytes"),
        column("tags", {"type": "array", "items": "string"}),
        column("numbers", {"type": "array", "items": "int"}),
    )
    mark = debezium.PLACEHOLDER
    sent = [
        {"id": 1, "body": "b", "raw": b"r", "tags": ["t"], "numbers": [1]},
        {"id": 2, "body": mark, "raw": mark.encode(), "tags": [mark], "numbers": None},
        {"id": 3, "body": f"{mark}!", "raw": None, "tags": [], "numbers": list(mark.encode())},
    ]
    rows = [framed(schema, {"before": None, "after": row, "op": "u"}) for row in sent]
    table = decode_rows(rows, text(schema), "after")
    assert table[UNCHANGED_COLUMNS].to_pylist() == [None, ["body", "raw", "tags"], ["numbers"]]
    assert table["body"].to_pylist() == ["b", None, f"{mark}!"]
    assert UNCHANGED_COLUMNS not in decode_rows(rows[:1], text(schema), "after").column_names


def test_many_rows_with_values_left_alone_are_read_at_once_as_they_are_one_by_one() -> None:
    schema = envelope(
        column("id", "int"), column("a-b", ["null", "string"]), column("raw", "bytes")
    )
    mark = debezium.PLACEHOLDER
    bodies, raws = [mark, None, "b", mark, f"{mark}!"], [b"r", mark.encode(), mark.encode()]
    sent = [{"id": n, "a-b": bodies[n % 5], "raw": raws[n % 3]} for n in range(40)]
    images = [*sent, None]
    rows = [framed(schema, {"before": None, "after": row, "op": "u"}) for row in images]
    one_by_one = [decode_rows([row], text(schema), "after") for row in rows]
    expected = pa.concat_tables(one_by_one, promote_options="default")
    assert decode_rows(rows, text(schema), "after").to_pylist() == expected.to_pylist()
    assert len(rows) >= FEW


def test_an_absent_image_is_a_row_of_nulls() -> None:
    schema = envelope(column("id", "int"))
    deleted = framed(schema, {"before": {"id": 1}, "after": None, "op": "d"})
    assert decode_rows([deleted], text(schema), "after").to_pylist() == [
        {"id": None, PRESENT: False}
    ]
    assert decode_rows([deleted], text(schema), "before")["id"].to_pylist() == [1]


@pytest.mark.parametrize("bytes_", [frame(1, b""), frame(1, b"\x00\x02"), b"\x00"])
def test_bytes_that_do_not_fit_are_a_schema_violation(bytes_: bytes) -> None:
    with pytest.raises(SchemaViolation):
        decode_rows([bytes_], text(PLACED), "self")


@pytest.mark.parametrize("schema", ["", "[]", '"string"', '{"type":"record","name":"x"}'])
def test_what_is_no_record_schema_is_refused(schema: str) -> None:
    with pytest.raises(SchemaViolation):
        shape_of(schema)


def test_what_is_no_envelope_is_refused() -> None:
    with pytest.raises(SchemaViolation, match="not a change envelope"):
        envelope_shape(text(PLACED))


@pytest.mark.parametrize(
    ("days", "kept"),
    [
        (0, 0),
        (DATE_MAX, DATE_MAX),
        (2**31 - 1, DATE_MAX),
        (-(2**31), DATE_MIN),
        (2146033979, DATE_MAX),
        (-622191234, DATE_MAX),
        (-2147472691, DATE_MIN),
        (-625821272, DATE_MIN),
        (-735160, DATE_MIN),
    ],
)
def test_dates_saturate(days: int, kept: int) -> None:
    assert debezium.clamped_date(days) == kept


@pytest.mark.parametrize(
    ("micros", "text_"),
    [(0, "00:00:00"), (86_400_000_000, "24:00:00"), (45_296_789_010, "12:34:56.78901")],
)
def test_times_are_written_as_postgresql_does(micros: int, text_: str) -> None:
    assert time_text(micros) == text_


ZONED = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}


@pytest.mark.parametrize(
    ("avro", "values"),
    [
        (
            ZONED,
            [
                *("2013-01-01T05:15:00.5Z", "0000-12-31T23:59:59.5Z", "0001-01-01T00:00:00Z"),
                *("-0043-03-15T12:00:00Z", "+10000-01-01T00:00:00Z", "infinity", "-infinity"),
                "9999-12-31T23:59:59.999999Z",
            ],
        ),
        (MICROS, [0, -1, 2**63 - 1, -(2**63), -62135596800000001, 253402300800000000]),
        (MILLIS, [0, -62135596800001, 253402300800000]),
    ],
)
def test_a_whole_column_is_read_as_each_value_alone(
    avro: dict[str, object], values: list[object]
) -> None:
    """What a value becomes does not hang on which others came with it."""
    column = column_type(avro, {})
    together = column.array([None, *values]).to_pylist()
    assert together[0] is None
    assert [column.array([value]).to_pylist()[0] for value in values] == together[1:]
    assert all(column.array([value, values[0]]).to_pylist()[1] == together[1] for value in values)


@pytest.mark.parametrize("count", [1, 20], ids=["row by row", "side by side"])
def test_a_number_of_a_negative_scale_keeps_its_value(count: int) -> None:
    """The connector writes a numeric(5, -2) with 2046 zeros behind its point."""

    def read(said: str, **source: str) -> list[object]:
        parameters = {f"__debezium.source.column.{name}": text for name, text in source.items()}
        column = {"type": "string", "connect.parameters": {**parameters}}
        schema = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": column}]}
        rows = decode_rows([framed(schema, {"n": said})] * count, text(schema), "self")
        return rows["n"].to_pylist()

    tens = read(f"-64600.{'0' * 2046}", type="NUMERIC", length="5", scale="2046")
    assert tens == [Decimal(-64600)] * count
    long = f"64{'0' * 38}"
    large = {"type": "NUMERIC", "length": "30", "scale": "2038"}
    assert read(f"{long}.{'0' * 2038}", **large) == [long] * count
    assert read("NAN", **large) == ["NaN"] * count


def keys_of(kind: dict[str, object], *values: object) -> pa.ChunkedArray:
    """Read keys of a column of some kind, as Debezium writes them: without the source's type."""
    plain = {name: each for name, each in kind.items() if name != "connect.parameters"}
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": plain}]}
    schema = text(envelope({"name": "id", "type": kind}))
    return decode_keys([framed(key, {"id": value}) for value in values], text(key), schema)["id"]


def test_a_key_is_the_value_that_its_row_has() -> None:
    """Debezium calls NaN and the infinities otherwise, in keys and rows alike."""
    words = ("NAN", "1.50", "POSITIVE_INFINITY", "NEGATIVE_INFINITY", "-0")
    told = ["NaN", "1.50", "Infinity", "-Infinity", "-0"]
    assert keys_of(numeric(0, 0), *words).to_pylist() == told
    assert keys_of(numeric(12, 2), "NAN", "1.50", "2").to_pylist() == [None, Decimal("1.5"), 2]
    assert keys_of({"type": "string"}, *words).to_pylist() == [*words]


DATE = {"type": "int", "connect.name": "io.debezium.time.Date"}
MICROS = {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}
ZONED = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}


@pytest.mark.parametrize(
    ("kind", "ends", "beyond", "called"),
    [
        (DATE, (2**31 - 1, -(2**31)), -735_000, "0044-08-22 BC"),
        (MICROS, (2**63 - 1, -(2**63)), 253402300800000000, "10000-01-01 00:00:00"),
        (ZONED, ("infinity", "-infinity"), "-0043-03-15T00:00:00Z", "0044-03-15 00:00:00+00 BC"),
        (numeric(3, 1), ("NAN",), "1000", "1000"),
    ],
)
@pytest.mark.parametrize("count", [1, FEW])
def test_a_key_that_the_lake_has_another_one_for_is_refused(
    kind: dict[str, object], ends: tuple[object, ...], beyond: object, called: str, count: int
) -> None:
    """Two of them would be one row, and the end of one the end of the other."""
    assert len(keys_of(kind, *ends * count)) == len(ends) * count
    with pytest.raises(SchemaViolation, match=re.escape(f"key id = {called}, which")) as caught:
        keys_of(kind, *[ends[0]] * count, beyond)
    assert "penstock source resnapshot" in caught.value.remedy
