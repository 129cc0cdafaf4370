"""Framed Avro bytes to Arrow columns: an event's data, a row inside a change envelope, a key.

Upstream: bytes of the log and the schema text that they name. Downstream: state and projections.
Shapes and parsers are cached per schema text for the life of the process; all functions are pure
and safe inside Spark's Python workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import fastavro
import pyarrow as pa

from kernel.errors import SchemaViolation
from schemas.avro_bodies import BodyReader
from schemas.column_types import NOTHING, ColumnType, column_type, full_name, opened
from schemas.column_vectors import columns_of
from schemas.debezium import PLACEHOLDER, UNCHANGED, Unchanged, is_unchanged
from schemas.field_names import parsed
from schemas.lake_columns import captured_columns, event_columns
from schemas.pg_exact import EXACT, exact_texts, refuse_lost_keys, with_exact
from schemas.union_texts import with_branches
from schemas.wire import HEADER_BYTES, UNREADABLE

__all__ = [
    "PRESENT",
    "UNCHANGED",
    "UNCHANGED_COLUMNS",
    "Part",
    "RecordShape",
    "Unchanged",
    "decode_keys",
    "decode_rows",
    "decode_value",
    "envelope_shape",
    "event_shape",
    "key_columns",
    "shape_of",
]

PRESENT = "__present"
UNCHANGED_COLUMNS = "__unchanged"
Part = Literal["self", "event", "topic", "before", "after"]

_MARK = PLACEHOLDER.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordShape:
    """The columns of a record, in its own order. All are nullable: a row may be absent.

    `fields` are what the record itself calls its columns. A field of which no value is known yet
    (`column_types.NOTHING`) is none of them.
    """

    schema: pa.Schema
    types: tuple[ColumnType, ...]
    fields: tuple[str, ...]


@lru_cache(maxsize=4096)
def shape_of(schema_json: str) -> RecordShape:
    """Return the Arrow shape of a top-level Avro record, a change's key, under its lake names.

    Raises `SchemaViolation` when the text is no Avro record schema.
    """
    return _shape(_record(schema_json), captured_columns)


@lru_cache(maxsize=4096)
def event_shape(schema_json: str) -> RecordShape:
    """Return the Arrow shape of an event's data, under its names in a typed table.

    Raises `SchemaViolation` when the text is no Avro record schema.
    """
    return _shape(_record(schema_json), event_columns)


@lru_cache(maxsize=4096)
def envelope_shape(schema_json: str) -> RecordShape:
    """Return the Arrow shape of the row inside a Debezium change envelope, under its lake names.

    Raises `SchemaViolation` when the schema has no `before` and `after` record.
    """
    envelope = _record(schema_json)
    for field in envelope["fields"]:
        if field["name"] == "before" and isinstance(field["type"], list):
            rows = [branch for branch in field["type"] if isinstance(branch, dict)]
            if rows:
                return _shape(rows[0], captured_columns)
    raise SchemaViolation(f"{envelope.get('name')} is not a change envelope: it has no row image")


_SHAPES: Mapping[Part, Callable[[str], RecordShape]] = {
    "self": shape_of,
    "event": event_shape,
    "topic": event_shape,
    "before": envelope_shape,
    "after": envelope_shape,
}


def key_columns(key_schema_json: str) -> tuple[str, ...]:
    """Return what a source's key columns are called in the lake, in the key's order."""
    return captured_columns([field["name"] for field in _record(key_schema_json)["fields"]])


@lru_cache(maxsize=4096)
def may_lack_key(key_schema_json: str) -> bool:
    """Say whether a column of a source's key may be null: then its deletes do not tell it."""
    types = [field["type"] for field in _record(key_schema_json)["fields"]]
    return any(isinstance(kind, list) and "null" in kind for kind in types)


def decode_value(framed: bytes, schema_json: str) -> Any:
    """Decode one framed record to plain Python values; logical types stay as they travel.

    Raises `SchemaViolation` when the bytes do not fit the schema.
    """
    return _read(framed, _reader(schema_json))


