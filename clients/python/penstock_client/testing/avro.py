"""The plain part of Avro: enough to say whether data fits a schema, and schemas each other.

Named types are followed inside one schema; logical types pass in the forms that the service takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_client.errors import SchemaViolation

_PROMOTED: Mapping[str, frozenset[str]] = {
    "int": frozenset({"long", "float", "double"}),
    "long": frozenset({"float", "double"}),
    "float": frozenset({"double"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_WHOLE = {"int": 1 << 31, "long": 1 << 63}


class AvroSchema:
    """One parsed schema; its root is a record."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._named: dict[str, Any] = {}
        self.root = schema
        self._name(schema)
        if schema.get("type") != "record":
            raise ValueError("the schema of an event type is a record")

    def check(self, data: Mapping[str, Any], event_type: str, index: int) -> None:
        """Raise `SchemaViolation` at the first place that does not fit."""
        found = self._complaint(self.root, data, "$")
        if found is not None:
            path, complaint = found
            raise SchemaViolation(
                f"{event_type} at {path}: {complaint}",
                remedy="Correct the data, or register a compatible schema.",
                path=path,
                complaint=complaint,
                event_type=event_type,
                index=index,
            )

    def cannot_read(self, older: AvroSchema) -> list[str]:
        """Return what keeps this schema from reading what the older one wrote."""
        return list(self._unreadable(self.root, older, older.root, "$"))

    def _name(self, schema: Any) -> None:
        match schema:
            case {"name": str(name), "type": "record", "fields": [*fields]}:
                self._named[name] = schema
                for field in fields:
                    self._name(field["type"])
            case {"name": str(name), "type": "enum" | "fixed"}:
                self._named[name] = schema
            case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
                self._name(inner)
            case [*branches]:
                for branch in branches:
                    self._name(branch)
            case _:
                pass

    def _resolved(self, schema: Any) -> Any:
        return self._named.get(schema, schema) if isinstance(schema, str) else schema

    def _complaint(self, schema: Any, value: Any, path: str) -> tuple[str, str] | None:
        match self._resolved(schema):
            case [*branches]:
                if any(self._complaint(each, value, path) is None for each in branches):
                    return None
                return path, f"{value!r} fits no branch of the union"
            case {"type": "record", "fields": [*fields]}:
                return self._record_complaint(fields, value, path)
            case {"type": "array", "items": inner}:
                if not isinstance(value, list):
                    return path, "expected a list"
                found = (self._complaint(inner, v, f"{path}[{i}]") for i, v in enumerate(value))
                return next(filter(None, found), None)
            case {"type": "map", "values": inner}:
                if not isinstance(value, dict):
                    return path, "expected an object"
                found = (self._complaint(inner, v, f"{path}.{k}") for k, v in value.items())
                return next(filter(None, found), None)
            case {"type": "enum", "symbols": [*symbols]}:
                return None if value in symbols else (path, f"{value!r} is none of {symbols}")
            case {"logicalType": _}:
                fits = isinstance(value, str | int | float) and not isinstance(value, bool)
                return None if fits else (path, f"{value!r} is of another type")
            case {"type": str() | list() | dict() as inner}:
                return self._complaint(inner, value, path)
            case str(name):
                return None if _fits(name, value) else (path, f"{value!r} is no {name}")
            case _:
                return path, "a schema that is not understood here"

    def _record_complaint(self, fields: list[Any], value: Any, path: str) -> tuple[str, str] | None:
        if not isinstance(value, dict):
            return path, "expected an object"
        names = {field["name"] for field in fields}
        for name in value:
            if name not in names and value[name] is not None:
                return f"{path}.{name}", "the schema has no such field"
        for field in fields:
            place = f"{path}.{field['name']}"
            if field["name"] in value:
                found = self._complaint(field["type"], value[field["name"]], place)
                if found is not None:
                    return found
            elif "default" not in field and self._complaint(field["type"], None, place):
                return place, "is missing"
        return None

    def _unreadable(self, new: Any, older: AvroSchema, old: Any, path: str) -> list[str]:
        new, old = self._resolved(new), older._resolved(old)
        if isinstance(old, list):
            return [c for each in old for c in self._unreadable(new, older, each, path)]
        if isinstance(new, list):
            if any(not self._unreadable(each, older, old, path) for each in new):
                return []
            return [f"{path}: no branch reads {_kind(old)}"]
        if _kind(new) == _kind(old) == "record":
            return self._unreadable_record(new, older, old, path)
        if _kind(new) == _kind(old) or _kind(new) in _PROMOTED.get(_kind(old), frozenset()):
            return []
        return [f"{path}: {_kind(new)} cannot read {_kind(old)}"]

    def _unreadable_record(self, new: Any, older: AvroSchema, old: Any, path: str) -> list[str]:
        before = {field["name"]: field for field in old["fields"]}
        complaints = []
        for field in new["fields"]:
            place = f"{path}.{field['name']}"
            if field["name"] in before:
                complaints += self._unreadable(
                    field["type"], older, before[field["name"]]["type"], place
                )
            elif "default" not in field:
                complaints.append(f"{place}: a new field needs a default")
        return complaints


def _kind(schema: Any) -> str:
    while isinstance(schema, dict):
        schema = schema["type"]
    return str(schema)


def _fits(name: str, value: Any) -> bool:
    match name:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = _WHOLE[name]
            return type(value) is int and -limit <= value < limit
        case "float" | "double":
            return isinstance(value, float) or (type(value) is int and abs(value) <= 1 << 53)
        case "string" | "bytes":
            return isinstance(value, str)
        case _:
            return False
