"""Lists of columns as Spark SQL takes them."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.identifiers import spark_name


def listed(names: Sequence[str], alias: str | None = None) -> str:
    """Quote several, separated by commas, each behind an alias where one is given."""
    prefix = f"{alias}." if alias else ""
    return ", ".join(prefix + spark_name(name) for name in names)


def equal(names: Sequence[str], left: str, right: str) -> str:
    """Compare columns of two aliases; null equals null."""
    return " AND ".join(f"{left}.{spark_name(n)} <=> {right}.{spark_name(n)}" for n in names)


def as_json(names: Sequence[str]) -> str:
    """Render columns as one JSON object. Times keep their microseconds; nulls are left out."""
    moment = "yyyy-MM-dd HH:mm:ss.SSSSSS"
    return (
        f"to_json(struct({listed(names)}), map('timestampFormat', '{moment}xxx', "
        f"'timestampNTZFormat', '{moment}'))"
    )