def decode_rows(
    framed: Sequence[bytes | None] | pa.Array, schema_json: str, part: Part
) -> pa.Table:
    """Decode framed records of one schema to a table, one row each, in order.

    `part` picks the record itself (`event`: an event's data, `topic`: a record of others, else a
    change's key), or the before- or after-image of a change envelope. Columns have their names in
    the lake. A record or image that is absent is a row of nulls. Adds `__present` (bool) and, only
    when a row has a column that its UPDATE did not send, `__unchanged` (list of those columns'
    names, null where there are none); such a column is null in that row and keeps its earlier
    value. Where a value of another part than `event` is none that its column can hold, its text is
    in `_exact` (`schemas.pg_exact`), the last column but for `__unchanged`.
    Raises `SchemaViolation` when bytes do not fit the schema.
    """
    shape = _SHAPES[part](schema_json)
    binary = framed if isinstance(framed, pa.Array) else pa.array(framed, pa.binary())
    names = dict(zip(shape.fields, shape.schema.names, strict=True))
    quick = columns_of(binary, schema_json, part, names, shape.types)
    if quick is not None:
        columns = [*quick.columns, quick.present]
        return _with_left(pa.Table.from_arrays(columns, schema=_with_present(shape)), quick.left)
    framed = binary.to_pylist()
    if part not in ("before", "after"):
        reader = _rows_reader(schema_json, strict=part == "topic")
        rows = [None if item is None else _read(item, reader) for item in framed]
    else:
        reader = _rows_reader(schema_json, part)
        rows = [None if item is None else _read(item, reader)[part] for item in framed]
    # Only a captured row has the mark: elsewhere a text that is equal to it is that text.
    image = part in ("before", "after")
    unchanged = _take_unchanged(framed, rows, names) if image else None
    columns, exact = _columns(shape, rows)
    present = pa.array([row is not None for row in rows], pa.bool_())
    # A record may have no columns at all: then this one says how many rows there are.
    table = pa.Table.from_arrays([*columns, present], schema=_with_present(shape))
    if image:
        table = with_exact(table, _kept_exact(shape, unchanged, exact, len(rows)))
    elif part != "event":
        table = with_exact(table, exact_texts(exact, len(rows)))
    left = None if unchanged is None else pa.array(unchanged, pa.list_(pa.string()))
    return _with_left(table, left)


def decode_keys(
    framed: Sequence[bytes | None] | pa.Array, key_schema_json: str, value_schema_json: str
) -> pa.Table:
    """Decode the keys of changes to their columns, typed as in the rows that they are keys of.

    A key's schema says nothing of the source's type: a numeric is a text there, and Debezium has
    words of its own for NaN and the infinities. Raises `SchemaViolation` for bytes that do not fit
    the schema, and for a key that the lake cannot tell from others (`pg_exact.refuse_lost_keys`).
    """
    names, shape = key_columns(key_schema_json), envelope_shape(value_schema_json)
    keys = decode_rows(framed, key_schema_json, "self")
    if keys.schema.names[-1] == EXACT:
        refuse_lost_keys(keys[EXACT], names)
    keys = keys.select(list(names))
    own = dict(zip(shape.schema.names, shape.types, strict=True))
    for place, kind in enumerate(shape_of(key_schema_json).types):
        wanted = own.get(names[place])
        if wanted is not None and kind == ColumnType(pa.string()) and wanted.convert is not None:
            texts = keys.column(place).to_pylist()
            refuse_lost_keys(_lost_keys(names[place], wanted, texts), names)
            keys = keys.set_column(place, names[place], wanted.array(texts))
    return keys


def _lost_keys(name: str, kind: ColumnType, texts: list[Any]) -> pa.Array:
    lost = {place: {name: text} for place, text in kind.lost_texts(texts).items()}
    return exact_texts(lost, len(texts)) or pa.nulls(len(texts), pa.string())


def _with_left(table: pa.Table, left: pa.Array | None) -> pa.Table:
    return table if left is None else table.append_column(UNCHANGED_COLUMNS, left)


def _columns(
    shape: RecordShape, rows: list[dict[str, Any] | None]
) -> tuple[list[pa.Array], dict[int, dict[str, str]]]:
    """Return the columns, and the texts of values that they cannot hold, by row and column.

    Raises `SchemaViolation` with the column's name for a value that is none of its type.
    """
    columns: list[pa.Array] = []
    exact: dict[int, dict[str, str]] = {}
    for name, own, kind in zip(shape.schema.names, shape.fields, shape.types, strict=True):
        values = [None if row is None else row[own] for row in rows]
        try:
            columns.append(kind.array(values))
            lost = kind.lost_texts(values)
        except (pa.ArrowException, ValueError, ArithmeticError) as error:
            raise SchemaViolation(f"column {own} of type {kind.arrow}: {error}") from error
        for place, text in lost.items():
            exact.setdefault(place, {})[name] = text
    return columns, exact


def _kept_exact(
    shape: RecordShape,
    unchanged: list[list[str] | None] | None,
    exact: dict[int, dict[str, str]],
    rows: int,
) -> pa.Array | None:
    """Return `_exact`. The text of an array that was left alone is left alone as well."""
    lists = {
        name
        for name, kind in zip(shape.schema.names, shape.types, strict=True)
        if kind.source is not None and kind.source.is_array
    }
    left = False
    for names in unchanged or ():
        if names and not lists.isdisjoint(names):
            names.append(EXACT)
            left = True
    texts = exact_texts(exact, rows)
    return pa.nulls(rows, pa.string()) if texts is None and left else texts


