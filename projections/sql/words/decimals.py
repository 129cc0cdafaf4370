"""Types of numbers: how many digits they have, and the one that holds the values of several."""

from __future__ import annotations

import re
from collections.abc import Sequence

FLOATING = ("FLOAT", "DOUBLE", "REAL")
INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
MOST_DIGITS = 38
EXACT_DIGITS = 15
"""A decimal of no more digits is the nearest double after one division by a power of ten."""
DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
"""What Spark takes whole numbers for beside a decimal. Literals are taken as short as they are."""


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return how many digits a decimal or a whole number has, and how many behind the point."""
    size = DECIMAL.fullmatch(kind)
    if size is not None:
        return int(size[1]), int(size[2])
    return (_DIGITS[kind], 0) if kind in _DIGITS else None


def common_type(kinds: Sequence[str]) -> str:
    """Return the type of a choice among values of these types; the empty text if it is not sure."""
    known = set(kinds)
    if len(known) == 1:
        return known.pop()
    if not known:
        return ""
    if all(kind in INTEGERS for kind in known):
        return max(known, key=INTEGERS.index)
    if all(kind in INTEGERS + FLOATING for kind in known):
        return "DOUBLE"
    sizes = [size for size in map(digits_of, known) if size is not None]
    if len(sizes) < len(known):
        return ""
    scale = max(size[1] for size in sizes)
    digits = max(size[0] - size[1] for size in sizes) + scale
    return f"DECIMAL({digits},{scale})" if digits <= MOST_DIGITS else ""


def rounded_type(left: str, right: str) -> str:
    """Return the decimal that Spark compares two in where none holds both, else the empty text.

    Digits behind the point are left out, so that those before it have room.
    """
    sizes = [digits_of(kind) for kind in (left, right) if DECIMAL.fullmatch(kind)]
    known = [size for size in sizes if size is not None]
    if len(known) < 2:
        return ""
    whole = max(size - scale for size, scale in known)
    beyond = whole + max(scale for _, scale in known) - MOST_DIGITS
    return f"DECIMAL({MOST_DIGITS},{MOST_DIGITS - whole})" if beyond > 0 else ""
