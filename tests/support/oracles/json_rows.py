"""What a JSON object looks like as a row of a typed table."""

from __future__ import annotations

from typing import Any

from schemas.lake_columns import event_columns


def meant(value: Any) -> Any:
    """Return what a row can show: nulls, and objects and lists of nothing else, are no column."""
    match value:
        case dict():
            kept = {key: meant(item) for key, item in value.items()}
            return {key: item for key, item in kept.items() if item is not None} or None
        case list():
            items = [meant(item) for item in value]
            return items if any(item is not None for item in items) else None
        case _:
            return value


def shown(row: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return what a row shows of `fields`, the names with which its type was told."""
    columns = zip(fields, event_columns(fields), strict=True)
    return meant({name: row.get(column) for name, column in columns}) or {}


def same(shown: Any, told: Any) -> bool:
    """Compare, where a whole number may be read as the double next to it: as Avro reads it."""
    match shown, told:
        case dict(), dict():
            return shown.keys() == told.keys() and all(same(shown[k], told[k]) for k in told)
        case list(), list():
            return len(shown) == len(told) and all(map(same, shown, told))
        case float(), int():
            return shown == float(told)
        case _:
            return bool(shown == told)
