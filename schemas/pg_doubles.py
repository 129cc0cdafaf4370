"""Double precision numbers as PostgreSQL prints them, and the geometric values made of them.

The connector sends geometric values with Java's numbers; the lake holds PostgreSQL's text.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

_NUMBER = re.compile(r"[^()\[\]{}<>,]+")
_WHOLE, _TIED = 2.0**52, 1e40
"""Between these a number of 17 digits may lie exactly half-way between two doubles."""


def geometry_text(text: str) -> str:
    """Write the numbers of a geometric value as PostgreSQL does: Java's `1.0E20` is its `1e+20`."""
    return _NUMBER.sub(lambda number: double_text(float(number[0])), text)


def double_text(value: float) -> str:
    """Print a double as PostgreSQL does with extra_float_digits above 0.

    Shortest digits that lie strictly nearer to this double than to any other (Python also takes
    those exactly half-way), with an exponent below 1e-04 and from 1e+15 on.
    """
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    digits, exponent = _shortest(abs(value))
    if -4 <= exponent < 15:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole, rest = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
        return f"{sign}{whole}.{rest}" if rest else f"{sign}{whole}"
    rest = f".{digits[1:]}" if digits[1:] else ""
    return f"{sign}{digits[0]}{rest}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _shortest(value: float) -> tuple[str, int]:
    """Return the digits, without zeros at their end, and the exponent of the first one."""
    text = f"{value!r}"
    places = len(text.partition("e")[0].strip("0.").replace(".", ""))
    while _WHOLE <= value < _TIED and _half_way(text, value):
        text = f"{value:.{places}e}"
        places += 1
    mantissa, _, exponent = text.partition("e")
    whole, _, rest = mantissa.partition(".")
    digits = (whole + rest).lstrip("0")
    leading = len(whole) - 1 if whole != "0" else len(digits) - len(rest) - 1
    return digits.rstrip("0") or "0", leading + int(exponent or 0) if digits else 0


def _half_way(text: str, value: float) -> bool:
    found, exact = Fraction(text), Fraction(value)
    return float(text) != value or any(
        2 * found == exact + Fraction(math.nextafter(value, end)) for end in (0.0, math.inf)
    )
