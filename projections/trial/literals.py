"""Values as a test file writes them, and what they are as values of a column's type."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from projections.sql.rendering.certified import has_simple_type, is_held
from projections.sql.words.nested_types import ArrayOf, MapOf, StructOf, nested_of
from projections.sql.words.places import Script

_RANGES = {"TINYINT": 7, "SMALLINT": 15, "INT": 31, "BIGINT": 63}


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A value as written: a number is its text, with `quoted` false."""

    value: str | bool | None
    quoted: bool
    at: int


def has_literals(kind: str) -> bool:
    """Say whether values of a type can be written in a test."""
    return has_simple_type(kind) or is_held(kind)


def value_of(literal: Literal, kind: str, script: Script) -> object:
    """Return a literal as a value of a type; without one (the empty text) as it is written.

    Raises `InvalidRequest` at the literal's place.
    """
    if literal.value is None:
        return None
    try:
        return _value(literal, kind)
    except (ValueError, InvalidOperation):
        form = _PARTS if "<" in kind else _FORMS.get(kind.partition("(")[0], _NUMBER)
        raise script.refusal(f"{literal.value!r} is no {kind}", at=literal.at, fix=form) from None


_PARTS = 'Write JSON in quotes, as \'[{"sku": "a", "n": 1}]\'.'
_NUMBER = "Write a number, without quotes."
_FORMS = {
    "STRING": "Write text in quotes.",
    "BOOLEAN": "Write TRUE or FALSE.",
    "TIMESTAMP": "Write a time in UTC, as '2026-03-02 10:00:00'.",
    "DATE": "Write a day, as '2026-03-02'.",
}


def _value(literal: Literal, kind: str) -> object:
    family = kind.partition("(")[0]
    if "<" in kind:
        told = json.loads(str(_string(literal, kind)), parse_int=Decimal, parse_float=Decimal)
        return _with_parts(told, kind, literal.at)
    reader = _READERS.get(family, _whole if family in _RANGES else _as_written)
    return reader(literal, kind)


def _with_parts(told: object, kind: str, at: int) -> object:
    """Turn what JSON tells into a value of a type: arrays, objects of fields, and of entries."""
    match nested_of(kind), told:
        case _, None:
            return None
        case ArrayOf() as nested, list():
            return [_with_parts(each, nested.element, at) for each in told]
        case MapOf() as nested, dict():
            return [
                (_with_parts(key, nested.key, at), _with_parts(each, nested.value, at))
                for key, each in told.items()
            ]
        case StructOf() as nested, dict() if {*told} <= {name for name, _ in nested.fields}:
            return {n: _with_parts(told.get(n), each, at) for n, each in nested.fields}
        case None, str() | bool() | Decimal():
            value = str(told) if isinstance(told, Decimal) else told
            return _value(Literal(value=value, quoted=isinstance(told, str), at=at), kind)
    raise ValueError(told)


def _whole(literal: Literal, kind: str) -> object:
    found = int(_unquoted(literal))
    if not -(2 ** _RANGES[kind]) <= found < 2 ** _RANGES[kind]:
        raise ValueError(found)
    return found


def _double(literal: Literal, kind: str) -> object:
    return float(_text(literal))


def _decimal(literal: Literal, kind: str) -> object:
    precision, scale = map(int, kind.removeprefix("DECIMAL(").removesuffix(")").split(","))
    found = Decimal(_text(literal))
    shaped = found.quantize(Decimal(1).scaleb(-scale))
    if shaped != found or len(shaped.as_tuple().digits) > precision:
        raise ValueError(found)
    return shaped


def _string(literal: Literal, kind: str) -> object:
    if not literal.quoted:
        raise ValueError(literal.value)
    return literal.value


def _boolean(literal: Literal, kind: str) -> object:
    if not isinstance(literal.value, bool):
        raise ValueError(literal.value)
    return literal.value


def _timestamp(literal: Literal, kind: str) -> object:
    found = datetime.fromisoformat(str(_string(literal, kind)))
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _date(literal: Literal, kind: str) -> object:
    return date.fromisoformat(str(_string(literal, kind)))


def _as_written(literal: Literal, kind: str) -> object:
    if literal.quoted or isinstance(literal.value, bool):
        return literal.value
    number = Decimal(_text(literal))
    return int(number) if number == number.to_integral_value() else float(number)


def _text(literal: Literal) -> str:
    if isinstance(literal.value, bool):
        raise ValueError(literal.value)
    return str(literal.value)


def _unquoted(literal: Literal) -> str:
    if literal.quoted:
        raise ValueError(literal.value)
    return _text(literal)


_READERS: dict[str, Callable[[Literal, str], object]] = {
    "DOUBLE": _double,
    "DECIMAL": _decimal,
    "STRING": _string,
    "BOOLEAN": _boolean,
    "TIMESTAMP": _timestamp,
    "DATE": _date,
}
