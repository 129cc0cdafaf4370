"""Types with parts, from their names: arrays of elements, maps of entries, structs of fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from projections.sql.words.type_names import normal

_OPENS, _CLOSES = "<(", ">)"


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """An array, by the type of its elements."""

    element: str


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map, by the types of its keys and values."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class StructOf:
    """A struct, by the names and types of its fields."""

    fields: tuple[tuple[str, str], ...]

    def field(self, name: str) -> tuple[str, str] | None:
        """Return a field by its name in any case; None for none, or for several."""
        found = [each for each in self.fields if each[0].lower() == name.lower()]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementColumn:
    """A column that is made of each element: all of it, or the field that is found by `path`."""

    name: str
    type: str
    path: tuple[str, ...] = ()


Nested = ArrayOf | MapOf | StructOf


def nested_of(kind: str) -> Nested | None:
    """Take the name of a type apart; None for one without parts, and for names that are quoted."""
    word, opened, rest = kind.strip().partition("<")
    if not opened or not rest.endswith(">") or "`" in rest:
        return None
    parts = [*_parts(rest[:-1])]
    match word.strip().upper(), parts:
        case "ARRAY", [element]:
            return ArrayOf(normal(element))
        case "MAP", [key, value]:
            return MapOf(normal(key), normal(value))
        case "STRUCT", _:
            fields = [each.partition(":") for each in parts]
            if all(name.strip() and kind.strip() for name, _, kind in fields):
                return StructOf(tuple((name.strip(), normal(k.strip())) for name, _, k in fields))
    return None


def _parts(text: str) -> Iterator[str]:
    """Yield what stands between the commas of a text, but for those in brackets."""
    depth = begun = 0
    for place, sign in enumerate(text):
        depth += (sign in _OPENS) - (sign in _CLOSES)
        if sign == "," and not depth:
            yield text[begun:place].strip()
            begun = place + 1
    yield text[begun:].strip()


def fields_in(kind: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the fields of a struct with their types, and those of structs in it, by their paths."""
    nested = nested_of(kind)
    for name, each in nested.fields if isinstance(nested, StructOf) else ():
        yield (name,), each
        yield from (((name, *path), inner) for path, inner in fields_in(each))


def leaves(kind: str) -> tuple[str, ...] | None:
    """Return the types without parts that a type consists of; None where that is not known."""
    nested = nested_of(kind)
    match nested:
        case None:
            return None if "<" in kind else (kind,)
        case ArrayOf():
            inner = [nested.element]
        case MapOf():
            inner = [nested.key, nested.value]
        case StructOf():
            names = {name.lower() for name, _ in nested.fields}
            if len(names) < len(nested.fields):
                return None
            inner = [kind for _, kind in nested.fields]
    found = [leaves(each) for each in inner]
    return None if None in found else tuple(leaf for each in found for leaf in each or ())
