"""What Debezium means by its Avro: semantic types, the unchanged mark, values beyond the lake.

Debezium names the meaning of a field in `connect.name` and, because capture asks for it, the
source's own type, length and scale in `connect.parameters`. Numerics travel as text: only text
keeps NaN, infinities and any scale.

The lake's dates and timestamps hold the years 1 to 9999: what engines and Python agree on. The
infinities of PostgreSQL and years outside saturate to the first or last moment of that range, and
their text goes to `_exact` (`schemas.pg_exact`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from schemas.pg_moments import (
    DATE_MAX,
    DATE_MIN,
    MICROS_MAX,
    MICROS_MIN,
    date_text,
    timestamp_text,
)
from schemas.pg_types import SourceColumn, modifier_of, type_of_text

PLACEHOLDER = "__penstock_unchanged__"
"""What the connector writes for a large value that an UPDATE left alone (unchanged TOAST)."""

TEXT = "penstock.text"
"""Parameter of a string that is PostgreSQL's own text; `penstock.column` then spells the type."""

_COLUMN = "penstock.column"

_INFINITE_DATES = frozenset((2**31 - 1, -622191234, 2146033979))
"""+infinity as `PostgresText` writes it, and as Debezium did; others out of range are -infinity."""
_EARLIEST_DATE, _LATEST_DATE = -2440588, 2145042905

_MINUS_INFINITY = -(2**63)
_EARLIEST_MICROS = -210866803200000000
_INFINITE_MICROS = frozenset((2**63 - 1, 9223372036825200000))
_MINUS_INFINITE_MICROS = frozenset((_MINUS_INFINITY, -9223372036832400000))

_SOURCE = "__debezium.source.column."
_SPECIAL = {"NAN": "NaN", "POSITIVE_INFINITY": "Infinity", "NEGATIVE_INFINITY": "-Infinity"}


class Unchanged:
    """The one value `UNCHANGED`: the column keeps what it had before."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = Unchanged()

_MARK_BYTES = PLACEHOLDER.encode()
_MARK_LISTS = (
    [PLACEHOLDER],
    [_MARK_BYTES],
    list(_MARK_BYTES),
    [str(UUID(bytes=hashlib.md5(_MARK_BYTES, usedforsecurity=False).digest(), version=3))],
)


def is_unchanged(value: object) -> bool:
    """Tell whether a decoded Avro value is the mark, in any of the shapes Debezium gives it."""
    match value:
        case str():
            return value == PLACEHOLDER
        case bytes():
            return value == _MARK_BYTES
        case list():
            return value in _MARK_LISTS
        case _:
            return False


_ELEVEN_BITS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """A column's type in the source database, as `NUMERIC` 12 2; arrays begin with `_`."""

    name: str
    length: int
    scale: int

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a numeric of at most 38 digits, else None (kept as text)."""
        if self.name.lstrip("_") == "MONEY":
            return 19, 2
        if self.name.lstrip("_") != "NUMERIC":
            return None
        scale = self.scale - _ELEVEN_BITS if self.is_whole else self.scale
        precision = max(self.length - min(scale, 0), scale)
        return (precision, max(scale, 0)) if 0 < precision <= 38 else None

    @property
    def is_whole(self) -> bool:
        """Whether its scale is negative, so that its values are whole numbers.

        Debezium reads the scale as a number of eleven bits: a numeric(5, -2) has 2046.
        """
        return self.scale >= _ELEVEN_BITS // 2


def source_type(parameters: Mapping[str, str]) -> SourceType | None:
    """Read the propagated source type from `connect.parameters`; None where there is none."""
    name = parameters.get(f"{_SOURCE}type")
    if name is None:
        return None
    return SourceType(
        name=name,
        length=int(parameters.get(f"{_SOURCE}length", "0")),
        scale=int(parameters.get(f"{_SOURCE}scale", "0")),
    )


def source_column(parameters: Mapping[str, str]) -> SourceColumn:
    """Return the type of a column that travels as PostgreSQL's text.

    What was described when the connector was configured, else what Debezium knows of it: an array
    then has one dimension.
    """
    spelled = parameters.get(_COLUMN)
    if spelled is not None:
        return type_of_text(spelled)
    source = source_type(parameters)
    if source is None:
        return SourceColumn(name="", type="text")
    name = source.name.lower()
    is_array = name.startswith("_")
    decimal = source.decimal if name.lstrip("_") == "numeric" else None
    modifier = -1 if decimal is None else modifier_of(*decimal)
    return SourceColumn(
        name="",
        type=name.removeprefix("_"),
        modifier=modifier,
        is_array=is_array,
        dimensions=int(is_array),
        delimiter=";" if name == "_box" else ",",
    )


def numeric_text(text: str) -> str:
    """Write a numeric as PostgreSQL does: `NaN` and `Infinity` instead of Debezium's words."""
    return _SPECIAL.get(text, text)


