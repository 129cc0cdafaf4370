"""Single JSON values to the raw values that Avro stores, by type and logical type."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from kernel.clock import read_moment
from kernel.errors import SchemaViolation

Convert = Callable[[Any], Any]

_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DATE: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN_CHARS: Final = 60
_BEYOND_MICROSECONDS: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
EXACT_REMEDY: Final = "send it as text, or give the field a decimal schema"
# What fastavro can read back: a date of the years 1 to 9999, a time within one day.
_DATES: Final = range((date.min - _EPOCH_DATE).days, (date.max - _EPOCH_DATE).days + 1)
_DAY_US: Final = 24 * 60 * 60 * 1_000_000
_TIMES_US: Final = range(_DATES.start * _DAY_US, _DATES.stop * _DAY_US)


def misfit(complaint: str, inner: str = "") -> SchemaViolation:
    """Return the error of a value that does not fit its place, seen from that place."""
    path = f"${inner}"
    return SchemaViolation(f"{path}: {complaint}", path=path, complaint=complaint)


def inside(error: SchemaViolation, place: str) -> SchemaViolation:
    """Return the same error, seen from one level further out: `place` is `.field` or `[3]`."""
    return misfit(str(error.fields["complaint"]), place + str(error.fields["path"])[1:])


def beginning(text: str, at_most: int = 100) -> str:
    """Return a text of which not more is told than its beginning."""
    return text if len(text) <= at_most else text[:at_most] + "…"


def shown(value: object, at_most: int = 100) -> str:
    """Show the beginning of a JSON value: a text in single quotes, all else as it was sent."""
    if isinstance(value, str):
        return repr(beginning(value, at_most))
    if isinstance(value, Decimal):
        return beginning(str(value), at_most)
    return beginning(json.dumps(value, default=str, ensure_ascii=False), at_most)


def describe(value: object) -> str:
    """Name a JSON value's kind and show its beginning."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float() | Decimal():
            return f"the number {value}"
        case str():
            return f"the text {shown(value, _SHOWN_CHARS)}"
        case list():
            return "a list"
        case _:
            return "an object"


def _null(value: Any) -> None:
    if value is not None:
        raise misfit(f"expected null, found {describe(value)}")


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise misfit(f"expected true or false, found {describe(value)}")


def is_whole(value: object) -> bool:
    """Return whether a number was written without fraction, and is too large for 64 bits."""
    return isinstance(value, Decimal) and value.as_tuple().exponent == 0


def _whole(kind: str, allowed: range) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int and value in allowed:
            return value
        if type(value) is int or is_whole(value):
            raise misfit(f"{value} does not fit {kind}: {EXACT_REMEDY}")
        raise misfit(f"expected a whole number ({kind}), found {describe(value)}")

    return convert


_LONGEST_DOUBLE: Final = 800
"""No double has more significant digits than 767 when it is written in full."""
_SINGLE: Final = struct.Struct("<f")


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    number = _decimal_number(value)
    try:
        found = float(number)
    except OverflowError:
        found = float("inf")
    return _if_same(found, number, "double")


def _single(value: Any) -> float:
    number = _decimal_number(value)
    try:
        (found,) = _SINGLE.unpack(_SINGLE.pack(number))
    except OverflowError:
        found = float("inf")
    return _if_same(found, number, "float")


def _decimal_number(value: Any) -> Decimal:
    if type(value) is int or type(value) is Decimal:
        return Decimal(value)
    if type(value) is float:
        return Decimal(repr(value))
    raise misfit(f"expected a number, found {describe(value)}")


def _if_same(found: float, number: Decimal, kind: str) -> float:
    """Return a floating-point number, if it is what the text of the number says: written with as
    many digits, or with as few as tell it from its neighbours, it is that text again.
    """
    digits = len(number.as_tuple().digits)
    exact = Decimal(found)
    if number in (exact, Decimal(repr(found))) or (
        exact.is_finite()
        and digits < _LONGEST_DOUBLE
        and Decimal(format(found, f".{digits - 1}e")) == number
    ):
        return found
    raise misfit(f"{number} would become {found!r} as a {kind}: {EXACT_REMEDY}")


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise misfit(f"expected text, found {describe(value)}")


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_string(value), validate=True)
    except ValueError as error:
        # Of text beyond ASCII it is no `binascii.Error`.
        raise misfit(f"expected base64 text: {error}") from None


SCALARS: Final[dict[str, Convert]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole("int", _INT),
    "long": _whole("long", _LONG),
    "float": _single,
    "double": _double,
    "string": _string,
    "bytes": _bytes,
}
"""Converters of the primitive types."""


LOGICAL_BASES: Final[dict[str, tuple[str, ...]]] = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "decimal": ("bytes", "fixed"),
}
"""What each logical type is a meaning of; on another one it means nothing. A `uuid` stays text."""


