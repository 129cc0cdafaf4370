"""The names of a schema's fields, where Avro could not write them as they are, and of its types.

A column `order-id` travels as `order_id`, or as `order_id_2` beside another of that name, and its
real name beside it, in the parameters of its type. Whoever reads a schema for its fields reads it
here, so that rows, keys and shapes all carry the names that the source's columns have. Types have
their full names here: `a.Status` and `b.Status` are two, and within `a` the first is just `Status`.
"""

from __future__ import annotations

import json
from typing import Any

NAME = "penstock.name"
"""Parameter that holds the real name of a field."""


_NAMED = ("record", "error", "enum", "fixed")
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")


def parsed(schema_json: str) -> Any:
    """Parse a schema; its fields get their real names, its types full ones. Raises `ValueError`."""
    hook = _renamed if NAME in schema_json else None
    return full_names(json.loads(schema_json, object_hook=hook))


def full_names(avro: Any) -> Any:
    """Return a schema whose named types have their full names, wherever they stand."""
    return _qualified(avro, "")


def _qualified(avro: Any, space: str) -> Any:
    """Write the full name of each named type, where it is defined and where it is referred to."""
    match avro:
        case str():
            bare = space and "." not in avro and avro not in _PRIMITIVES
            return f"{space}.{avro}" if bare else avro
        case list():
            return [_qualified(branch, space) for branch in avro]
        case {"type": kind, "name": str(name)} if kind in _NAMED:
            own = space if (given := avro.get("namespace")) is None else str(given)
            full = name if "." in name or not own else f"{own}.{name}"
            found = avro | {"name": full}
            if isinstance(avro.get("fields"), list):
                inner = full.rpartition(".")[0]
                found["fields"] = [_field(each, inner) for each in avro["fields"]]
            return found
        case {"type": "array", "items": items}:
            return avro | {"items": _qualified(items, space)}
        case {"type": "map", "values": values}:
            return avro | {"values": _qualified(values, space)}
        case {"type": kind} if isinstance(kind, (dict, list)):
            return avro | {"type": _qualified(kind, space)}
        case _:
            return avro


def _field(field: Any, space: str) -> Any:
    if not isinstance(field, dict) or "type" not in field:
        return field
    return field | {"type": _qualified(field["type"], space)}


def _renamed(found: dict[str, Any]) -> dict[str, Any]:
    kind = found.get("type")
    for branch in kind if isinstance(kind, list) else [kind]:
        if isinstance(branch, dict) and "name" in found:
            real = (branch.get("connect.parameters") or {}).get(NAME)
            if real is not None:
                return found | {"name": real}
    return found
