"""Rows of a table as Avro: the schema that Arrow's columns have there, and the bytes of a row.

Every field is nullable with null as its default, so that a column more or less is read by both
sides; the fields of a key are not. Times are microseconds of UTC, with `timestamp-micros` where the
column has a time zone and `local-timestamp-micros` where it has none. Unsigned and small integers
become the next wider type.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from typing import Any

import fastavro
import pyarrow as pa

from kernel.errors import Incompatible
from schemas.arrow_kinds import is_bytes, is_text

NAMESPACE = "penstock"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

Encode = Callable[[Mapping[str, object]], bytes]


def plain(rows: pa.Table) -> list[dict[str, object]]:
    """Return rows as Python's values in the form that Avro's own types have.

    Days and times are whole numbers, so that no year is too far away and no time zone is guessed.
    Raises `Incompatible` for values without such a form, as a map with one key twice.
    """
    fields = [pa.field(each.name, _plain_type(each.type)) for each in rows.schema]
    try:
        cast = rows.cast(pa.schema(fields))
        found: list[dict[str, object]] = cast.to_pylist(maps_as_pydicts="strict")
    except (pa.ArrowException, KeyError) as error:
        raise Incompatible(
            f"rows cannot be written as Avro: {error.args[0]}",
            remedy="Select such a column in another type: CAST(x AS STRING) AS x.",
        ) from error
    return found


def avro_schema(columns: Sequence[pa.Field], name: str, *, key: bool = False) -> str:
    """Return the schema of a record with these columns. Raises `Incompatible` for a type or a name
    without a form in Avro.
    """
    fields = []
    taken = {name}
    for column in columns:
        kind = _avro_type(column.type, f"{name}_{column.name}", column.name, taken)
        field: dict[str, object] = {"name": _named(column.name, column.name), "type": kind}
        if not key:
            field |= {"type": _nullable(kind), "default": None}
        fields.append(field)
    record = {"type": "record", "name": name, "namespace": NAMESPACE, "fields": fields}
    return json.dumps(record, separators=(",", ":"))


def encoder(schema: str) -> Encode:
    """Return what makes bytes of a row, as `plain` gives them, without any framing."""
    parsed = fastavro.parse_schema(json.loads(schema))

    def encoded(row: Mapping[str, object]) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, row)
        return body.getvalue()

    return encoded


def _nullable(kind: object) -> list[object]:
    return ["null", kind]


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are handed to the encoder."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in kind])
    return kind


def _avro_type(kind: pa.DataType, record: str, column: str, taken: set[str]) -> Any:
    if (simple := _simple(kind)) is not None:
        return simple
    if pa.types.is_decimal(kind):
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        local = "local-" if kind.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-micros"}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = _avro_type(kind.value_type, record, column, taken)
        return {"type": "array", "items": _nullable(items)}
    if pa.types.is_map(kind) and is_text(kind.key_type):
        values = _avro_type(kind.item_type, record, column, taken)
        return {"type": "map", "values": _nullable(values)}
    if pa.types.is_struct(kind):
        name = _free(record, taken)
        fields = [
            {
                "name": _named(each.name, column),
                "type": _nullable(_avro_type(each.type, f"{record}_{each.name}", column, taken)),
                "default": None,
            }
            for each in kind
        ]
        return {"type": "record", "name": name, "fields": fields}
    raise Incompatible(
        f"column {column} is {kind}, for which Avro has no form",
        remedy=f"Select it in another type: CAST({column} AS STRING) AS {column}.",
    )


def _free(record: str, taken: set[str]) -> str:
    """Return a name for one more record: `a.b` and `a_b` would have the same one."""
    numbered = (f"{record}_{number}" for number in count(2))
    name = next(each for each in chain([record], numbered) if each not in taken)
    taken.add(name)
    return name


def _named(name: str, column: str) -> str:
    if _NAME.fullmatch(name):
        return name
    raise Incompatible(
        f"{name} of column {column} is no name in Avro, which has a to z, A to Z, digits and _",
        remedy="Select it under another name, or the column as a string.",
    )


def _simple(kind: pa.DataType) -> object | None:
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_integer(kind):
        return "int" if kind.bit_width < 32 or kind == pa.int32() else "long"
    if pa.types.is_floating(kind):
        return "double" if kind == pa.float64() else "float"
    if is_text(kind):
        return "string"
    if is_bytes(kind):
        return "bytes"
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    return None
