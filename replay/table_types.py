"""Types of a table's columns, as Delta's log says them: the same whoever wrote the table."""

from __future__ import annotations

import json
from typing import Any

from deltalake import DeltaTable


def type_texts(table: DeltaTable) -> dict[str, str]:
    """Return each column's type as text, as in `decimal(10,2)`, `struct<a:long>`."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return {str(field["name"]): _text(field["type"]) for field in fields}


def _text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            inner = (f"{each['name']}:{_text(each['type'])}" for each in kind["fields"])
            return f"struct<{','.join(inner)}>"
        case "array":
            return f"array<{_text(kind['elementType'])}>"
        case _:
            return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
