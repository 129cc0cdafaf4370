"""What DuckDB calls the types of Spark."""

from __future__ import annotations

from projections.sql.words.nested_types import ArrayOf, MapOf, StructOf, nested_of
from schemas.identifiers import duckdb_name

_NAMES = {"STRING": "VARCHAR", "BINARY": "BLOB"}


def duckdb_type(kind: str) -> str:
    """Return DuckDB's name of a type of Spark that it holds."""
    nested = nested_of(kind)
    match nested:
        case None:
            return _NAMES.get(kind, kind)
        case ArrayOf():
            return f"{duckdb_type(nested.element)}[]"
        case MapOf():
            return f"MAP({duckdb_type(nested.key)}, {duckdb_type(nested.value)})"
        case StructOf():
            fields = (f"{duckdb_name(name)} {duckdb_type(each)}" for name, each in nested.fields)
            return f"STRUCT({', '.join(fields)})"
