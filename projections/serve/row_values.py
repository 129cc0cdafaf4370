"""Values of table rows as JSON shows them, and keys as callers write them.

Texts are those of the HTTP service's events: decimals and times are texts, bytes are base64, whole
numbers are numbers. A double that no JSON number says (`NaN`, `Infinity`) is a text, so that it is
not taken for null.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernel.clock import UNIX_EPOCH
from kernel.errors import InvalidRequest

Document = dict[str, object]
_MOST_ROWS, _MOST_BYTES = 500, 4 * 1024 * 1024
_DAY = 86_400 * 10**6
_FOUR_CENTURIES = 146_097 * _DAY
_NUMBER = re.compile(r"-?\d+(\.\d*)?([eE][+-]?\d+)?|NaN|-?Infinity", re.ASCII)
_TIME = re.compile(
    # No more digits than microseconds have: a finer time is none that a row has.
    r"(?P<year>-?\d{3,7})(?P<rest>-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?"
    r"(Z|[+-]\d\d:\d\d)?)?)",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key: its values as a table holds them, and as `comparable` makes them."""

    values: tuple[pa.Scalar, ...]
    places: tuple[object, ...]


def at_once(rows: pa.Table | pa.RecordBatch) -> int:
    """Return how many of these rows are turned into Python's values together."""
    each = int(rows.nbytes // max(rows.num_rows, 1))
    return min(_MOST_ROWS, 1 + _MOST_BYTES // (each + 1))


def documents(rows: pa.Table) -> list[Document]:
    """Return rows as JSON values by column: what `json_default` and orjson turn into texts."""
    columns = [(name, shown(rows[name])) for name in rows.schema.names]
    return [{name: values[i] for name, values in columns} for i in range(rows.num_rows)]


def comparable(column: pa.ChunkedArray) -> pa.Array:
    """Return a key's column as values whose order in Python is the one that Arrow sorts by."""
    kind = column.type
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return whole.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    return whole.cast(pa.int32()) if pa.types.is_date32(kind) else whole


def place(value: object) -> object:
    """Return a comparable value such that NaN, which Arrow sorts last, has a place too."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    return value


def key_of(text: str, columns: Sequence[pa.Field]) -> Key:
    """Read a key: a JSON object of its columns, or the plain text where it is one column.

    Raises `InvalidRequest`.
    """
    given = _object(text)
    names = [field.name for field in columns]
    if given is not None and given.keys() == set(names):
        values = [_scalar(given[field.name], field) for field in columns]
    elif len(columns) == 1:
        values = [_scalar(text, columns[0])]
    else:
        raise InvalidRequest(
            f"key: {text!r} does not name the key's columns",
            remedy=f"Send a JSON object of {', '.join(names)}, as key={_example(names)}",
        )
    places = tuple(place(comparable(pa.repeat(value, 1))[0].as_py()) for value in values)
    return Key(values=tuple(values), places=places)


def _object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _example(names: Sequence[str]) -> str:
    return json.dumps(dict.fromkeys(names, "…"), ensure_ascii=False)


def _scalar(value: object, field: pa.Field) -> pa.Scalar:
    try:
        return pa.scalar(_typed(value, field.type), field.type)
    except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException):
        raise InvalidRequest(
            f"key: {str(value)[:100]!r} is no value of {field.name}, which is {field.type}",
            remedy="Write it as the rows show it: numbers as digits, times as "
            "2013-01-31T12:00:00Z, bytes as base64.",
        ) from None


def _typed(value: object, kind: pa.DataType) -> object:
    """Return what Arrow makes a value of this type of. Raises `ValueError` and its like."""
    text = json.dumps(value) if isinstance(value, bool | int) else str(value)
    if value is None or isinstance(value, dict | list):
        raise ValueError(value)
    if pa.types.is_boolean(kind):
        return {"true": True, "false": False}[text] if text in ("true", "false") else _none(text)
    if pa.types.is_integer(kind):
        return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else _none(text)
    if pa.types.is_floating(kind):
        return float(text) if _NUMBER.fullmatch(text) else _none(text)
    if pa.types.is_decimal(kind):
        return Decimal(text) if _NUMBER.fullmatch(text) else _none(text)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _time(text, kind)
    if isinstance(value, str) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return text
    if isinstance(value, str) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return base64.b64decode(text, validate=True)
    return _none(text)


def _time(text: str, kind: pa.DataType) -> object:
    """Read a day or a moment; one beyond the years of Python as `_within_years` writes it."""
    found = _TIME.fullmatch(text)
    if found is None:
        return _none(text)
    year = int(found["year"])
    # What Python cannot tell is told as a day or moment of as many times 400 years before.
    periods = 0 if 2 <= year <= 9998 else (year - 1970) // 400
    near = f"{year - 400 * periods:04d}{found['rest']}"
    if pa.types.is_date(kind):
        days = date.fromisoformat(near).toordinal() - UNIX_EPOCH.toordinal()
        return pa.scalar(days + periods * _FOUR_CENTURIES // _DAY, pa.int32()).cast(kind)
    moment = datetime.fromisoformat(near)
    if (moment.tzinfo is None) != (kind.tz is None):
        return _none(text)
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - UNIX_EPOCH
    micros = since // timedelta(microseconds=1) + periods * _FOUR_CENTURIES
    return pa.scalar(micros, pa.timestamp("us", kind.tz)).cast(kind)


def _none(text: str) -> object:
    raise ValueError(text)


def shown(column: pa.ChunkedArray) -> list[object]:
    """Return a column as JSON values. Values that are alike are equal, NaN in a list too."""
    kind = column.type
    try:
        values: list[object] = column.to_pylist()
    except (ValueError, OverflowError):
        values = [_within_years(value) for value in column]
    if pa.types.is_nested(kind) or (
        pa.types.is_floating(kind) and pc.all(pc.is_finite(column)).as_py() is False
    ):
        return [_plain(value, kind) for value in values]
    return values


def _within_years(value: pa.Scalar) -> object:
    """Return a value; of times in it, those as texts whose years Python's do not reach.

    Four hundred years are always as many days, so that a time as many of them away has the same
    month, day and hour.
    """
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        if isinstance(value, pa.StructScalar):
            return {name: _within_years(each) for name, each in value.items()}
        if isinstance(value, pa.MapScalar):
            pairs = zip(value.values.field(0), value.values.field(1), strict=True)
            return [(_within_years(key), _within_years(each)) for key, each in pairs]
        if pa.types.is_nested(value.type):
            return [_within_years(each) for each in value.values]
        is_date = pa.types.is_date32(value.type)
        if is_date:
            micros = int(value.cast(pa.int32()).as_py()) * _DAY
        else:
            micros = int(value.cast(pa.timestamp("us")).cast(pa.int64()).as_py())
        periods, rest = divmod(micros, _FOUR_CENTURIES)
        near = UNIX_EPOCH + timedelta(microseconds=rest)
        day = f"{near.year + 400 * periods:04d}{near:-%m-%d}"
        zone = "" if is_date or value.type.tz is None else "Z"
        return day if is_date else f"{day}T{near:%H:%M:%S.%f}{zone}"


def _plain(value: object, kind: pa.DataType) -> object:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case list() if pa.types.is_map(kind):
            pairs = [(k, _plain(v, kind.item_type)) for k, v in value]
            if pa.types.is_string(kind.key_type):
                return dict(pairs)
            return [{"key": _plain(k, kind.key_type), "value": v} for k, v in pairs]
        case list():
            return [_plain(each, kind.value_type) for each in value]
        case Mapping():
            return {n: _plain(v, kind.field(n).type) for n, v in value.items()}
        case _:
            return value
