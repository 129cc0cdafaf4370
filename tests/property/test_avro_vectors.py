"""Reading Avro side by side gives what reading record by record gives, or nothing."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.avro_vectors import Path, read_columns
from schemas.column_vectors import FEW
from schemas.columns import PRESENT, decode_rows
from schemas.debezium import PLACEHOLDER
from schemas.json_codec import JsonCodec
from schemas.wire import frame

LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=12),
    "null": st.none(),
}


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """An Avro type with values that it takes."""
    kinds = [*LEAVES, "enum", "optional", "optional", *(["record"] if depth else [])]
    kind = draw(st.sampled_from(kinds))
    if kind in LEAVES:
        return kind, LEAVES[kind]
    if kind == "enum":
        return {"type": "enum", "name": "", "symbols": ["A", "B"]}, st.sampled_from("AB")
    if kind == "optional":
        inner, values = draw(types(depth=max(0, depth - 1)).filter(_plain))
        union = ["null", inner] if draw(st.booleans()) else [inner, "null"]
        return union, st.none() | values
    fields = draw(st.lists(types(depth=depth - 1), min_size=1, max_size=3))
    record = {
        "type": "record",
        "name": "",
        "fields": [{"name": f"f{i}", "type": t} for i, (t, _) in enumerate(fields)],
    }
    return record, st.fixed_dictionaries({f"f{i}": v for i, (_, v) in enumerate(fields)})


def _plain(made: tuple[Any, Any]) -> bool:
    return made[0] != "null" and not isinstance(made[0], list)


@st.composite
def records(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[bytes]]:
    fields = draw(st.lists(types(), min_size=1, max_size=4))
    schema = {
        "type": "record",
        "name": "Top",
        "fields": [{"name": f"f{i}", "type": t} for i, (t, _) in enumerate(fields)],
    }
    name_apart(schema)
    row = st.fixed_dictionaries({f"f{i}": v for i, (_, v) in enumerate(fields)})
    rows = draw(st.lists(row, min_size=1, max_size=FEW + 4))
    parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
    framed = []
    for values in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, values)
        framed.append(frame(7, out.getvalue()))
    return json.dumps(schema), rows, framed


def name_apart(avro: Any, taken: list[str] | None = None) -> None:
    """Give every named type a name of its own: Avro knows each once."""
    taken = [] if taken is None else taken
    if isinstance(avro, list):
        for branch in avro:
            name_apart(branch, taken)
    elif isinstance(avro, dict):
        taken.append("")
        avro["name"] = f"n{len(taken)}"
        for item in avro.get("fields", ()):
            name_apart(item["type"], taken)


def paths(schema: Any, prefix: Path = ()) -> list[Path]:
    """Every field of a record that is no record itself."""
    found: list[Path] = []
    for item in schema["fields"]:
        kind = item["type"]
        if isinstance(kind, list):
            kind = next(branch for branch in kind if branch != "null")
        path = (*prefix, item["name"])
        inside = isinstance(kind, dict) and kind["type"] == "record"
        found += paths(kind, path) if inside else [path]
    return found


def at(row: Any, path: Path) -> Any:
    for name in path:
        row = None if row is None else row[name]
    return row


@settings(max_examples=150, deadline=None)
@given(records())
def test_columns_equal_the_records(made: tuple[str, list[dict[str, Any]], list[bytes]]) -> None:
    schema, rows, framed = made
    wanted = paths(json.loads(schema))
    found = read_columns(framed, schema, wanted)
    assert found is not None
    for path in wanted:
        assert found[path].to_pylist() == [at(row, path) for row in rows], path


@settings(max_examples=100, deadline=None)
@given(records(), st.integers(0, 60), st.binary(max_size=3))
def test_bytes_that_do_not_fit_are_never_misread(
    made: tuple[str, list[dict[str, Any]], list[bytes]], cut: int, more: bytes
) -> None:
    schema, _, framed = made
    broken = [framed[0][: max(5, len(framed[0]) - cut)] + more, *framed[1:]]
    wanted = paths(json.loads(schema))
    found = read_columns(broken, schema, wanted)
    if found is None:
        return
    parsed = fastavro.parse_schema(json.loads(schema))
    rows = [fastavro.schemaless_reader(io.BytesIO(item[5:]), parsed, None) for item in broken]
    for path in wanted:
        assert found[path].to_pylist() == [at(row, path) for row in rows]


@settings(max_examples=60, deadline=None)
@given(records())
def test_rows_are_the_same_whether_many_or_few(
    made: tuple[str, list[dict[str, Any]], list[bytes]],
) -> None:
    schema, _, framed = made
    many = [framed[i % len(framed)] for i in range(FEW + len(framed))]
    few = pa.concat_tables([decode_rows([item], schema, "self") for item in many])
    assert (
        decode_rows(many, schema, "self")
        .drop_columns([PRESENT])
        .equals(few.drop_columns([PRESENT]))
    )


def record_of(schema: Any, row: dict[str, Any]) -> tuple[str, bytes]:
    """Return the text of a schema, and a record of it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return json.dumps(schema), frame(7, out.getvalue())


