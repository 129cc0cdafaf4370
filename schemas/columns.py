"""Framed Avro bytes to Arrow columns: an event's data, a row inside a change envelope, a key.

Upstream: bytes of the log and the schema text that they name. Downstream: state and projections.
Shapes and parsers are cached per schema text for the life of the process; all functions are pure
and safe inside Spark's Python workers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import fastavro
import pyarrow as pa

from kernel.errors import SchemaViolation
from schemas.column_types import ColumnType, column_type, full_name
from schemas.column_vectors import columns_of
from schemas.debezium import PLACEHOLDER, UNCHANGED, Unchanged, is_unchanged
from schemas.pg_exact import EXACT, exact_texts, with_exact
from schemas.wire import HEADER_BYTES

__all__ = [
    "PRESENT",
    "UNCHANGED",
    "UNCHANGED_COLUMNS",
    "Part",
    "RecordShape",
    "Unchanged",
    "decode_rows",
    "decode_value",
    "envelope_shape",
    "key_columns",
    "shape_of",
]

PRESENT = "__present"
UNCHANGED_COLUMNS = "__unchanged"
Part = Literal["self", "before", "after"]

_MARK = PLACEHOLDER.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordShape:
    """The columns of a record, in its own order. All are nullable: a row may be absent."""

    schema: pa.Schema
    types: tuple[ColumnType, ...]


@lru_cache(maxsize=4096)
def shape_of(schema_json: str) -> RecordShape:
    """Return the Arrow shape of a top-level Avro record.

    Raises `SchemaViolation` when the text is no Avro record schema.
    """
    return _shape(_record(schema_json), {})


@lru_cache(maxsize=4096)
def envelope_shape(schema_json: str) -> RecordShape:
    """Return the Arrow shape of the row inside a Debezium change envelope.

    Raises `SchemaViolation` when the schema has no `before` and `after` record.
    """
    envelope = _record(schema_json)
    for field in envelope["fields"]:
        if field["name"] == "before" and isinstance(field["type"], list):
            rows = [branch for branch in field["type"] if isinstance(branch, dict)]
            if rows:
                return _shape(rows[0], {})
    raise SchemaViolation(f"{envelope.get('name')} is not a change envelope: it has no row image")


def key_columns(key_schema_json: str) -> tuple[str, ...]:
    """Return the names of the key columns, in the key's order."""
    return tuple(str(field["name"]) for field in _record(key_schema_json)["fields"])


def decode_value(framed: bytes, schema_json: str) -> Any:
    """Decode one framed record to plain Python values; logical types stay as they travel.

    Raises `SchemaViolation` when the bytes do not fit the schema.
    """
    return _read(framed, _parser(schema_json))


def decode_rows(
    framed: Sequence[bytes | None] | pa.Array, schema_json: str, part: Part
) -> pa.Table:
    """Decode framed records of one schema to a table, one row each, in order.

    `part` picks the record itself, or the before- or after-image of a change envelope. A record or
    image that is absent is a row of nulls. Adds `__present` (bool) and, only when a row has a
    column that its UPDATE did not send, `__unchanged` (list of those columns' names, null where
    there are none); such a column is null in that row and keeps its earlier value. An image with a
    value that its column cannot hold has its text in `_exact` (`schemas.pg_exact`).
    Raises `SchemaViolation` when bytes do not fit the schema.
    """
    shape = shape_of(schema_json) if part == "self" else envelope_shape(schema_json)
    binary = framed if isinstance(framed, pa.Array) else pa.array(framed, pa.binary())
    quick = columns_of(binary, schema_json, part, shape.schema, shape.types)
    if quick is not None:
        return pa.Table.from_arrays(quick[0], schema=shape.schema).append_column(PRESENT, quick[1])
    framed = binary.to_pylist()
    if part == "self":
        parser = _parser(schema_json)
        rows = [None if item is None else _read(item, parser) for item in framed]
    else:
        parser = _parser(schema_json, part)
        rows = [None if item is None else _read(item, parser)[part] for item in framed]
    unchanged = _take_unchanged(framed, rows)
    columns, exact = _columns(shape, rows)
    table = pa.Table.from_arrays(columns, schema=shape.schema)
    if part != "self":
        table = with_exact(table, _kept_exact(shape, unchanged, exact, len(rows)))
    present = pa.array([row is not None for row in rows], pa.bool_())
    table = table.append_column(PRESENT, present)
    if unchanged is None:
        return table
    return table.append_column(UNCHANGED_COLUMNS, pa.array(unchanged, pa.list_(pa.string())))


