"""What the metadata of an event may hold: what PostgreSQL and JSON give back as it went in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from kernel.errors import InvalidRequest

SILENT: Final = "penstock_silent"
"""Metadata of an event that is recorded and delivered to nobody: it tells nothing new."""
_WHOLE: Final = range(-(2**63), 2**63)
_BOUND: Final = float(2**63)
_REMEDY: Final = "Send it as text."


def check_metadata(metadata: Mapping[str, Any], place: str, *, nul: bool = True) -> None:
    """Raise `InvalidRequest` for what cannot be stored and shown again, with its place.

    Numbers lie within 64 bits, and a fraction is one that a double holds unchanged: PostgreSQL
    keeps any number, but who reads it back may not. It keeps no sign of a zero. `nul`: whether a
    NUL may occur at all. What says that an event is silent says nothing else.
    """
    if not isinstance(metadata.get(SILENT, False), bool):
        raise InvalidRequest(
            f"{place}.{SILENT}: expected true or false",
            remedy="With true the event is recorded, and deliveries leave it out; without it they "
            "send it.",
        )
    _check_values(metadata, place, nul)


def _check_values(metadata: Mapping[str, Any], place: str, nul: bool) -> None:
    for key, value in metadata.items():
        _check(value, f"{place}.{key}", nul)
        if nul and "\x00" in key:
            raise _nul(place)


def _check(value: Any, place: str, nul: bool) -> None:
    match value:
        case str():
            if nul and "\x00" in value:
                raise _nul(place)
        case dict():
            _check_values(value, place, nul)
        case list():
            for index, item in enumerate(value):
                _check(item, f"{place}[{index}]", nul)
        case bool() | None:
            pass
        case int():
            if value not in _WHOLE:
                raise _number(value, place)
        case float():
            if not -_BOUND < value < _BOUND or (value == 0 and math.copysign(1, value) < 0):
                raise _number(value, place)
        case Decimal():
            raise _number(value, place)
        case _:
            raise InvalidRequest(f"{place}: {type(value).__name__} is no value of JSON")


def _nul(place: str) -> InvalidRequest:
    return InvalidRequest(f"{place}: the character U+0000 cannot be stored")


def _number(value: object, place: str) -> InvalidRequest:
    return InvalidRequest(
        f"{place}: the number {value} would not come back as it was sent: metadata holds numbers "
        "of 64 bits, fractions that a double holds unchanged, and a zero without a sign",
        remedy=_REMEDY,
        path=place,
    )