@pytest.mark.parametrize("count", [1, FEW + 2], ids=["row by row", "side by side"])
@pytest.mark.parametrize("mark", [PLACEHOLDER, PLACEHOLDER.encode()])
def test_a_value_like_the_mark_of_captured_rows_is_itself_elsewhere(
    mark: str | bytes, count: int
) -> None:
    kind = "string" if isinstance(mark, str) else "bytes"
    schema = {"type": "record", "name": "T", "fields": [{"name": "v", "type": kind}]}
    text, framed = record_of(schema, {"v": mark})
    for rows in (decode_rows([framed] * count, text, part) for part in ("event", "self")):
        assert rows.schema.names == ["v", PRESENT]
        assert rows["v"].to_pylist() == [mark] * count


def status(namespace: str, *symbols: str) -> dict[str, object]:
    return {"type": "enum", "name": "Status", "namespace": namespace, "symbols": list(symbols)}


def box(namespace: str, field: str, type_: str) -> dict[str, object]:
    fields = [{"name": field, "type": type_}]
    return {"type": "record", "name": "Box", "namespace": namespace, "fields": fields}


ENUMS = (status("a", "OPEN", "SHUT"), status("b", "RED", "BLUE"))
BOXES = (box("b", "t", "string"), box("a", "n", "long"))


@pytest.mark.parametrize("count", [1, FEW + 2], ids=["row by row", "side by side"])
@pytest.mark.parametrize(
    ("types", "values"),
    [
        ((*ENUMS, "Status"), ("SHUT", "BLUE", "SHUT")),
        ((*ENUMS, "b.Status", "a.Status"), ("SHUT", "BLUE", "RED", "OPEN")),
        ((*BOXES, "Box", "b.Box"), ({"t": "x"}, {"n": 1}, {"n": 2}, {"t": "y"})),
    ],
)
def test_types_of_one_name_are_told_apart_by_their_namespaces(
    types: tuple[object, ...], values: tuple[object, ...], count: int
) -> None:
    fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
    row = {f"f{i}": value for i, value in enumerate(values)}
    schema = {"type": "record", "name": "T", "namespace": "a", "fields": fields}
    text, framed = record_of(schema, row)
    assert JsonCodec(text).decode(framed[5:]) == row
    rows = decode_rows([framed] * count, text, "event").drop_columns([PRESENT])
    assert rows.to_pylist() == [row] * count


BOX = box("a", "n", "long")


@pytest.mark.parametrize("count", [1, FEW + 2], ids=["row by row", "side by side"])
@pytest.mark.parametrize(
    ("value", "text"),
    [("x", "x"), ("7", "7"), (7, "7"), ({"n": 1}, '{"n":1}'), (None, None)],
)
def test_a_text_of_a_union_is_itself_and_all_else_is_json(
    value: object, text: str | None, count: int
) -> None:
    """So that a field which was text before is the same text. Its types are known from there on."""
    types = (["null", "long", "string", BOX], "a.Box")
    fields = [{"name": f"f{i}", "type": type_} for i, type_ in enumerate(types)]
    schema = {"type": "record", "name": "T", "fields": fields}
    written, framed = record_of(schema, {"f0": value, "f1": {"n": 2}})
    rows = decode_rows([framed] * count, written, "event").drop_columns([PRESENT])
    assert rows.to_pylist() == [{"f0": text, "f1": {"n": 2}}] * count