def _columns(
    shape: RecordShape, rows: list[dict[str, Any] | None]
) -> tuple[list[pa.Array], dict[int, dict[str, str]]]:
    """Return the columns, and the texts of values that they cannot hold, by row and column."""
    columns: list[pa.Array] = []
    exact: dict[int, dict[str, str]] = {}
    for name, kind in zip(shape.schema.names, shape.types, strict=True):
        values = [None if row is None else row[name] for row in rows]
        columns.append(kind.array(values))
        for place, text in kind.lost_texts(values).items():
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
    framed: Sequence[bytes | None], rows: list[dict[str, Any] | None]
) -> list[list[str] | None] | None:
    """Null the columns that carry the mark, and name them per row; None when there are none."""
    found: list[list[str] | None] | None = None
    for index, (item, row) in enumerate(zip(framed, rows, strict=True)):
        # A scan of the bytes spares nearly all rows the look at each column; a list of numbers
        # spells the mark otherwise, but then a text column beside it is rare: look at lists too.
        if item is None or row is None or not (_MARK in item or _has_list(row)):
            continue
        names = [name for name, value in row.items() if is_unchanged(value)]
        if names:
            found = found if found is not None else [None] * len(rows)
            found[index] = names
            for name in names:
                row[name] = None
    return found


def _has_list(row: dict[str, Any]) -> bool:
    return any(type(value) is list for value in row.values())


def _shape(record: dict[str, Any], named: dict[str, Any]) -> RecordShape:
    names = [str(field["name"]) for field in record["fields"]]
    types = tuple(column_type(field["type"], named) for field in record["fields"])
    fields = [pa.field(name, kind.arrow) for name, kind in zip(names, types, strict=True)]
    return RecordShape(schema=pa.schema(fields), types=types)


def _record(schema_json: str) -> dict[str, Any]:
    try:
        schema = json.loads(schema_json)
    except ValueError as error:
        raise SchemaViolation(f"not an Avro schema: {error}") from error
    match schema:
        case {"type": "record", "fields": list()}:
            return dict(schema)
        case _:
            raise SchemaViolation(f"not an Avro record schema: {schema_json[:80]}")


def _read(framed: bytes, parser: Any) -> Any:
    try:
        return fastavro.schemaless_reader(
            io.BytesIO(memoryview(framed)[HEADER_BYTES:]), parser, None
        )
    except (EOFError, ValueError, IndexError, StopIteration, UnicodeDecodeError) as error:
        raise SchemaViolation(f"{len(framed)} bytes do not fit their schema: {error!r}") from error


@lru_cache(maxsize=4096)
def _parser(schema_json: str, last_field: str | None = None) -> Any:
    """Prepare reading a schema, up to `last_field` only: Avro has no marks between fields.

    The row images come first in an envelope; what follows them costs more than a row.
    """
    try:
        schema = _bare(json.loads(schema_json))
        if last_field is not None:
            names = [field["name"] for field in schema["fields"]]
            schema["fields"] = schema["fields"][: names.index(last_field) + 1]
        return fastavro.parse_schema(schema)
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise SchemaViolation(f"not an Avro schema: {error}") from error


def _bare(avro: Any) -> Any:
    """Drop logical types: values are converted by column, and some of Debezium's are invalid."""
    match avro:
        case dict():
            kept = {key: _bare(value) for key, value in avro.items() if key != "logicalType"}
            if full_name(avro) is None:
                kept.pop("namespace", None)
            return kept
        case list():
            return [_bare(item) for item in avro]
        case _:
            return avro
