"""Values of external records as the types that a statement declares, from JSON and from text.

The rules for numbers are those of `json_values`: a value that its type would change is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import orjson
import pyarrow as pa

from kernel.clock import read_moment
from schemas.debezium import unscaled
from schemas.json_text import dump
from schemas.json_values import SCALARS, describe, logical_converter, misfit

Convert = Callable[[Any], Any]

TYPES: Final = "BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p, s), STRING, BINARY, DATE, TIMESTAMP"
"""The types that a column of an external topic may have."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOMENTS: Final = range(
    (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND,
    (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND + 1,
)
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_YEAR_OR_DAY: Final = re.compile(r"[0-9]{4,8}")
"""Texts that are years or days to whoever wrote them as likely as milliseconds."""
_DECIMAL: Final = re.compile(r"DECIMAL(?:\((\d+)(?:, ?(\d+))?\))?")
_MOST_DIGITS: Final = 38


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueType:
    """A declared type: its column, and how a value of JSON or a text becomes a value of it.

    Both converters raise `SchemaViolation` for a value that does not fit.
    """

    arrow: pa.DataType
    from_json: Convert
    from_text: Convert


def value_type(spark: str) -> ValueType | None:
    """Return the type of a column by its name in Spark SQL; None for one that is not supported."""
    found = _SIMPLE.get(spark)
    if found is not None:
        return found
    decimal = _DECIMAL.fullmatch(spark)
    if decimal is None:
        return None
    precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
    if not 1 <= precision <= _MOST_DIGITS or scale > precision:
        return None
    convert = _decimal(precision, scale)
    return ValueType(arrow=pa.decimal128(precision, scale), from_json=convert, from_text=convert)


def _decimal(precision: int, scale: int) -> Convert:
    raw = logical_converter(
        {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    )
    assert raw is not None, "decimals are known"

    def read(value: Any) -> Any:
        if type(value) is str and not _NUMBER.fullmatch(value):
            raise misfit(f"expected a number, found {describe(value)}")
        return unscaled(raw(value), scale)

    return read


def _text(value: Any) -> str:
    """Return a text; of what is nested, its JSON."""
    match value:
        case str():
            return value
        case dict() | list():
            try:
                return dump(value).decode()
            except orjson.JSONEncodeError:
                raise misfit("nested too deeply for one text") from None
        case _:
            raise misfit(f"expected text, found {describe(value)}")


def _moment(value: Any) -> int:
    """Return microseconds since 1970 UTC: of a text, which is UTC without an offset, or of ms."""
    micros = value * 1000 if type(value) is int else _since_epoch(value)
    if micros not in _MOMENTS:
        raise misfit(f"{describe(value)} is not within the years 1 to 9999")
    return micros


def _since_epoch(value: Any) -> int:
    wanted = "expected a time as 2013-01-01T05:15:00Z or milliseconds since 1970"
    if type(value) is not str:
        raise misfit(f"{wanted}, found {describe(value)}")
    try:
        moment = read_moment(value)
    except ValueError as error:
        raise misfit(f"{wanted}, found {describe(value)}: {error}") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // _MICROSECOND


def _moment_text(text: str) -> int:
    if _YEAR_OR_DAY.fullmatch(text):
        raise misfit(f"{describe(text)} may be a day as well as milliseconds since 1970")
    return _moment(int(text) if _WHOLE.fullmatch(text) else text)


def _date_text(text: str) -> Any:
    return _DATE(text)


def _whole_text(convert: Convert) -> Convert:
    def read(text: str) -> Any:
        if not _WHOLE.fullmatch(text):
            raise misfit(f"expected a whole number, found {describe(text)}")
        return convert(int(text))

    return read


def _number_text(convert: Convert) -> Convert:
    def read(text: str) -> Any:
        if not _NUMBER.fullmatch(text):
            raise misfit(f"expected a number, found {describe(text)}")
        return convert(Decimal(text))

    return read


def _boolean_text(text: str) -> bool:
    known = {"true": True, "false": False}
    if text.lower() not in known:
        raise misfit(f"expected true or false, found {describe(text)}")
    return known[text.lower()]


def _plain(arrow: pa.DataType, kind: str, text: Callable[[Convert], Convert]) -> ValueType:
    convert = SCALARS[kind]
    return ValueType(arrow=arrow, from_json=convert, from_text=text(convert))


_date = logical_converter({"type": "int", "logicalType": "date"})
assert _date is not None, "dates are known"
_DATE: Final[Convert] = _date
_SIMPLE: Final = {
    "BOOLEAN": ValueType(arrow=pa.bool_(), from_json=SCALARS["boolean"], from_text=_boolean_text),
    "INT": _plain(pa.int32(), "int", _whole_text),
    "BIGINT": _plain(pa.int64(), "long", _whole_text),
    "FLOAT": _plain(pa.float32(), "float", _number_text),
    "DOUBLE": _plain(pa.float64(), "double", _number_text),
    "STRING": ValueType(arrow=pa.string(), from_json=_text, from_text=str),
    "BINARY": ValueType(arrow=pa.binary(), from_json=SCALARS["bytes"], from_text=SCALARS["bytes"]),
    "DATE": ValueType(arrow=pa.date32(), from_json=_DATE, from_text=_date_text),
    "TIMESTAMP": ValueType(
        arrow=pa.timestamp("us", tz="UTC"), from_json=_moment, from_text=_moment_text
    ),
}