def meant(kind: str, meaning: str, **further: object) -> dict[str, object]:
    return {"type": kind, "logicalType": meaning, **further}


AMOUNT = meant("fixed", "decimal", name="a.Amount", size=2, precision=4, scale=2)
AT = {
    "type": "record",
    "name": "a.At",
    "fields": [
        {"name": "at", "type": meant("long", "local-timestamp-micros")},
        {"name": "next", "type": ["null", "a.At"]},
    ],
}
MEANT = [
    (["null", "string", meant("long", "timestamp-millis")], 250, "1970-01-01T00:00:00.250000Z"),
    ([meant("int", "date"), "long"], ("int", 1), "1970-01-02"),
    ([meant("int", "date"), "long"], ("long", 1), "1"),
    (["int", meant("long", "timestamp-micros")], ("long", 1), "1970-01-01T00:00:00.000001Z"),
    (["string", meant("int", "time-millis")], 1500, "00:00:01.5"),
    (["string", meant("bytes", "decimal", precision=4, scale=2)], b"\x96", "-1.06"),
    (["string", meant("bytes", "decimal", precision=4, scale=2)], b"\x7f\xff\xff", '"7fffff"'),
    (["string", meant("long", "timestamp-millis")], 253402300800000, "253402300800000"),
    (["string", meant("int", "date")], 2932897, "2932897"),
    (
        ["string", {"type": "array", "items": meant("int", "date")}],
        [0, 2932897],
        '["1970-01-01",2932897]',
    ),
    (["bytes", AMOUNT], ("a.Amount", b"\x00\x96"), "1.50"),
    (["bytes", AMOUNT], ("bytes", b"\x00\x96"), '"0096"'),
    (
        ["string", {"type": "array", "items": ["string", meant("int", "date")]}],
        [0],
        '["1970-01-01"]',
    ),
    (["long", {"type": "map", "values": AMOUNT}], {"b": b"\x00\x96"}, '{"b":"1.50"}'),
    (["long", AT], {"at": 0, "next": None}, '{"at":"1970-01-01T00:00:00","next":null}'),
    (
        ["long", AT],
        {"at": 0, "next": {"at": 1_000_000, "next": None}},
        '{"at":"1970-01-01T00:00:00","next":{"at":"1970-01-01T00:00:01","next":null}}',
    ),
]


@pytest.mark.parametrize("count", [1, FEW + 2], ids=["row by row", "side by side"])
@pytest.mark.parametrize(("union", "value", "text"), MEANT)
def test_what_a_union_holds_is_shown_by_the_type_that_it_is_of(
    union: list[object], value: object, text: str, count: int
) -> None:
    fields = [{"name": "v", "type": union}, {"name": "w", "type": "string"}]
    schema = {"type": "record", "name": "T", "fields": fields}
    bare = json.loads(json.dumps(schema), object_hook=without_meaning)
    _, framed = record_of(bare, {"v": value, "w": "behind"})
    rows = decode_rows([framed] * count, json.dumps(schema), "event").drop_columns([PRESENT])
    assert rows.to_pylist() == [{"v": text, "w": "behind"}] * count


def without_meaning(found: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in found.items() if name != "logicalType"}


def test_a_union_within_a_record_within_itself_is_what_was_written() -> None:
    fields = [
        {"name": "next", "type": ["null", "T"]},
        {"name": "v", "type": ["null", "long", "string"]},
    ]
    schema = {"type": "record", "name": "T", "fields": fields}
    text, framed = record_of(schema, {"next": {"next": None, "v": 7}, "v": 8})
    (row,) = decode_rows([framed], text, "event").drop_columns([PRESENT]).to_pylist()
    assert row == {"next": '{"next":null,"v":7}', "v": "8"}
