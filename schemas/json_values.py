"""Single JSON values to the raw values that Avro stores, by type and logical type."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from kernel.errors import SchemaViolation

Convert = Callable[[Any], Any]

_INT: Final = range(-(2**31), 2**31)
_LONG: Final = range(-(2**63), 2**63)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DATE: Final = date(1970, 1, 1)
_MICROSECOND: Final = timedelta(microseconds=1)
_SHOWN_CHARS: Final = 60


def misfit(complaint: str, inner: str = "") -> SchemaViolation:
    """Return the error of a value that does not fit its place, seen from that place."""
    path = f"${inner}"
    return SchemaViolation(f"{path}: {complaint}", path=path, complaint=complaint)


def inside(error: SchemaViolation, place: str) -> SchemaViolation:
    """Return the same error, seen from one level further out: `place` is `.field` or `[3]`."""
    return misfit(str(error.fields["complaint"]), place + str(error.fields["path"])[1:])


def describe(value: object) -> str:
    """Name a JSON value's kind and show its beginning."""
    match value:
        case None:
            return "null"
        case bool():
            return f"the boolean {str(value).lower()}"
        case int() | float():
            return f"the number {value}"
        case str():
            shown = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "…"
            return f"the text {shown!r}"
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


def _whole(kind: str, allowed: range) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int:
            if value in allowed:
                return value
            raise misfit(f"{value} does not fit {kind}")
        raise misfit(f"expected a whole number ({kind}), found {describe(value)}")

    return convert


_EXACT_IN_DOUBLE = 2**53
"""Whole numbers up to here are doubles without loss (IEEE 754 binary64)."""


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        if abs(value) <= _EXACT_IN_DOUBLE:
            return float(value)
        raise misfit(f"{value} may lose digits as a floating-point number")
    raise misfit(f"expected a number, found {describe(value)}")


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise misfit(f"expected text, found {describe(value)}")


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_string(value), validate=True)
    except binascii.Error as error:
        raise misfit(f"expected base64 text: {error}") from None


SCALARS: Final[dict[str, Convert]] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole("int", _INT),
    "long": _whole("long", _LONG),
    "float": _number,
    "double": _number,
    "string": _string,
    "bytes": _bytes,
}
"""Converters of the primitive types."""


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
            return _time(1000, _INT)
        case "time-micros", "long":
            return _time(1, _LONG)
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
    limit: int = 10**precision

    def convert(value: Any) -> bytes:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise misfit(f"expected a decimal as text or number, found {describe(value)}")
        try:
            number = Decimal(str(value))
        except InvalidOperation:
            raise misfit(f"expected a decimal, found {describe(value)}") from None
        if not number.is_finite():
            raise misfit(f"expected a finite decimal, found {describe(value)}")
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits)))
        shift = exponent + scale
        if shift > precision + 1 and unscaled:
            raise misfit(f"{value} does not fit decimal({precision}, {scale})")
        unscaled, rest = (
            (unscaled * int(10**shift), 0) if shift >= 0 else divmod(unscaled, int(10**-shift))
        )
        if rest or unscaled >= limit:
            raise misfit(f"{value} does not fit decimal({precision}, {scale})")
        signed = -unscaled if sign else unscaled
        length = size or (signed.bit_length() // 8 + 1)
        return signed.to_bytes(length, "big", signed=True)

    return convert


def _date(value: Any) -> int:
    if type(value) is int and value in _INT:
        return value
    try:
        return (date.fromisoformat(_string(value)) - _EPOCH_DATE).days
    except ValueError as error:
        raise misfit(f"expected a date as 2013-01-31, found {describe(value)}: {error}") from None


def _time(unit_us: int, allowed: range) -> Convert:
    def convert(value: Any) -> int:
        if type(value) is int and value in allowed:
            return value
        try:
            moment = time.fromisoformat(_string(value))
        except ValueError as error:
            raise misfit(f"expected a time as 05:15:00, found {describe(value)}: {error}") from None
        if moment.tzinfo is not None:
            raise misfit(f"expected a time without offset, found {describe(value)}")
        seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
        return _exactly((seconds * 1_000_000 + moment.microsecond), unit_us, value)

    return convert


def _timestamp(unit_us: int, *, zoned: bool) -> Convert:
    wanted = "with an offset, as 2013-01-01T05:15:00Z" if zoned else "without an offset"

    def convert(value: Any) -> int:
        if type(value) is int and value in _LONG:
            return value
        try:
            moment = datetime.fromisoformat(_string(value))
        except ValueError as error:
            raise misfit(f"expected a time {wanted}, found {describe(value)}: {error}") from None
        if (moment.tzinfo is not None) is not zoned:
            raise misfit(f"expected a time {wanted}, found {describe(value)}")
        since = (moment if zoned else moment.replace(tzinfo=UTC)) - _EPOCH
        return _exactly(since // _MICROSECOND, unit_us, value)

    return convert


def _exactly(microseconds: int, unit_us: int, value: Any) -> int:
    units, rest = divmod(microseconds, unit_us)
    if rest:
        raise misfit(f"{value} is finer than the schema's unit of {unit_us} µs")
    return units


def _uuid(value: Any) -> UUID:
    try:
        return UUID(_string(value))
    except ValueError:
        raise misfit(f"expected a UUID, found {describe(value)}") from None


def _uuid_text(value: Any) -> str:
    return str(_uuid(value))


def _uuid_bytes(value: Any) -> bytes:
    return _uuid(value).bytes
