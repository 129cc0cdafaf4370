"""Words in which the engines of a fold differ. What a fold says is the same for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lake.quoting import as_json
from schemas.identifiers import duckdb_name, spark_name

KEY_TEXT = "__key"
"""Column of incoming rows, for DuckDB: the key as Spark renders it (`key_texts`)."""


class FoldDialect(Protocol):
    """The SQL of one engine."""

    def name(self, name: str) -> str:
        """Quote the name of a column."""
        ...

    def row(self, values: str) -> str:
        """Return one value made of several, which is compared value by value."""
        ...

    def key_text(self, key: Sequence[str]) -> str:
        """Return the expression for an incoming row's key as JSON."""
        ...


class SparkDialect:
    """The words of Spark."""

    def name(self, name: str) -> str:
        """See `FoldDialect`."""
        return spark_name(name)

    def row(self, values: str) -> str:
        """See `FoldDialect`."""
        return f"struct({values})"

    def key_text(self, key: Sequence[str]) -> str:
        """See `FoldDialect`."""
        return as_json(key)


class DuckDialect:
    """The words of DuckDB."""

    def name(self, name: str) -> str:
        """See `FoldDialect`."""
        return duckdb_name(name)

    def row(self, values: str) -> str:
        """See `FoldDialect`."""
        return f"row({values})"

    def key_text(self, key: Sequence[str]) -> str:
        """See `FoldDialect`; its own text of a number or a moment is another one."""
        return KEY_TEXT


def listed(dialect: FoldDialect, names: Sequence[str], alias: str | None = None) -> str:
    """Quote several, separated by commas, each behind an alias where one is given."""
    prefix = f"{alias}." if alias else ""
    return ", ".join(prefix + dialect.name(name) for name in names)


def equal(dialect: FoldDialect, names: Sequence[str], left: str, right: str) -> str:
    """Compare columns of two aliases; null equals null."""
    quoted = map(dialect.name, names)
    return " AND ".join(f"{left}.{n} IS NOT DISTINCT FROM {right}.{n}" for n in quoted)
