"""What Debezium means by its Avro: semantic types, the unchanged mark, values beyond the lake.

Debezium names the meaning of a field in `connect.name` and, because capture asks for it, the
source's own type, length and scale in `connect.parameters`. Numerics travel as text: only text
keeps NaN, infinities and any scale.

The lake's dates and timestamps hold the years 1 to 9999: what engines and Python agree on. The
infinities of PostgreSQL and years outside saturate to the first or last moment of that range; the
log keeps the original bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

PLACEHOLDER = "__penstock_unchanged__"
"""What the connector writes for a large value that an UPDATE left alone (unchanged TOAST)."""

DATE_MIN, DATE_MAX = -719162, 2932896
MICROS_MIN, MICROS_MAX = -62135596800000000, 253402300799999999

_INFINITE_DATES = frozenset((-622191234, 2146033979))
"""+infinity as Debezium's snapshot and its stream write it; every other one below is -infinity."""

_MINUS_INFINITY = -(2**63)
_EARLIEST_MICROS = -210866803200000000

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
        # Debezium reads a negative scale as an 11-bit number: numeric(5,-2) has 2046.
        scale = self.scale - 2048 if self.scale > 1023 else self.scale
        precision = max(self.length - min(scale, 0), scale)
        return (precision, max(scale, 0)) if 0 < precision <= 38 else None


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


def numeric_text(text: str) -> str:
    """Write a numeric as PostgreSQL does: `NaN` and `Infinity` instead of Debezium's words."""
    return _SPECIAL.get(text, text)


def decimal_of(text: str, scale: int) -> Decimal | None:
    """Parse a numeric of a declared scale. NaN, which no decimal column can hold, becomes None."""
    if text in _SPECIAL:
        return None
    if scale == 0:
        return Decimal(text.partition(".")[0])
    return Decimal(text)


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


def time_text(micros: int) -> str:
    """Render microseconds of a day as PostgreSQL does: `12:34:56.789`, `24:00:00`."""
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    return text if fraction == 0 else f"{text}.{fraction:06d}".rstrip("0")


def bits_text(little_endian: bytes, length: int | None) -> str:
    """Render a bit string as PostgreSQL does, `0101`; Debezium sends its bytes reversed."""
    number = int.from_bytes(little_endian, "little")
    return format(number, f"0{length}b") if length else format(number, "b")


def unscaled(value: bytes, scale: int) -> Decimal:
    """Make a decimal of Avro's big-endian two's complement bytes, at any precision."""
    number = int.from_bytes(value, "big", signed=True)
    digits = tuple(int(digit) for digit in str(abs(number)))
    return Decimal((1 if number < 0 else 0, digits, -scale))