def logical_converter(schema: dict[str, Any]) -> Convert | None:
    """Return the converter of a logical type, None when the schema has none that is known.

    An unknown logical type is its underlying type, as the Avro specification says.
    """
    kind = schema["type"]
    match schema.get("logicalType"), kind:
        case "decimal", ("bytes" | "fixed"):
            return _decimal(schema["precision"], schema.get("scale", 0), schema.get("size"))
        case "date", "int":
            return _date
        case "time-millis", "int":
            return _time(1000)
        case "time-micros", "long":
            return _time(1)
        case "timestamp-millis", "long":
            return _timestamp(1000, zoned=True)
        case "timestamp-micros", "long":
            return _timestamp(1, zoned=True)
        case "local-timestamp-millis", "long":
            return _timestamp(1000, zoned=False)
        case "local-timestamp-micros", "long":
            return _timestamp(1, zoned=False)
        case "uuid", "string":
            return _uuid_text
        case "uuid", "fixed":
            return _uuid_bytes
        case _:
            return None


def _decimal(precision: int, scale: int, size: int | None) -> Convert:
    def convert(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            raise misfit(f"expected a decimal as text or number, found {describe(value)}")
        try:
            number = value if isinstance(value, Decimal | int) else _number(str(value))
        except InvalidOperation:
            raise misfit(f"expected a decimal, found {describe(value)}") from None
        number = Decimal(number)
        if not number.is_finite():
            raise misfit(f"expected a finite decimal, found {describe(value)}")
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        shift = exponent + scale
        kept, dropped = (digits, ()) if shift >= 0 else (digits[:shift], digits[shift:])
        if any(dropped) or (number and number.adjusted() + scale >= precision):
            raise misfit(f"{describe(value)} does not fit decimal({precision}, {scale})")
        unscaled = int("".join(map(str, kept)) or "0") if number else 0
        if unscaled and shift > 0:
            unscaled *= int(10**shift)
        signed = -unscaled if sign else unscaled
        length = size or (signed.bit_length() // 8 + 1)
        return signed.to_bytes(length, "big", signed=True)

    return convert


def _number(text: str) -> Decimal:
    """Read a number; Python would take `1_000` for one, and blanks around it."""
    if "_" in text or text != text.strip():
        raise InvalidOperation
    return Decimal(text)


def _date(value: Any) -> int:
    if type(value) is int and value in _DATES:
        return value
    try:
        return (date.fromisoformat(_string(value)) - _EPOCH_DATE).days
    except ValueError as error:
        raise misfit(f"expected a date as 2013-01-31, found {describe(value)}: {error}") from None


def _time(unit_us: int) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int and 0 <= value < _DAY_US // unit_us:
            return value
        try:
            moment = time.fromisoformat(_string(value))
        except ValueError as error:
            raise misfit(f"expected a time as 05:15:00, found {describe(value)}: {error}") from None
        if moment.tzinfo is not None:
            raise misfit(f"expected a time without offset, found {describe(value)}")
        seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
        _refuse_finer(value)
        return _exactly((seconds * 1_000_000 + moment.microsecond), unit_us, value)

    return convert


def _timestamp(unit_us: int, *, zoned: bool) -> Convert:
    wanted = "with an offset, as 2013-01-01T05:15:00Z" if zoned else "without an offset"

    def convert(value: Any) -> int:
        if type(value) is int:
            microseconds = value * unit_us
        else:
            microseconds = _since_epoch(value, wanted, zoned=zoned)
        if microseconds not in _TIMES_US:
            raise misfit(f"{describe(value)} is not within the years 1 to 9999")
        return _exactly(microseconds, unit_us, value)

    return convert


def _since_epoch(value: Any, wanted: str, *, zoned: bool) -> int:
    try:
        moment = read_moment(_string(value))
    except ValueError as error:
        raise misfit(f"expected a time {wanted}, found {describe(value)}: {error}") from None
    if (moment.tzinfo is not None) is not zoned:
        raise misfit(f"expected a time {wanted}, found {describe(value)}")
    _refuse_finer(value)
    return ((moment if zoned else moment.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _refuse_finer(text: str) -> None:
    """Refuse digits beyond microseconds: Python reads over them."""
    if _BEYOND_MICROSECONDS.search(text):
        raise misfit(f"{text} is finer than a microsecond: no time of a schema has nanoseconds")


def _exactly(microseconds: int, unit_us: int, value: Any) -> int:
    units, rest = divmod(microseconds, unit_us)
    if rest:
        raise misfit(f"{value} is finer than the schema's unit of {unit_us} µs")
    return units


def uuid_of(text: str) -> UUID:
    """Read a UUID in any of its usual forms. Raises `ValueError`.

    Python would take `1_0`, signs, blanks and digits of any script for digits of another UUID.
    """
    found = UUID(text)
    if found.hex not in text.replace("-", "").lower():
        raise ValueError(text)
    return found


def _uuid(value: Any) -> UUID:
    try:
        return uuid_of(_string(value))
    except ValueError:
        raise misfit(f"expected a UUID, found {describe(value)}") from None


def _uuid_text(value: Any) -> str:
    return str(_uuid(value))


def _uuid_bytes(value: Any) -> bytes:
    return _uuid(value).bytes
