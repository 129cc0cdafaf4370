"""What the headers of an event's record say, read from their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

DEEPEST = 500
"""Levels of objects and lists in metadata; the service takes far fewer."""


class Unusable(Exception):
    """Carries the reason why a record is no event; never leaves the decoding of events."""


def metadata_of(text: str | None) -> Mapping[str, object]:
    """Read the header `metadata`: a JSON object, empty where there is none."""
    parsed = orjson.loads(text) if text else {}
    if not isinstance(parsed, dict):
        raise Unusable("header metadata is not a JSON object")
    if text and text.count("[") + text.count("{") > DEEPEST and _is_deep(parsed):
        raise Unusable(f"header metadata is nested more than {DEEPEST} deep")
    return parsed


def _is_deep(parsed: object) -> bool:
    """Say whether a value is nested so deep that whoever writes it again may run out of stack."""
    level: list[Any] = [parsed]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [v for each in inner for v in each if isinstance(v, (dict, list))]
        if not level:
            return False
    return True


def tags_of(text: str | None) -> tuple[str, ...]:
    """Read the header `tags`: a JSON array of texts, empty where there is none."""
    parsed = orjson.loads(text) if text else []
    if not isinstance(parsed, list) or not all(isinstance(tag, str) for tag in parsed):
        raise Unusable("header tags is not a JSON array of texts")
    return tuple(parsed)
