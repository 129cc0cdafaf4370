"""The formats of DATE_FORMAT that both engines write alike: fields of one width, separators."""

from __future__ import annotations

import re

from sqlglot import exp

YEAR = "yyyy"
FIELDS = {
    YEAR: "year",
    "MM": "month",
    "dd": "day",
    "HH": "hour",
    "mm": "minute",
    "ss": "second",
}
"""The words of a format, and the fields of a time that they stand for."""
_PARTS = re.compile(r"(?P<letter>[A-Za-z])(?P=letter)*|[^A-Za-z]+")
_SEPARATORS = re.compile(r"[-/:._ ]*")


def moment_formatted(node: exp.Expr) -> exp.Expr:
    """Return the moment that DATE_FORMAT writes; the parser puts a conversion around it."""
    inner: exp.Expr = node.this
    return inner.this if isinstance(inner, exp.TimeStrToTime) else inner


def format_parts(node: exp.Expr) -> list[str] | None:
    """Return the fields and separators of a DATE_FORMAT in their order; None for other formats."""
    written = node.args.get("format")
    if not isinstance(written, exp.Literal) or not written.is_string:
        return None
    # The same letter again makes another word: `yyyyy` is no `yyyy` with something behind it.
    parts = [found[0] for found in _PARTS.finditer(written.name)]
    known = all(part in FIELDS or _SEPARATORS.fullmatch(part) for part in parts)
    return parts if known and parts else None
