"""PostgreSQL's text to lake values, without a PostgreSQL: edges, refusals, what stays beside."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.errors import SchemaViolation
from schemas import debezium
from schemas.column_vectors import FEW
from schemas.columns import UNCHANGED_COLUMNS, decode_rows
from schemas.pg_doubles import double_text, geometry_text
from schemas.pg_exact import EXACT, carried_exact
from schemas.pg_moments import date_of, date_text, micros_of, timestamp_text
from schemas.pg_text import text_to_lake
from schemas.pg_types import SourceColumn, lake_type, modifier_of, type_of_text, type_text
from schemas.wire import frame

PRICE = SourceColumn(name="price", type="numeric", modifier=modifier_of(10, 2))
GRID = SourceColumn(name="grid", type="int4", is_array=True, dimensions=2)


def test_what_a_column_cannot_hold_stays_beside_it() -> None:
    texts = pa.table(
        {
            "price": pa.chunked_array([["1.50", "NaN"], [None, "NaN"]]),
            "grid": pa.chunked_array([["{{1,2},{3,4}}", "{}"], ["{1,2}", "[0:0]={1}"]]),
        }
    )
    table = text_to_lake([PRICE, GRID], texts)
    assert table["grid"].to_pylist() == [[[1, 2], [3, 4]], [], None, None]
    assert [str(price) for price in table["price"].to_pylist()] == ["1.50", "None", "None", "None"]
    assert table[EXACT].to_pylist() == [
        None,
        '{"price":"NaN"}',
        '{"grid":"{1,2}"}',
        '{"grid":"[0:0]={1}","price":"NaN"}',
    ]
    assert EXACT not in text_to_lake([PRICE], texts.slice(0, 1)).column_names


@pytest.mark.parametrize(
    ("text", "held", "beside"),
    [
        ("1.50", "1.50", False),
        ("-99999999.99", "-99999999.99", False),
        ("150." + "0" * 2046, "150.00", False),
        ("0." + "0" * 2046, "0.00", False),
        ("Infinity", None, True),
        ("-Infinity", None, True),
        ("100000000.00", None, True),
        ("1.505", None, True),
        ("1." + "0" * 2045 + "1", None, True),
        ("9" * 4000, None, True),
    ],
)
def test_a_number_is_exact_in_its_decimal_or_beside_it(
    text: str, held: str | None, beside: bool
) -> None:
    array = replace(PRICE, name="prices", is_array=True, dimensions=1)
    texts = pa.table({"price": [text, None], "prices": [f"{{{text},NULL}}", None]})
    table = text_to_lake([PRICE, array], texts)
    value = None if held is None else Decimal(held)
    assert table["price"].to_pylist() == [value, None]
    assert table["prices"].to_pylist() == [[value, None], None]
    exact = {"price": text, "prices": f"{{{text},NULL}}"}
    found = table[EXACT].to_pylist() if EXACT in table.column_names else [None, None]
    assert [each and json.loads(each) for each in found] == [exact if beside else None, None]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("int4", "x"),
        ("numeric", "x"),
        ("bool", "maybe"),
        ("date", "soon"),
        ("timestamptz", "2024"),
        ("bytea", "\\xz"),
    ],
)
def test_text_of_another_type_is_a_schema_violation(kind: str, text: str) -> None:
    column = SourceColumn(name="c", type=kind, modifier=modifier_of(10, 2))
    with pytest.raises(SchemaViolation, match=f"column c of type {kind}"):
        text_to_lake([column], pa.table({"c": [text]}))


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("{}", []),
        ("{NULL}", [None]),
        ('{"NULL",""}', ["NULL", ""]),
        ('{"a,b","c\\"d","e\\\\f"}', ["a,b", 'c"d', "e\\f"]),
        ("{plain,text here}", ["plain", "text here"]),
    ],
)
def test_arrays_of_text(text: str, items: list[str | None]) -> None:
    column = SourceColumn(name="c", type="text", is_array=True, dimensions=1)
    found = text_to_lake([column], pa.table({"c": [text, None]}))
    assert found["c"].to_pylist() == [items, None]


def test_a_type_travels_as_text() -> None:
    for column in (PRICE, GRID):
        assert lake_type(type_of_text(type_text(column))) == lake_type(column)


def envelope(*columns: dict[str, object]) -> dict[str, object]:
    row = {"type": "record", "name": "Value", "fields": list(columns)}
    return {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
        ],
    }


def spelled(column: SourceColumn) -> dict[str, object]:
    """Return the field of a column that travels as PostgreSQL's text."""
    parameters = {debezium.TEXT: "1", "penstock.column": type_text(column)}
    kind = {"type": "string", "connect.parameters": parameters}
    return {"name": column.name, "type": ["null", kind], "default": None}


def decoded(schema: dict[str, object], rows: list[dict[str, object]]) -> pa.Table:
    """Encode after-images of rows and read them again."""
    framed = []
    for row in rows:
        body = io.BytesIO()
        parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
        fastavro.schemaless_writer(body, parsed, {"before": None, "after": row})
        framed.append(frame(1, body.getvalue()))
    return decode_rows(framed, json.dumps(schema), "after")


