"""What the headers of an event's record say, read from their texts."""

from __future__ import annotations

from collections.abc import Mapping

import orjson


class Unusable(Exception):
    """Carries the reason why a record is no event; never leaves the decoding of events."""


def metadata_of(text: str | None) -> Mapping[str, object]:
    """Read the header `metadata`: a JSON object, empty where there is none."""
    parsed = orjson.loads(text) if text else {}
    if not isinstance(parsed, dict):
        raise Unusable("header metadata is not a JSON object")
    return parsed


def tags_of(text: str | None) -> tuple[str, ...]:
    """Read the header `tags`: a JSON array of texts, empty where there is none."""
    parsed = orjson.loads(text) if text else []
    if not isinstance(parsed, list) or not all(isinstance(tag, str) for tag in parsed):
        raise Unusable("header tags is not a JSON array of texts")
    return tuple(parsed)
