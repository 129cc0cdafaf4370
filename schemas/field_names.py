"""The names of a schema's fields, where Avro could not write them as they are.

A column `order-id` travels as `order_id`, or as `order_id_2` beside another of that name, and its
real name beside it, in the parameters of its type. Whoever reads a schema for its fields reads it
here, so that rows, keys and shapes all carry the names that the source's columns have.
"""

from __future__ import annotations

import json
from typing import Any

NAME = "penstock.name"
"""Parameter that holds the real name of a field."""


def parsed(schema_json: str) -> Any:
    """Parse a schema and give its fields their real names. Raises `ValueError`."""
    if NAME not in schema_json:
        return json.loads(schema_json)
    return json.loads(schema_json, object_hook=_renamed)


def _renamed(found: dict[str, Any]) -> dict[str, Any]:
    kind = found.get("type")
    for branch in kind if isinstance(kind, list) else [kind]:
        if isinstance(branch, dict) and "name" in found:
            real = (branch.get("connect.parameters") or {}).get(NAME)
            if real is not None:
                return found | {"name": real}
    return found