def whole_text(text: str) -> str:
    """Write one of a negative scale as PostgreSQL does: Debezium has zeros behind its point."""
    return numeric_text(text).partition(".")[0]


def clamped_date(days: int) -> int:
    """Saturate days since 1970-01-01 to the lake's range, infinities included."""
    if DATE_MIN <= days <= DATE_MAX:
        return days
    if days in _INFINITE_DATES:
        return DATE_MAX
    return DATE_MAX if days > DATE_MAX else DATE_MIN


def clamped_micros(micros: int) -> int:
    """Saturate microseconds since 1970 to the lake's range, infinities included."""
    if _MINUS_INFINITY < micros < _EARLIEST_MICROS:
        # PostgreSQL has nothing that early: a year above 292277 has overflowed on its way.
        return MICROS_MAX
    return min(max(micros, MICROS_MIN), MICROS_MAX)


def clamped_zoned(text: str) -> str:
    """Saturate an ISO timestamp whose year has a sign, or that is `infinity`."""
    if text.startswith("-"):
        return "0001-01-01T00:00:00Z"
    if text.startswith(("+", "i")):
        return "9999-12-31T23:59:59.999999Z"
    return text if not text.startswith("0000") else "0001-01-01T00:00:00Z"


def lost_date(days: int) -> str | None:
    """Return PostgreSQL's text of a date that the lake cannot hold, None of any other."""
    if DATE_MIN <= days <= DATE_MAX:
        return None
    if _EARLIEST_DATE <= days <= _LATEST_DATE:
        return date_text(days)
    return "infinity" if days in _INFINITE_DATES else "-infinity"


def lost_micros(micros: int, *, zoned: bool) -> str | None:
    """Return PostgreSQL's text of a timestamp that the lake cannot hold, None of any other."""
    if MICROS_MIN <= micros <= MICROS_MAX:
        return None
    if micros in _MINUS_INFINITE_MICROS:
        return "-infinity"
    if micros in _INFINITE_MICROS:
        return "infinity"
    # PostgreSQL has nothing that early: a year above 294247 has overflowed on its way.
    return timestamp_text(micros if micros >= _EARLIEST_MICROS else micros + 2**64, zoned=zoned)


def lost_zoned(text: str) -> str | None:
    """Return PostgreSQL's text of an ISO timestamp that the lake cannot hold, None of any other."""
    if not text.startswith(("-", "+", "i", "0000")):
        return None
    if text.endswith("infinity"):
        return text
    sign = "-" if text.startswith("-") else ""
    year, rest = text.removeprefix(sign).removeprefix("+").split("-", 1)
    number = int(f"{sign}{year}")
    date, clock = rest.removesuffix("Z").split("T")
    hours, _, seconds = clock.partition(".")
    exact = f"{hours if hours.count(':') == 2 else hours + ':00'}"
    fraction = f".{seconds}".rstrip("0").rstrip(".")
    era = "" if number > 0 else " BC"
    return f"{number if number > 0 else 1 - number:04d}-{date} {exact}{fraction}+00{era}"


def bits_text(little_endian: bytes, length: int | None) -> str:
    """Render a bit string as PostgreSQL does, `0101`; Debezium sends its bytes reversed."""
    number = int.from_bytes(little_endian, "little")
    return format(number, f"0{length}b") if length else format(number, "b")


def unscaled(value: bytes, scale: int) -> Decimal:
    """Make a decimal of Avro's big-endian two's complement bytes, at any precision."""
    number = int.from_bytes(value, "big", signed=True)
    digits = tuple(int(digit) for digit in str(abs(number)))
    return Decimal((1 if number < 0 else 0, digits, -scale))