@pytest.mark.parametrize("rows", [1, FEW])
def test_a_value_that_is_none_of_its_column_s_type_is_said_with_the_column_s_name(
    rows: int,
) -> None:
    grid = replace(GRID, name="Größe")
    with pytest.raises(SchemaViolation, match=r"column Größe of type int4.*soon"):
        decoded(envelope(spelled(grid)), [{"Größe": "{{soon}}"}] * rows)
    small = {"name": "small", "type": {"type": "int", "connect.type": "int16"}}
    with pytest.raises(SchemaViolation, match=r"column small of type int16.*40000"):
        decoded(envelope(small), [{"small": 40000}] * rows)


def test_the_connectors_text_is_read_alike_and_unchanged_texts_are_left_alone() -> None:
    rows = [
        {"price": "NaN", "grid": "{{1},{2}}"},
        {"price": "2.00", "grid": debezium.PLACEHOLDER},
    ]
    table = decoded(envelope(spelled(PRICE), spelled(GRID)), rows)
    assert table["grid"].to_pylist() == [[[1], [2]], None]
    assert table[EXACT].to_pylist() == ['{"price":"NaN"}', None]
    assert table[UNCHANGED_COLUMNS].to_pylist() == [None, ["grid", EXACT]]


def test_a_row_keeps_the_texts_of_what_was_left_alone_only() -> None:
    before = '{"grid":"{1}","price":"NaN"}'
    assert carried_exact(None, before, ["grid", EXACT]) == '{"grid":"{1}"}'
    assert carried_exact('{"due":"infinity"}', before, ["grid"]) == (
        '{"due":"infinity","grid":"{1}"}'
    )
    assert carried_exact(None, before, ["note"]) is None
    assert carried_exact(None, None, ["grid"]) is None


@given(st.dates())
def test_dates_are_counted_as_python_does(day: date) -> None:
    days = (day - date(1970, 1, 1)).days
    assert date_of(day.isoformat()) == (days, True)
    assert date_text(days) == day.isoformat()


@given(st.integers(-2440588, 2145042905))
def test_a_date_is_the_one_that_it_prints(days: int) -> None:
    kept, whole = date_of(date_text(days))
    assert whole == (kept == days)
    assert timestamp_text(days * 86_400_000_000, zoned=True).startswith(date_text(days)[:8])


def test_moments_in_other_zones_are_in_utc() -> None:
    assert micros_of("1970-01-01 00:00:00.5+05:30") == (-19_799_500_000, True)
    assert micros_of("1970-01-01 00:00:00-00:00:01") == (1_000_000, True)
    assert micros_of("0001-01-01 00:00:00+01")[1] is False
    assert timedelta(microseconds=micros_of("9999-12-31 23:59:59.999999")[0]).days == 2932896


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, None),
        (-735160, "0044-03-15 BC"),
        (2932897, "10000-01-01"),
        (2**31 - 1, "infinity"),
        (-(2**31), "-infinity"),
    ],
)
def test_dates_of_the_connector_that_do_not_fit(days: int, text: str | None) -> None:
    assert debezium.lost_date(days) == text


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, None),
        (2**63 - 1, "infinity"),
        (-(2**63), "-infinity"),
        (9224318015999999999 - 2**64, "294276-12-31 23:59:59.999999"),
        (-735160 * 86_400_000_000, "0044-03-15 00:00:00 BC"),
    ],
)
def test_timestamps_of_the_connector_that_do_not_fit(micros: int, text: str | None) -> None:
    assert debezium.lost_micros(micros, zoned=False) == text


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("2024-02-29T12:00:00Z", None),
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("-0043-03-15T12:00:00Z", "0044-03-15 12:00:00+00 BC"),
        ("0000-12-31T23:59:59.5Z", "0001-12-31 23:59:59.5+00 BC"),
        ("+10000-01-01T00:00:00.000001Z", "10000-01-01 00:00:00.000001+00"),
    ],
)
def test_zoned_timestamps_of_the_connector_that_do_not_fit(sent: str, text: str | None) -> None:
    assert debezium.lost_zoned(sent) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "-0"),
        (100.0, "100"),
        (1e14, "100000000000000"),
        (1e15, "1e+15"),
        (0.0001, "0.0001"),
        (1e-05, "1e-05"),
        (5.310792438204826e16, "5.3107924382048256e+16"),
        (2.0**-24, "5.960464477539063e-08"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_postgresql_does(value: float, text: str) -> None:
    assert double_text(value) == text


def test_geometric_values_of_java_are_written_as_postgresql_does() -> None:
    assert geometry_text("<(1.0E20,-0.0),2.5>") == "<(1e+20,-0),2.5>"
    assert geometry_text("((0.0,NaN),(1.0,Infinity))") == "((0,NaN),(1,Infinity))"
