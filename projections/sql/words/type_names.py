"""How types are called: one name for each, as Spark has it."""

from __future__ import annotations

import re

_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DECIMAL = re.compile(r"(DECIMAL|DEC|NUMERIC)(\((?P<size>\d+)(,(?P<scale>\d+))?\))?")


def normal(text: str) -> str:
    """Return a plain type's name in upper case without spaces; nested types as they are."""
    if "<" in text:
        return text
    upper = "".join(text.upper().split())
    decimal = _DECIMAL.fullmatch(upper)
    if decimal is not None:
        # What is not said of its size is Spark's default; other engines have others.
        return f"DECIMAL({decimal['size'] or 10},{decimal['scale'] or 0})"
    return _ALIASES.get(upper, upper)
