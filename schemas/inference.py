"""Schemas from data: what JSON objects look like, widened by each one that does not fit yet.

    true/false -> boolean · whole number -> long · other number -> double · text -> string
    object -> record · list -> array · null -> nothing is known yet: the field is left out

A schema only ever widens, in ways under which everything written before stays readable: a field
becomes nullable when it is missing or null, a new field is nullable, long becomes double. Texts
stay texts, whatever they look like: a guess at a date would break on the first one that is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

from kernel.errors import SchemaViolation
from schemas.json_codec import INFERRED_KEY, INFERRED_VALUE
from schemas.json_values import SCALARS, beginning, describe, is_whole, shown

MAX_DEPTH = 16
MAX_FIELDS = 500
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_Schema = Any
"""An Avro schema as JSON; None while nothing but nulls was seen."""


def widened(subject: str, schema_json: str | None, data: Mapping[str, object]) -> str:
    """Return a schema of `subject` (`category.Type`) that `data` and everything before it fits.

    `schema_json` is an inferred schema, or None for the first object of its type.
    Raises `SchemaViolation` where no compatible schema exists, as when a number becomes text.
    """
    namespace, _, name = subject.rpartition(".")
    before = None if schema_json is None else orjson.loads(schema_json)
    schema = _widen_record(before, dict(data), name=name, path="$", depth=0)
    head = {"type": "record", "name": name, "namespace": namespace, INFERRED_KEY: INFERRED_VALUE}
    return orjson.dumps(head | {"fields": schema["fields"]}).decode()


def _widen(schema: _Schema, value: object, *, name: str, path: str, depth: int) -> _Schema:
    """Return the schema that both what `schema` stands for and `value` fit."""
    if value is None:
        return None if schema is None else _nullable(schema)
    inner, nullable = _split(schema)
    if depth > MAX_DEPTH:
        raise _violation(path, f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case dict():
            wide = _widen_record(inner, value, name=name, path=path, depth=depth)
        case list():
            wide = _widen_array(inner, value, name=name, path=path, depth=depth)
        case _:
            wide = _widen_scalar(inner, value, path)
    return _nullable(wide) if nullable else wide


def _widen_scalar(inner: _Schema, value: object, path: str) -> _Schema:
    match value:
        case bool():
            kind = "boolean"
        case int() | Decimal() if not isinstance(value, Decimal) or is_whole(value):
            kind = "double" if inner == "double" else "long"
        case float() | Decimal():
            kind = "double"
        case _:
            kind = "string"
    if inner in (None, kind) or (inner == "long" and kind == "double"):
        try:
            SCALARS[kind](value)
        except SchemaViolation as error:
            raise _violation(path, str(error.fields["complaint"])) from None
        return kind
    raise _clash(path, inner, value)


def _widen_array(inner: _Schema, value: list[object], *, name: str, path: str, depth: int) -> Any:
    if inner is not None and not (isinstance(inner, dict) and inner["type"] == "array"):
        raise _clash(path, inner, value)
    # The items of a list that was always empty are of type null, until the first one comes.
    items = None if inner is None or inner["items"] == "null" else inner["items"]
    had_null = any(item is None for item in value)
    for item in value:
        items = _widen(items, item, name=name, path=f"{path}[]", depth=depth + 1)
    if items is None:
        return {"type": "array", "items": "null"}
    seen_before = inner is not None and inner["items"] == "null"
    return {"type": "array", "items": _nullable(items) if had_null or seen_before else items}


def _widen_record(
    inner: _Schema, value: dict[str, object], *, name: str, path: str, depth: int
) -> Any:
    if inner is not None and not (isinstance(inner, dict) and inner["type"] == "record"):
        raise _clash(path, inner, value)
    fields: list[dict[str, Any]] = []
    known = [] if inner is None else inner["fields"]
    for field in known:
        wide = _widen(
            field["type"],
            value.get(field["name"]),
            name=f"{name}__{field['name']}",
            path=f"{path}.{field['name']}",
            depth=depth + 1,
        )
        fields.append(_field(field["name"], wide))
    names = {field["name"] for field in known}
    folded = {field_name.lower() for field_name in names}
    for key, item in value.items():
        if key in names or item is None:
            continue
        _check_name(key, folded, path)
        folded.add(key.lower())
        wide = _widen(None, item, name=f"{name}__{key}", path=f"{path}.{key}", depth=depth + 1)
        fields.append(_field(key, wide if inner is None else _nullable(wide)))
    if len(fields) > MAX_FIELDS:
        raise _violation(
            path, f"more than {MAX_FIELDS} fields: keys that are data belong in a list or a map"
        )
    return {"type": "record", "name": inner["name"] if inner else name, "fields": fields}


def _field(name: str, schema: _Schema) -> dict[str, Any]:
    field: dict[str, Any] = {"name": name, "type": schema}
    return field | {"default": None} if isinstance(schema, list) else field


def _check_name(key: str, folded: set[str], path: str) -> None:
    if not _FIELD_NAME.fullmatch(key):
        raise _violation(
            f"{path}.{beginning(key)}",
            f"{shown(key)} is no field name, which becomes a column: {_FIELD_NAME.pattern}",
        )
    if key.lower() in folded:
        raise _violation(f"{path}.{key}", "differs from another field in upper and lower case only")


def _split(schema: _Schema) -> tuple[_Schema, bool]:
    if isinstance(schema, list):
        return next(branch for branch in schema if branch != "null"), True
    return schema, False


def _nullable(schema: _Schema) -> _Schema:
    return schema if isinstance(schema, list) else ["null", schema]


def _clash(path: str, inner: _Schema, value: object) -> SchemaViolation:
    was = inner["type"] if isinstance(inner, dict) else inner
    return _violation(path, f"was {was} in earlier events, found {describe(value)}")


def _violation(path: str, complaint: str) -> SchemaViolation:
    return SchemaViolation(f"{path}: {complaint}", path=path, complaint=complaint)
