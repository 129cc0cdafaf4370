"""Functions of Spark over single values, where DuckDB has none that gives the same.

Each takes and gives what the names in `projections.sql` say; NULL never reaches them. Sources:
Spark 4.2's `UTF8String`, `Cast`, `SparkDateTimeUtils` and `mathExpressions`, by their behaviour.
"""

from __future__ import annotations

import decimal
import hashlib
import math
import re
import zlib
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache

from projections.sql.words.spark_times import CONTROLS

_LONGEST_SCALE = 39
_ROOM = decimal.Context(prec=1200)
_HEX_DOUBLE = re.compile(r"[+-]?0[xX][0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
_NAMED_DOUBLES = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity"), math.inf),
    **dict.fromkeys(("-inf", "-infinity"), -math.inf),
    "nan": math.nan,
}
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_JAVA_BLANKS = "".join(map(chr, range(0x21)))
_NEW_CAPITALS = {
    **dict([(0x019B, 0xA7DC), (0x0264, 0xA7CB), (0x1C8A, 0x1C89)]),
    **{small: small - 1 for small in (0xA7CD, 0xA7CF, 0xA7D3, 0xA7D5, 0xA7DB)},
    **{small: small - 0x20 for small in range(0x10D70, 0x10D86)},
    **{small: small - 0x1B for small in range(0x16EBB, 0x16ED4)},
}
"""Small letters and their capitals since Unicode 15, which Spark has and Python may not have."""
_NEW_SMALL = {capital: small for small, capital in _NEW_CAPITALS.items()}
_TRUE = ("t", "true", "y", "yes", "1")
_FALSE = ("f", "false", "n", "no", "0")


def upper(text: str) -> str:
    """Write in capitals, by the full mapping of Unicode."""
    return text.translate(_NEW_CAPITALS).upper()


def lower(text: str) -> str:
    """Write in small letters, by the full mapping of Unicode."""
    return text.translate(_NEW_SMALL).lower()


def reverse(text: str) -> str:
    """Turn the code points around."""
    return text[::-1]


def octets(text: str) -> int:
    """Count the bytes in UTF-8."""
    return len(text.encode())


def crc32(text: str) -> int:
    """Return the checksum of the bytes in UTF-8."""
    return zlib.crc32(text.encode())


def sha(bits: int, text: str) -> str:
    """Return a digest of the bytes in UTF-8, in hexadecimal digits."""
    return hashlib.new(f"sha{bits}", text.encode()).hexdigest()


def trim(text: str, cut: str) -> str:
    """Cut characters off both ends."""
    return text.strip(cut) if cut else text


def ltrim(text: str, cut: str) -> str:
    """Cut characters off the beginning."""
    return text.lstrip(cut) if cut else text


def rtrim(text: str, cut: str) -> str:
    """Cut characters off the end."""
    return text.rstrip(cut) if cut else text


def substring(text: str, position: int, length: int) -> str:
    """Take a part: positions begin at 1, 0 is 1, negative ones count from the end."""
    size = len(text)
    start = position - 1 if position > 0 else size + position if position < 0 else 0
    end = start + length if length < 2**31 - 1 else size
    return text[max(start, 0) : max(end, 0)] if end > start else ""


def translate(text: str, old: str, new: str) -> str:
    """Replace characters by those of the same place; by nothing where there is none."""
    table: dict[str, str] = {}
    for place, char in enumerate(old):
        table.setdefault(char, new[place] if place < len(new) else "")
    return "".join(table.get(char, char) for char in text)


