"""Whether data written with one Avro schema can be read with another.

The rules are those of "Schema Resolution" in the Avro 1.11 specification, applied to schemas
instead of to data: where the specification says "an error is signalled", there is a complaint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, cast

import orjson

from kernel.errors import SchemaViolation
from schemas.json_values import shown

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(rf"{_NAME.pattern}(\.{_NAME.pattern})*")
_PROMOTES: Mapping[str, frozenset[str]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
_LOGICAL_ARGUMENTS = ("logicalType", "precision", "scale")


def parse(schema_json: str) -> Any:
    """Parse Avro JSON text with every name resolved in place of its first use.

    Raises `SchemaViolation` when the text is not an Avro schema.
    """
    # Commands that only name a level of compatibility do not pay for it.
    import fastavro.schema

    try:
        schema = orjson.loads(schema_json)
        _check_names(schema)
        return fastavro.schema.parse_schema(schema, _write_hint=False)
    except orjson.JSONDecodeError as error:
        raise _no_schema(f"not JSON: {error}") from error
    except fastavro.schema.UnknownType as error:
        raise _no_schema(f"there is no type {shown(error.name)}") from error
    except fastavro.schema.SchemaParseException as error:
        raise _no_schema(f"{error}") from error
    except KeyError as error:
        raise _no_schema(f"a part of it lacks {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise _no_schema(f"{error}") from error


def is_same(one: str, other: str) -> bool:
    """Say whether two texts are one schema but for documentation, blanks, the order of attributes
    and the spelling of types: which text a registry keeps under an id makes no difference then.

    Raises `SchemaViolation` when one of them is not an Avro schema.
    """
    return bool(_undocumented(parse(one)) == _undocumented(parse(other)))


def _undocumented(schema: Any) -> Any:
    match schema:
        case list():
            return [_undocumented(branch) for branch in schema]
        case dict():
            inner = ("type", "items", "values", "fields")
            kept = {
                name: _undocumented(value) if name in inner else value
                for name, value in schema.items()
                if name != "doc"
            }
            return kept["type"] if kept.keys() == {"type"} else kept
        case _:
            return schema


def _no_schema(why: str) -> SchemaViolation:
    example = '{"type": "record", "name": "Placed", "fields": [{"name": "item", "type": "string"}]}'
    return SchemaViolation(f"not an Avro schema: {why}", remedy=f"Write a record, as {example}")


def complaints(*, reader: str, writer: str) -> list[str]:
    """Return what stops data written with `writer` from being read with `reader`.

    Each complaint begins with the path of the field. Raises `SchemaViolation` when one of the
    texts is not an Avro schema.
    """
    comparison = _Comparison(parse(reader), parse(writer))
    return comparison.complaints


class Level(StrEnum):
    """What a new version of a schema must get on with, in the words of schema registries.

    Backward: it reads what was written with earlier versions. Forward: they read what is written
    with it. Full: both. Without `_TRANSITIVE` only the version before counts.
    """

    NONE = "NONE"
    BACKWARD = "BACKWARD"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD = "FORWARD"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL = "FULL"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"


def complaints_at(level: Level, earlier: Sequence[tuple[int, str]], new: str) -> list[str]:
    """Return what stops `new` from following `earlier` ones: (version, schema), oldest first.

    Raises `SchemaViolation` when one of the texts is not an Avro schema.
    """
    parse(new)
    kind, _, transitive = level.value.partition("_")
    found = []
    for version, text in earlier if transitive else earlier[-1:]:
        if kind in ("BACKWARD", "FULL"):
            found += [f"version {version}: {each}" for each in complaints(reader=new, writer=text)]
        if kind in ("FORWARD", "FULL"):
            found += [
                f"read with version {version}: {each}"
                for each in complaints(reader=text, writer=new)
            ]
    return found


class _Comparison:
    """One walk over both schemas; recursive types are visited once per pair of names."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self.complaints: list[str] = []
        self._names: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        _collect(reader, self._names[0])
        _collect(writer, self._names[1])
        self._seen: set[tuple[str, str]] = set()
        self._compare(reader, writer, "$")

    def _compare(self, reader: Any, writer: Any, path: str) -> None:
        reader, writer = self._resolve(reader, 0), self._resolve(writer, 1)
        if isinstance(writer, list):
            for branch in writer:
                self._compare(reader, branch, path)
            return
        if isinstance(reader, list):
            if not any(self._fits(branch, writer) for branch in reader):
                branches = ", ".join(_kind(self._resolve(branch, 0)) for branch in reader)
                self._say(path, f"{_kind(writer)} is in no branch of the union [{branches}]")
            return
        kind, written = _kind(reader), _kind(writer)
        if kind != written:
            if written not in _PROMOTES.get(kind, ()):
                self._say(path, f"{written} cannot be read as {kind}")
            else:
                self._compare_logical(reader, writer, path)
            return
        self._compare_alike(kind, reader, writer, path)

    def _compare_alike(self, kind: str, reader: Any, writer: Any, path: str) -> None:
        if isinstance(reader, dict) and "name" in reader:
            names = {_unqualified(name) for name in (reader["name"], *reader.get("aliases", ()))}
            if _unqualified(writer["name"]) not in names:
                self._say(path, f"{kind} {writer['name']} became {reader['name']} (no alias)")
                return
        match kind:
            case "record":
                self._compare_records(reader, writer, path)
            case "array":
                self._compare(reader["items"], writer["items"], f"{path}[]")
            case "map":
                self._compare(reader["values"], writer["values"], f"{path}{{}}")
            case "enum":
                missing = [s for s in writer["symbols"] if s not in reader["symbols"]]
                if missing and "default" not in reader:
                    self._say(path, f"the enum lost {', '.join(missing)} and has no default")
            case "fixed" if reader["size"] != writer["size"]:
                self._say(path, f"fixed size {writer['size']} became {reader['size']}")
            case _:
                self._compare_logical(reader, writer, path)

    def _compare_records(self, reader: Any, writer: Any, path: str) -> None:
        pair = (str(reader.get("name")), str(writer.get("name")))
        if pair in self._seen:
            return
        self._seen.add(pair)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            match = next((written[name] for name in names if name in written), None)
            if match is not None:
                self._compare(field["type"], match["type"], f"{path}.{field['name']}")
            elif "default" not in field:
                self._say(f"{path}.{field['name']}", "new field without a default")

    def _compare_logical(self, reader: Any, writer: Any, path: str) -> None:
        """Another meaning of the same bytes (millis read as micros) would be silently wrong."""
        ours, theirs = _logical(reader), _logical(writer)
        if ours != theirs:
            self._say(path, f"logical type {theirs or 'none'} became {ours or 'none'}")

    def _fits(self, branch: Any, writer: Any) -> bool:
        probe = object.__new__(_Comparison)
        probe.complaints, probe._names, probe._seen = [], self._names, set(self._seen)
        probe._compare(branch, writer, "$")
        return not probe.complaints

    def _resolve(self, schema: Any, side: int) -> Any:
        return self._names[side].get(schema, schema) if isinstance(schema, str) else schema

    def _say(self, path: str, complaint: str) -> None:
        text = f"{path}: {complaint}"
        if text not in self.complaints:
            self.complaints.append(text)


