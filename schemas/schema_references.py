"""Schemas that name types of other subjects, as one text that has them all.

A registry keeps such a schema without what it refers to. Bytes are read, and the log is kept
readable, by a text that needs nobody: a type is defined where it is named first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from schemas.field_names import full_names

_NAMED = ("record", "error", "enum", "fixed")


def with_types(schema_json: str, others: Iterable[str]) -> str:
    """Return a schema with the types that it names and `others` define.

    Raises `ValueError` for a text that is no JSON.
    """
    known: dict[str, Any] = {}
    for other in others:
        for name, definition in _definitions(full_names(json.loads(other))):
            known.setdefault(name, definition)
    return json.dumps(_put_in(full_names(json.loads(schema_json)), known, set()))


def _definitions(avro: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named types that a schema defines, at any depth."""
    match avro:
        case list():
            for branch in avro:
                yield from _definitions(branch)
        case dict():
            if avro.get("type") in _NAMED and "name" in avro:
                yield avro["name"], avro
            for inner in ("type", "items", "values"):
                yield from _definitions(avro.get(inner))
            for field in avro.get("fields") or ():
                yield from _definitions(field)


def _put_in(avro: Any, known: dict[str, Any], defined: set[str]) -> Any:
    """Define each known type where it is met first; after that its name is enough."""
    match avro:
        case str() if avro in known and avro not in defined:
            return _put_in(known[avro], known, defined)
        case list():
            return [_put_in(branch, known, defined) for branch in avro]
        case {"type": kind, "name": str(name)} if kind in _NAMED:
            if name in defined:
                return name
            defined.add(name)
            # A name without dots would get the space of the record around it.
            found = {**avro, **({} if "." in name else {"namespace": ""})}
            if isinstance(avro.get("fields"), list):
                found["fields"] = [
                    {**field, "type": _put_in(field["type"], known, defined)}
                    for field in avro["fields"]
                ]
            return found
        case dict():
            inner = ("type", "items", "values")
            return {k: _put_in(v, known, defined) if k in inner else v for k, v in avro.items()}
        case _:
            return avro
