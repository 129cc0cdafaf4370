"""Words in which the engines of a fold differ. What a fold says is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lake.quoting import as_json
from schemas.identifiers import duckdb_name, spark_name

KEY_TEXT = "__key"
"""Column of incoming rows, for DuckDB: the key as Spark renders it (`key_texts`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldDialect:
    """The SQL of one engine.

    `name` quotes a column, `row_of` makes one value of several, which is compared value by value,
    `key_text` is the expression for an incoming row's key as JSON.
    """

    name: Callable[[str], str]
    row_of: str
    key_text: Callable[[Sequence[str]], str]

    def row(self, values: str) -> str:
        """Return one value made of several."""
        return f"{self.row_of}({values})"


SPARK = FoldDialect(name=spark_name, row_of="struct", key_text=as_json)
# Its own text of a number or a moment is another one.
DUCKDB = FoldDialect(name=duckdb_name, row_of="row", key_text=lambda key: KEY_TEXT)


def listed(dialect: FoldDialect, names: Sequence[str], alias: str | None = None) -> str:
    """Quote several, separated by commas, each behind an alias where one is given."""
    prefix = f"{alias}." if alias else ""
    return ", ".join(prefix + dialect.name(name) for name in names)


def equal(dialect: FoldDialect, names: Sequence[str], left: str, right: str) -> str:
    """Compare columns of two aliases; null equals null."""
    quoted = map(dialect.name, names)
    return " AND ".join(f"{left}.{n} IS NOT DISTINCT FROM {right}.{n}" for n in quoted)
