"""Reads Avro bodies by fastavro, and looks first at those that could end the process.

fastavro believes what a body says of itself. An array of nulls takes no bytes, so that a count of
2**31 in a body of five fills the memory; a record within itself may lie a million levels deep in
as many bytes, and fastavro's recursion ends the process with its stack; and a branch or a symbol
numbered -1 is the last one to it. A body whose schema lets any of that happen is walked through
before, by its marks alone: in time and memory that its own length bounds.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import fastavro

from kernel.errors import SchemaViolation

MOST_DEEP = 256
"""So many records, arrays and maps may lie within each other in a body: more than JSON may."""
MOST_EMPTY = 100
"""So many items without a byte a body may have, or as many as it has bytes."""
MOST_UNWRITTEN = 10_000
"""So many values without a byte a record may have: each that has two of another doubles them."""

_FIXED_BYTES: Mapping[str, int] = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LONGEST_VARINT = 10
_FARTHEST = 2**63


class BodyReader:
    """Reads bodies of one schema, as `fastavro.parse_schema` gives it.

    Raises `SchemaViolation` for a schema whose bodies have values without end in no bytes.
    With `strict` every body that has branches, symbols or counts is looked at: numbers that no
    writer writes are refused. Else only those are that could end the process.
    """

    def __init__(self, schema: Any, *, strict: bool = False) -> None:
        self._schema = schema
        self._walk = walk_of(schema, strict=strict)

    def read(self, body: bytes | memoryview, reader: Any = None) -> Any:
        """Return the value of a body, as the schema `reader` has it if there is one.

        Raises `SchemaViolation` for what could not be read within bounds, and what fastavro raises
        (`wire.UNREADABLE`).
        """
        return self._read(body, reader)[0]

    def read_whole(self, body: bytes) -> tuple[Any, bool]:
        """Return the value, and whether it is all of the body. Raises as `read` does."""
        value, end = self._read(body, None)
        return value, end == len(body)

    def _read(self, body: bytes | memoryview, reader: Any) -> tuple[Any, int]:
        if self._walk is not None:
            self._walk(body)
        stream = io.BytesIO(body)
        return fastavro.schemaless_reader(stream, self._schema, reader), stream.tell()


Walk = Callable[[bytes | memoryview], None]


def walk_of(schema: Any, *, strict: bool = False) -> Walk | None:
    """Return what raises `SchemaViolation` for a body out of bounds; None where none can be."""
    places = _Places()
    root = places.of(schema)
    if not (places.endless or places.empty_items or (strict and places.counted)):
        return None

    def walk(body: bytes | memoryview) -> None:
        try:
            _Walked(body).over(root)
        except IndexError as error:
            raise SchemaViolation(f"{len(body)} bytes end within a value") from error

    return walk


@dataclass(slots=True)
class _Place:
    """A type at its place in a schema: one kind of value, and what lies within it.

    `number` is how many bytes a value of fixed length has, or how many symbols there are; `empty`
    says whether no value takes a byte, and `unwritten` how many such ones it has by itself.
    """

    kind: Literal["bytes", "number", "text", "symbol", "union", "record", "array", "map"]
    number: int = 0
    within: list[_Place] = field(default_factory=list)
    empty: bool = False
    unwritten: int = 0


class _Places:
    """Makes the places of a schema, and notes what it lets happen.

    `endless`: a record may lie within itself; `empty_items`: items of an array take no byte;
    `counted`: there are branches, symbols or counts.
    """

    def __init__(self) -> None:
        self.endless = False
        self.empty_items = False
        self.counted = False
        self._named: dict[str, _Place] = {}
        self._open: set[str] = set()

    def of(self, schema: Any) -> _Place:
        """Return the place of a type."""
        match schema:
            case str():
                return self._simple(schema)
            case list():
                self.counted = True
                return _Place("union", within=[self.of(branch) for branch in schema])
            case {"type": "record" | "error", "name": name, "fields": fields}:
                return self._record(name, [each["type"] for each in fields])
            case {"type": "array", "items": items}:
                self.counted = True
                item = self.of(items)
                self.empty_items |= item.empty
                return _Place("array", within=[item])
            case {"type": "map", "values": values}:
                self.counted = True
                return _Place("map", within=[self.of(values)])
            case {"type": "fixed", "name": name, "size": size}:
                self._named[name] = _bytes(size)
                return self._named[name]
            case {"type": "enum", "name": name, "symbols": symbols}:
                self.counted = True
                self._named[name] = _Place("symbol", number=len(symbols))
                return self._named[name]
            case {"type": inner}:
                return self.of(inner)
            case _:
                raise SchemaViolation(f"no Avro type: {schema!r}")

    def _record(self, name: str, fields: Sequence[Any]) -> _Place:
        place = self._named[name] = _Place("record")
        self._open.add(name)
        place.within += [self.of(each) for each in fields]
        self._open.discard(name)
        place.empty = all(each.empty for each in place.within)
        place.unwritten = place.empty + sum(each.unwritten for each in place.within)
        if place.unwritten > MOST_UNWRITTEN:
            raise SchemaViolation(f"{name} has {place.unwritten} values that take no bytes")
        return place

    def _simple(self, name: str) -> _Place:
        if name in _FIXED_BYTES:
            return _bytes(_FIXED_BYTES[name])
        if name in ("int", "long"):
            return _Place("number")
        if name in ("string", "bytes"):
            return _Place("text")
        self.endless |= name in self._open
        return self._named[name]


def _bytes(length: int) -> _Place:
    return _Place("bytes", number=length, empty=length == 0, unwritten=int(length == 0))


@dataclass(slots=True)
class _Due:
    """Values of one place that are still to come; `blocks`: counts that say so come first."""

    place: _Place
    deep: int
    left: int = 1
    blocks: bool = False


class _Walked:
    """A body on the way. Holds what is still to come itself: no recursion sets it an end."""

    def __init__(self, body: bytes | memoryview) -> None:
        self._body = body
        self._at = 0
        self._empty_left = max(MOST_EMPTY, len(body))

    def over(self, root: _Place) -> None:
        """Pass over a value."""
        due = [_Due(root, 0)]
        while due:
            one = due[-1]
            if one.blocks and one.left == 0:
                one.left = self._count(one.place.within[0])
                if one.left == 0:
                    due.pop()
                continue
            one.left -= 1
            if one.blocks:
                if one.place.kind == "map":
                    self._skip(self._number())
                self._value(one.place.within[0], one.deep, due)
                continue
            if one.left == 0:
                due.pop()
            self._value(one.place, one.deep, due)

    def _value(self, place: _Place, deep: int, due: list[_Due]) -> None:
        """Pass over a value; of one with others in it, put these down as due."""
        while place.kind == "union":
            place = _chosen(place, self._number())
        match place.kind:
            case "bytes":
                self._skip(place.number)
            case "number":
                self._number()
            case "text":
                self._skip(self._number())
            case "symbol":
                found = self._number()
                if not 0 <= found < place.number:
                    raise SchemaViolation(f"symbol {found} of an enum of {place.number}")
            case "record" | "array" | "map":
                if deep >= MOST_DEEP:
                    raise SchemaViolation(f"values lie more than {MOST_DEEP} deep in each other")
                if place.kind == "record":
                    due += [_Due(each, deep + 1) for each in reversed(place.within)]
                else:
                    due.append(_Due(place, deep + 1, left=0, blocks=True))

    def _count(self, item: _Place) -> int:
        """Read how many items a block has, and pass over how many bytes it says these are."""
        count = self._number()
        if count < 0:
            if count == -_FARTHEST or self._number() < 0:
                raise SchemaViolation(f"a block of {count} items")
            count = -count
        if item.empty:
            self._empty_left -= count
            if self._empty_left < 0:
                raise SchemaViolation(f"an array of {count} items that take no bytes")
        return count

    def _number(self) -> int:
        """Read a varint."""
        body, at = self._body, self._at
        byte = body[at]
        value, shift = byte & 0x7F, 7
        while byte & 0x80:
            at += 1
            if shift >= 7 * _LONGEST_VARINT:
                raise SchemaViolation(f"a number of more than {_LONGEST_VARINT} bytes")
            byte = body[at]
            value |= (byte & 0x7F) << shift
            shift += 7
        self._at = at + 1
        return (value >> 1) ^ -(value & 1)

    def _skip(self, length: int) -> None:
        """Pass over bytes."""
        left = len(self._body) - self._at
        if not 0 <= length <= left:
            raise SchemaViolation(f"a value of {length} bytes, where {left} are left")
        self._at += length


def _chosen(union: _Place, branch: int) -> _Place:
    if not 0 <= branch < len(union.within):
        raise SchemaViolation(f"branch {branch} of a union of {len(union.within)}")
    return union.within[branch]
