"""A union of several types in the lake: text, of each branch by the type that it declares.

Avro's bytes say which branch a value is of, and whoever reads them forgets it. A record of one
field has the bytes of that field: so each branch is read as one, whose field's name is its place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import count
from typing import Any, Protocol

import pyarrow as pa

Show = Callable[[Any], Any]
_BRANCH = "__penstock_branch_"


class BranchType(Protocol):
    """How values of one type become a column; `convert` and `build` None: as they are."""

    @property
    def convert(self) -> Callable[[Any], Any] | None:
        """Read a value."""
        ...

    @property
    def build(self) -> Callable[[list[Any]], pa.Array] | None:
        """Read a whole column."""
        ...

    def array(self, values: list[Any]) -> pa.Array:
        """Make a column."""
        ...

    def lost_texts(self, values: list[Any]) -> dict[int, str]:
        """Return the texts of the values that the type cannot hold, by place."""
        ...


Typed = Callable[[Any, dict[str, Any]], BranchType]


def with_branches(avro: Any) -> Any:
    """Return a schema that reads the same bytes, and says of each such union's value its branch."""
    return _with_branches(avro, count())


def _with_branches(avro: Any, numbers: Iterator[int]) -> Any:
    match avro:
        case list():
            parts = [_with_branches(branch, numbers) for branch in avro]
            several = is_of_several(avro)
            return [
                _branch(part, place, next(numbers)) if several and part != "null" else part
                for place, part in enumerate(parts)
            ]
        case dict():
            found = {
                key: _with_branches(value, numbers) if key in ("type", "items", "values") else value
                for key, value in avro.items()
            }
            if isinstance(avro.get("fields"), list):
                found["fields"] = [_with_branches(each, numbers) for each in avro["fields"]]
            return found
        case _:
            return avro


def _branch(avro: Any, place: int, number: int) -> dict[str, Any]:
    field = {"name": f"{_BRANCH}{place}", "type": avro}
    return {"type": "record", "name": f"{_BRANCH}of_{number}", "fields": [field]}


def is_of_several(union: Sequence[Any]) -> bool:
    """Say whether a union has several types besides null."""
    return len([branch for branch in union if branch != "null"]) > 1


def union_text(branches: Sequence[Any], named: Mapping[str, Any], typed: Typed) -> Show:
    """Return what makes text of a union's values: of a text itself, of all else JSON.

    Days, moments, times and decimals are texts. `named` are the definitions met so far.
    """
    shown = _Shown(named, typed).of([*branches])

    def text(value: Any) -> str | None:
        found = shown(value)
        return found if found is None or isinstance(found, str) else json_text(found)

    return text


def json_text(value: Any) -> str:
    """Return JSON of a value, of one whose branches are told too."""
    return json.dumps(_untold(value), default=_json_default, separators=(",", ":"))


def _json_default(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _untold(value: Any) -> Any:
    match value:
        case dict():
            told = _told(value)
            if told is not None:
                return _untold(told[1])
            return {name: _untold(each) for name, each in value.items()}
        case list():
            return [_untold(each) for each in value]
        case _:
            return value


def _told(value: Mapping[str, Any]) -> tuple[int, Any] | None:
    """Return the branch and the value of a union; None for a record of another kind."""
    name = next(iter(value), "")
    if not name.startswith(_BRANCH):
        return None
    return int(name.removeprefix(_BRANCH)), value[name]


class _Shown:
    """One function per place in a type; a record is known within itself."""

    def __init__(self, named: Mapping[str, Any], typed: Typed) -> None:
        self._named = named
        self._typed = typed
        self._records: dict[str, Show] = {}

    def of(self, avro: Any) -> Show:
        """Return what makes a JSON value of the values of a type."""
        match avro:
            case list():
                return self._union(avro)
            case str():
                return self._reference(avro)
            case {"type": "record"}:
                return self._record(avro)
            case {"type": "array", "items": items}:
                item = self.of(items)
                return lambda values: [item(value) for value in values]
            case {"type": "map", "values": values}:
                each = self.of(values)
                return lambda pairs: {key: each(value) for key, value in pairs.items()}
            case {"type": dict() | list() as inner}:
                return self.of(inner)
            case _:
                return self._simple(avro)

    def _union(self, branches: Sequence[Any]) -> Show:
        parts = [self.of(branch) for branch in branches]
        if is_of_several(branches):

            def shown(value: Any) -> Any:
                told = None if value is None else _told(value)
                return None if told is None else parts[told[0]](told[1])

            return shown
        only = next((p for b, p in zip(branches, parts, strict=True) if b != "null"), _itself)
        return lambda value: None if value is None else only(value)

    def _reference(self, name: str) -> Show:
        if name in self._records:
            return self._records[name]
        found = self._named.get(name)
        # Of a record that is still being read the definition is not known here.
        return self.of(found) if found else _untold

    def _record(self, avro: Mapping[str, Any]) -> Show:
        fields: dict[str, Show] = {}

        def shown(record: Mapping[str, Any]) -> dict[str, Any]:
            return {name: field(record[name]) for name, field in fields.items()}

        self._records[str(avro["name"])] = shown
        fields |= {str(field["name"]): self.of(field["type"]) for field in avro["fields"]}
        return shown

    def _simple(self, avro: Any) -> Show:
        kind = self._typed(avro, {**self._named})
        if kind.convert is None and kind.build is None:
            return _itself

        def shown(value: Any) -> Any:
            # What the type cannot hold is shown as it travels: no other value stands for it.
            if value is None or kind.lost_texts([value]):
                return value
            try:
                return _json(kind.array([value])[0].as_py())
            except pa.ArrowInvalid:
                return value

        return shown


def _itself(value: Any) -> Any:
    return value


def _json(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return value
