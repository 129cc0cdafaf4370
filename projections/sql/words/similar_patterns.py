"""Patterns of SIMILAR TO, which fit whole texts, as regular expressions of Java."""

from __future__ import annotations

import re

_ANY = "(?:.|[\\n\\r\u0085\u2028\u2029])"
"""Any character: to Java a dot is none that ends a line."""
_SIGNS = {"%": f"{_ANY}*", "_": _ANY, **{sign: sign for sign in "()|*+?"}}
_SET = re.compile(r"\[\^?[^\[\]\\&]+\]")
_DOUBLED = re.compile(r"\(\?|[%*+?}][*+?{]")
"""What is no group, and what is repeated twice: a `%` is repeated by itself."""
_TIMES = re.compile(r"\{[0-9]{1,4}(,[0-9]{0,4})?\}")
"""How often something is repeated. To Java any other `{` is an error, when rows are computed."""


def java_pattern(pattern: str) -> str | None:
    """Return the expression that finds what a pattern fits; None for one that is not read.

    Not read are backslashes, which some take for an escape, classes by name, as `[:alpha:]`, and
    patterns that are none.
    """
    if "\\" in pattern or _DOUBLED.search(pattern):
        return None
    found: list[str] = []
    at = 0
    while at < len(pattern):
        sign = pattern[at]
        members = _SET.match(pattern, at)
        if members is not None:
            found.append(members[0])
            at = members.end()
            continue
        times = _TIMES.match(pattern, at)
        if times is not None:
            found.append(times[0])
            at = times.end()
            continue
        if sign in "[]{}":
            return None
        found.append(_SIGNS.get(sign) or re.escape(sign))
        at += 1
    made = f"^(?:{''.join(found)})\\z"
    try:
        re.compile(made.replace("\\z", "\\Z"))
    except re.error:
        return None
    return made