def _filling(text: str, size: int, fill: str) -> str | None:
    missing = size - len(text)
    if size <= 0 or missing <= 0 or not fill:
        return None
    return (fill * (missing // len(fill) + 1))[:missing]


def lpad(text: str, size: int, fill: str) -> str:
    """Fill up in front to a size; what is longer is cut off."""
    filling = _filling(text, size, fill)
    return text[: max(size, 0)] if filling is None else filling + text


def rpad(text: str, size: int, fill: str) -> str:
    """Fill up behind to a size; what is longer is cut off."""
    filling = _filling(text, size, fill)
    return text[: max(size, 0)] if filling is None else text + filling


def locate(text: str, part: str, start: int) -> int:
    """Return where a part stands from a position on, 0 where it does not."""
    if start < 1:
        return 0
    return 1 if not part else text.find(part, start - 1) + 1


def repeat(text: str, times: int) -> str:
    """Write a text several times."""
    return text * max(times, 0)


def substring_index(text: str, by: str, count: int) -> str:
    """Return what stands in front of the n-th delimiter; behind it, counted from the end."""
    if not by or not count:
        return ""
    at = -1 if count > 0 else len(text) - len(by) + 1
    for _ in range(abs(count)):
        at = text.find(by, at + 1) if count > 0 else text.rfind(by, 0, at - 1 + len(by))
        if at < 0:
            return text
    return text[:at] if count > 0 else text[at + len(by) :]


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def rlike(text: str, pattern: str) -> bool:
    """Say whether a translated pattern fits somewhere."""
    return _compiled(pattern).search(text) is not None


def extract(text: str, pattern: str, group: int) -> str:
    """Return a group of the first find, the empty text where there is none."""
    found = _compiled(pattern).search(text)
    return (found[group] or "") if found is not None else ""


def replaced(text: str, pattern: str, new: str) -> str:
    """Replace every find of a translated pattern."""
    return _compiled(pattern).sub(new, text)


def rounded(number: float, places: int) -> float:
    """Round the decimal that a double is written as, halves away from 0."""
    if not math.isfinite(number):
        return number
    exact = Decimal(repr(number)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP, _ROOM)
    # A decimal has no zero with a sign.
    return float(exact) + 0.0


def _saturated(number: float) -> int:
    if math.isnan(number):
        return 0
    return int(max(min(number, 2.0**63), -(2.0**63))) if math.isinf(number) else int(number)


def floor(number: float) -> int:
    """Round down to a BIGINT, which is the nearest one for what is beyond it."""
    return _bounded(math.floor(number) if math.isfinite(number) else _saturated(number))


def ceil(number: float) -> int:
    """Round up to a BIGINT, which is the nearest one for what is beyond it."""
    return _bounded(math.ceil(number) if math.isfinite(number) else _saturated(number))


def _bounded(number: int) -> int:
    return max(min(number, 2**63 - 1), -(2**63))


def whole(number: float, bits: int) -> int:
    """Cut the fraction off. Raises `ValueError` for what is beyond so many bits."""
    size = 1 << (bits - 1)
    # As in Spark, the greatest BIGINT is taken for the double that it is nearest to.
    most, least = float(size - 1), float(-size)
    if not (math.isfinite(number) and math.floor(number) <= most and math.ceil(number) >= least):
        raise ValueError(f"{number!r} is beyond an integer of {bits} bits")
    return max(min(int(number), size - 1), -size)


def cast_whole(text: str, bits: int) -> int:
    """Read a whole number of so many bits. Raises `ValueError`."""
    inner = text.strip(CONTROLS)
    if not re.fullmatch(r"[+-]?[0-9]+", inner) or not _fits(int(inner), bits):
        raise ValueError(f"{text!r} is no integer of {bits} bits")
    return int(inner)


def _fits(number: int, bits: int) -> bool:
    size = 1 << (bits - 1)
    return -size <= number < size


def cast_double(text: str) -> float:
    """Read a double as Java does, and the names of infinity and NaN. Raises `ValueError`."""
    inner = text.strip(_JAVA_BLANKS)
    if _DOUBLE.fullmatch(inner):
        sign = inner[0] if inner[0] in "+-" else ""
        bare = inner.removeprefix(sign)
        if bare in ("NaN", "Infinity"):
            return float(sign + bare)
        return float(inner.rstrip("fFdD"))
    if _HEX_DOUBLE.fullmatch(inner):
        return float.fromhex(inner)
    named = _NAMED_DOUBLES.get(inner.lower())
    if named is None:
        raise ValueError(f"{text!r} is no DOUBLE")
    return named


def cast_boolean(text: str) -> bool:
    """Read a truth value. Raises `ValueError`."""
    inner = text.strip(CONTROLS).lower()
    if inner not in (*_TRUE, *_FALSE):
        raise ValueError(f"{text!r} is no BOOLEAN")
    return inner in _TRUE


def cast_decimal(text: str, digits: int, scale: int) -> str:
    """Read a decimal and round it, halves away from 0, to its text. Raises `ValueError`."""
    inner = text.strip(_JAVA_BLANKS)
    if not _DECIMAL.fullmatch(inner):
        raise ValueError(f"{text!r} is no number")
    number = Decimal(inner)
    if number.adjusted() >= digits - scale and number:
        raise ValueError(f"{text!r} is beyond DECIMAL({digits},{scale})")
    if number.adjusted() < -scale - 1:
        return "0"
    exact = number.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _ROOM)
    if exact.adjusted() >= digits - scale and exact:
        raise ValueError(f"{text!r} is beyond DECIMAL({digits},{scale})")
    return f"{exact:f}"


def divided(dividend: str, divisor: str, digits: int, scale: int) -> str:
    """Divide decimals; round to a scale, halves away from 0. Raises `ArithmeticError`."""
    if not Decimal(divisor):
        raise ArithmeticError("division by zero")
    # Spark rounds to 39 digits behind the point first.
    long = _rounded_quotient(Decimal(dividend), Decimal(divisor), _LONGEST_SCALE)
    exact = long.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _ROOM)
    if exact and exact.adjusted() >= digits - scale:
        raise ArithmeticError(f"{exact} is beyond DECIMAL({digits},{scale})")
    return f"{exact:f}"


def _rounded_quotient(dividend: Decimal, divisor: Decimal, scale: int) -> Decimal:
    # `abs` would round what has more than 28 digits.
    top, bottom = (each.copy_abs().as_integer_ratio() for each in (dividend, divisor))
    above, below = top[0] * bottom[1] * 10**scale, top[1] * bottom[0]
    units = (2 * above + below) // (2 * below)
    sign = -1 if (dividend < 0) != (divisor < 0) else 1
    return Decimal(sign * units).scaleb(-scale, _ROOM)


def nearest_double(decimal_text: str) -> float:
    """Return the double that is nearest to a decimal."""
    return float(decimal_text)
