"""Types of a table's columns, as Delta's log says them: the same whoever wrote the table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeDifference:
    """A column's types in Delta's words; None where a table lacks the column."""

    name: str
    live: str | None
    built: str | None


def type_differences(live: DeltaTable, built: DeltaTable) -> tuple[TypeDifference, ...]:
    """Return the columns, hidden ones too, that a table lacks or has with another type."""
    return differences(_texts(live), _texts(built))


def differences(live: Mapping[str, str], built: Mapping[str, str]) -> tuple[TypeDifference, ...]:
    """Return the columns that one side lacks or has with another type, those of `live` first."""
    return tuple(
        TypeDifference(name=name, live=live.get(name), built=built.get(name))
        for name in dict.fromkeys([*live, *built])
        if live.get(name) != built.get(name)
    )


def _texts(table: DeltaTable) -> dict[str, str]:
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
