"""Objects of a request's body, all of whose fields are known."""

from __future__ import annotations

from typing import Any

from kernel.errors import InvalidRequest
from schemas.json_values import shown


def known_object(value: object, place: str, keys: frozenset[str], example: str) -> dict[str, Any]:
    """Return an object that has no other fields. Raises `InvalidRequest`, with an example."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{place}: expected an object", remedy=example)
    unknown = value.keys() - keys
    if unknown:
        raise InvalidRequest(
            f"{place}: unknown field {shown(min(unknown))}",
            remedy=f"The fields are: {', '.join(sorted(keys))}",
        )
    return value