def _take_unchanged(
    framed: Sequence[bytes | None], rows: list[dict[str, Any] | None], columns: Mapping[str, str]
) -> list[list[str] | None] | None:
    """Null the columns that carry the mark, and name them per row; None when there are none.

    `columns` says what each is called in the lake.
    """
    found: list[list[str] | None] | None = None
    for index, (item, row) in enumerate(zip(framed, rows, strict=True)):
        # A scan of the bytes spares nearly all rows the look at each column; a list of numbers
        # spells the mark otherwise, but then a text column beside it is rare: look at lists too.
        if item is None or row is None or not (_MARK in item or _has_list(row)):
            continue
        names = [name for name, value in row.items() if is_unchanged(value)]
        if names:
            found = found if found is not None else [None] * len(rows)
            found[index] = [columns[name] for name in names]
            for name in names:
                row[name] = None
    return found


def _has_list(row: dict[str, Any]) -> bool:
    return any(type(value) is list for value in row.values())


def _shape(record: dict[str, Any], called: Callable[[Sequence[str]], Sequence[str]]) -> RecordShape:
    names = [str(field["name"]) for field in record["fields"]]
    named = opened(record)
    types = [
        column_type(field["type"], named).called(name)
        for name, field in zip(names, record["fields"], strict=True)
    ]
    known = [
        (name, column, kind)
        for name, column, kind in zip(names, called(names), types, strict=True)
        if kind.arrow != NOTHING
    ]
    return RecordShape(
        schema=pa.schema([pa.field(column, kind.arrow) for _, column, kind in known]),
        types=tuple(kind for _, _, kind in known),
        fields=tuple(name for name, _, _ in known),
    )


def _with_present(shape: RecordShape) -> pa.Schema:
    return shape.schema.append(pa.field(PRESENT, pa.bool_()))


def _record(schema_json: str) -> dict[str, Any]:
    try:
        schema = parsed(schema_json)
    except RecursionError as error:
        raise SchemaViolation("a schema whose types lie too deep within each other") from error
    except ValueError as error:
        raise SchemaViolation(f"not an Avro schema: {error}") from error
    match schema:
        case {"type": "record", "fields": list()}:
            return dict(schema)
        case _:
            raise SchemaViolation(f"not an Avro record schema: {schema_json[:80]}")


def _read(framed: bytes, reader: BodyReader) -> Any:
    try:
        return reader.read(memoryview(framed)[HEADER_BYTES:])
    except SchemaViolation as error:
        raise SchemaViolation(
            f"{len(framed)} bytes do not fit their schema: {error.message}"
        ) from error
    except UNREADABLE as error:
        # Without an address in it: a record that is decoded again is rejected in the same words.
        reason = re.sub(r" at 0x[0-9a-f]+", "", repr(error))
        raise SchemaViolation(f"{len(framed)} bytes do not fit their schema: {reason}") from error


@lru_cache(maxsize=4096)
def _reader(schema_json: str) -> BodyReader:
    return _of_schema(schema_json, _bare)


@lru_cache(maxsize=4096)
def _rows_reader(
    schema_json: str, last_field: str | None = None, *, strict: bool = False
) -> BodyReader:
    """Prepare reading a schema, up to `last_field` only: Avro has no marks between fields.

    The row images come first in an envelope; what follows them costs more than a row.
    """

    def prepared(avro: Any) -> Any:
        schema = with_branches(_bare(avro))
        if last_field is not None:
            names = [field["name"] for field in schema["fields"]]
            schema["fields"] = schema["fields"][: names.index(last_field) + 1]
        return schema

    return _of_schema(schema_json, prepared, strict=strict)


def _of_schema(
    schema_json: str, prepared: Callable[[Any], Any], *, strict: bool = False
) -> BodyReader:
    try:
        return BodyReader(fastavro.parse_schema(prepared(parsed(schema_json))), strict=strict)
    except RecursionError as error:
        raise SchemaViolation("a schema whose types lie too deep within each other") from error
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise SchemaViolation(f"not an Avro schema: {error}") from error


_UNREAD = ("logicalType", "default")


def _bare(avro: Any) -> Any:
    """Drop logical types: values are converted by column, and some of Debezium's are invalid.

    Defaults go as well: nobody reads with another schema than the writer's, and that of a column
    whose default is infinite or NaN has none that JSON could say.
    """
    match avro:
        case dict():
            kept = {key: _bare(value) for key, value in avro.items() if key not in _UNREAD}
            if full_name(avro) is None:
                kept.pop("namespace", None)
            return kept
        case list():
            return [_bare(item) for item in avro]
        case _:
            return avro
