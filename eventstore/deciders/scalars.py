"""Single values as JSON, both ways, and what a shape is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timezone
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from schemas.json_values import SCALARS as JSON_SCALARS
from schemas.json_values import describe, misfit

_INT = range(-(2**63), 2**64)


@dataclass(frozen=True, slots=True)
class ScalarShape:
    """Both ways of one type. Each raises `SchemaViolation` with `path` and `complaint`."""

    freeze: Callable[[Any], Any]
    """From the value to JSON values."""
    thaw: Callable[[Any], Any]
    """From JSON values to the value."""


def _exact(kind: type, what: str) -> ScalarShape:
    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise misfit(f"expected {what}, found {describe_any(value)}")
        return value

    return ScalarShape(check, check)


def _whole() -> ScalarShape:
    def check(value: Any) -> int:
        if type(value) is not int or value not in _INT:
            raise misfit(f"expected a whole number of 64 bits, found {describe_any(value)}")
        return value

    return ScalarShape(check, check)


def _number() -> ScalarShape:
    def check(value: Any) -> Any:
        if type(value) is int:
            return SCALARS[int].freeze(value)  # It stays one: both are numbers of JSON.
        if type(value) is not float or not math.isfinite(value):
            raise misfit(f"expected a number, found {describe_any(value)}")
        return value

    def thaw(value: Any) -> Any:
        # A number that was sent with more digits than the shortest text of its double.
        return check(JSON_SCALARS["double"](value) if type(value) is Decimal else value)

    return ScalarShape(check, thaw)


def _text(kind: type, what: str, parse: Callable[[Any], Any]) -> ScalarShape:
    def freeze(value: Any) -> str:
        if type(value) is not kind:
            raise misfit(f"expected {what}, found {describe_any(value)}")
        text = value.isoformat() if hasattr(value, "isoformat") else str(value)
        try:
            same = parse(text)
        except (ValueError, InvalidOperation):
            same = None
        if repr(same) != repr(value):  # Folds and the names of time zones count too.
            raise misfit(f"{what} {value} would not come back as it is")
        return text

    def thaw(value: Any) -> Any:
        try:
            return parse(value)
        except (ValueError, TypeError, AttributeError, InvalidOperation):
            raise misfit(f"expected {what}, found {describe_any(value)}") from None

    return ScalarShape(freeze, thaw)


def _instant(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if not isinstance(moment.tzinfo, timezone):
        raise ValueError("no offset")
    return moment


def _decimal(value: Any) -> Decimal:
    if type(value) not in (str, int, float, Decimal):
        raise ValueError("no number")
    number = Decimal(str(value))
    if not number.is_finite():
        raise ValueError("not finite")
    return number


SCALARS: dict[Any, ScalarShape] = {
    str: _exact(str, "a text"),
    bool: _exact(bool, "true or false"),
    type(None): _exact(type(None), "null"),
    int: _whole(),
    float: _number(),
    datetime: _text(datetime, "a time with an offset", _instant),
    date: _text(date, "a date", date.fromisoformat),
    time: _text(time, "a time of day", time.fromisoformat),
    Decimal: _text(Decimal, "a decimal", _decimal),
    UUID: _text(UUID, "a UUID", UUID),
}


def describe_any(value: Any) -> str:
    """Name a value that may be no JSON at all."""
    if value is None or type(value) in (bool, int, float, str, list, dict):
        return describe(value)
    return f"{type(value).__name__} {value!r}"[:120]