def _check_names(schema: Any) -> None:
    """Refuse names, and things in place of types, that other libraries refuse.

    fastavro lets them pass, or stumbles over them.
    """
    match schema:
        case {"type": "record" | "error" | "enum" | "fixed", "name": name} if not (
            _is_full_name(name) and _is_full_name(schema.get("namespace") or name)
        ):
            wrong = schema["namespace"] if _is_full_name(name) else name
            raise ValueError(f"{shown(wrong)} is not the name of a type")
        case list():
            for branch in schema:
                _check_names(branch)
        case {"fields": [*fields]}:
            _check_fields(fields)
        case {"type": "record" | "error"}:
            raise ValueError("a record needs a list of fields")
        case {"items": inner} | {"values": inner} | {"type": inner}:
            _check_names(inner)
        case str() | dict():
            pass
        case _:
            raise ValueError(f"{shown(schema)} is not a type")


def _is_full_name(name: object) -> bool:
    return isinstance(name, str) and _FULL_NAME.fullmatch(name) is not None


def _check_fields(fields: list[Any]) -> None:
    names: set[str] = set()
    for field in fields:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"{shown(field if name is None else name)} is not a field name")
        if name in names:
            raise ValueError(f"the field {name} is there twice")
        names.add(name)
        if "type" in field:
            _check_names(field["type"])


def _collect(schema: Any, names: dict[str, Any]) -> None:
    match schema:
        case list():
            for branch in schema:
                _collect(branch, names)
        case {"type": "record" | "error", "fields": fields}:
            names.setdefault(schema["name"], schema)
            for field in fields:
                _collect(field["type"], names)
        case {"type": "enum" | "fixed", "name": name}:
            names.setdefault(name, schema)
        case {"items": inner} | {"values": inner}:
            _collect(inner, names)


def _unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else cast(str, schema)


def _logical(schema: Any) -> tuple[object, ...] | None:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    return tuple(schema.get(argument) for argument in _LOGICAL_ARGUMENTS)
