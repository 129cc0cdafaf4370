"""PostgreSQL's numerics as decimals of the lake, and those that a column's decimal is none of.

A `numeric(10, 2)` may be NaN. Beyond that a column holds what its type says, unless rows are read
under another type than the one they were written with: an infinity, or digits that the decimal has
no place for. Such a value is never rounded: its column holds null, and `_exact` its text.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

from schemas.pg_exact import ExactReading
from schemas.pg_types import DECIMAL_DIGITS

_LONGEST_TEXT = DECIMAL_DIGITS + len("-.")


def decimals(texts: pa.Array, kind: pa.DataType) -> ExactReading:
    """Read numerics as the decimal `kind`. Raises `ValueError` for what is no number."""
    if not has_long(texts):
        try:
            return ExactReading(texts.cast(kind))
        except pa.ArrowInvalid:
            pass
    words = texts.to_pylist()
    values = [None if word is None else decimal_in(word, kind) for word in words]
    lost = [value is None and word is not None for value, word in zip(values, words, strict=True)]
    return ExactReading(pa.array(values, kind), pa.array(lost, pa.bool_()) if any(lost) else None)


def has_long(texts: pa.Array) -> bool:
    """Say whether a text is longer than any decimal or moment of the lake.

    The connector writes a numeric(5, -2) with 2046 zeros behind its point, and Arrow's cast makes a
    decimal zero of that without a word.
    """
    return bool((pc.max(pc.binary_length(texts)).as_py() or 0) > _LONGEST_TEXT)


def decimal_in(text: str, kind: pa.DataType) -> Decimal | None:
    """Return the number exactly as `kind` has it, None where it has none.

    Raises `ValueError` for what is no number.
    """
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a number") from error
    if not number.is_finite():
        return None
    if not number:
        return Decimal(0)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    figures = "".join(map(str, digits)).lstrip("0")
    short = figures.rstrip("0")
    exponent += len(figures) - len(short)
    places = exponent + kind.scale
    if places < 0 or len(short) + places > kind.precision:
        return None
    return Decimal((sign, tuple(map(int, short)), exponent))
