"""JSON text to values that say exactly what the text says, or a refusal that names the reason.

whole number        int where 64 bits hold it, else Decimal
other number        float where the float is the same number, else Decimal
object              dict; a key that occurs twice is refused
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson

from kernel.errors import InvalidRequest
from schemas.json_values import shown

_BLANKS: Final = b" \t\r\n"
_MANY_DIGITS: Final = b"0" * 16
"""Fifteen digits always come through a float unchanged."""
_TINY: Final = b"0e-000"
_KEY_ENDS: Final = b'":'
_SPELLED: Final = b"u0022", b"u003a", b"u003A"
"""A quotation mark and a colon, spelled as numbers."""
_BEYOND: Final = "number is infinity"
"""What orjson says of `1e400`, which is a number of JSON."""
_64_BITS: Final = range(-(2**63), 2**64)


def _kind(byte: int) -> int:
    """Return what a byte counts as while a text is looked through for what needs care."""
    if chr(byte) in "0123456789.":
        return ord("0")
    return ord(chr(byte).lower()) if chr(byte) in 'eE-:"' else ord(" ")


_KINDS: Final = bytes(map(_kind, range(256)))


def parse(text: bytes) -> Any:
    """Return the values of a JSON text.

    orjson rounds long numbers and keeps the last of two equal keys, in a tenth of the time that the
    standard library takes. So it reads what holds neither; the look beforehand may only err
    towards care. A byte order mark in front, as some writers put it, says nothing (RFC 8259, 8.1).
    Raises `orjson.JSONDecodeError` for what is no JSON, `InvalidRequest` for a key that occurs
    twice and for a number that nothing can hold.
    """
    text = text.removeprefix(BOM_UTF8)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith(_BEYOND):
            raise _beyond_doubles(error) from None
        raise
    seen = text.translate(_KINDS, _BLANKS)
    careful = _MANY_DIGITS in seen or _TINY in seen or _may_repeat_keys(text, seen, document)
    return _parsed_exactly(text) if careful else document


def _beyond_doubles(error: orjson.JSONDecodeError) -> InvalidRequest:
    return InvalidRequest(
        f"$: line {error.lineno} column {error.colno}: the number is beyond what a double holds",
        remedy="Write it in quotes, as text, which a string takes, and a decimal with room for it.",
    )


def parse_at(place: str, text: str | bytes) -> Any:
    """Return the values of a text from the command line or a file; what is refused names its place.

    Raises as `parse` does.
    """
    # An argument may hold any bytes: those that are no text are no JSON either.
    given = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        return parse(given)
    except InvalidRequest as error:
        raise InvalidRequest(f"{place}: {error.message}", remedy=error.remedy) from None


def _may_repeat_keys(text: bytes, seen: bytes, document: object) -> bool:
    """Return whether the text may have more keys than what was read from it.

    A quotation mark before a colon ends a key or is part of a text; only where one of the two is
    spelled as a number could that make up for a key that is lost.
    """
    try:
        read = orjson.dumps(document)
    except orjson.JSONEncodeError:
        return True  # Nested too deeply for it.
    lost = seen.count(_KEY_ENDS) != read.count(_KEY_ENDS)
    return lost or any(spelled in text for spelled in _SPELLED)


def fraction(text: str) -> float | Decimal:
    """Return a number as a float where that is the same number, else as a Decimal."""
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise InvalidRequest(f"the number {text[:60]} is beyond all bounds") from None
    number = float(text)
    return number if Decimal(repr(number)) == exact else exact


def dump(document: object, *, option: int = 0) -> bytes:
    """Render what `parse` returned, with options of orjson; parsing that gives the same values."""
    return orjson.dumps(document, default=_number, option=option)


def _number(value: object) -> orjson.Fragment:
    if isinstance(value, Decimal):
        return orjson.Fragment(str(value))
    raise TypeError(f"no JSON for {type(value).__name__}")


def _whole(text: str) -> int | Decimal:
    number = int(text)
    return number if number in _64_BITS else Decimal(number)


def _parsed_exactly(text: bytes) -> Any:
    try:
        return json.loads(text, parse_float=fraction, parse_int=_whole, object_pairs_hook=_object)
    except RecursionError:
        raise InvalidRequest("$: nested too deeply", remedy="Flatten the data.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRequest(
            f"the key {shown(twice)} occurs twice in one object",
            remedy="Name each field once: which of two values counts is not for us to guess.",
        )
    return found
