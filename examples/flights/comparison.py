"""Two tables compared row by row: what is missing, what is too much, what differs.

Exact by default, because the figures are sums of whole numbers divided once. A column that adds up
floating-point numbers in no fixed order may be given a relative tolerance, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from schemas.identifiers import duckdb_name

_SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableComparison:
    """How two tables compare. Rows are counted by key; `samples` shows some that do not agree."""

    name: str
    expected_rows: int
    actual_rows: int
    missing: int
    extra: int
    differing: int
    repeated_keys: int
    samples: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both hold the same rows, each key once."""
        return not (self.missing or self.extra or self.differing or self.repeated_keys)

    def describe(self) -> str:
        """Say the outcome in one line."""
        if self.equal:
            return f"{self.actual_rows:,} rows, all equal"
        return (
            f"{self.actual_rows:,} rows, expected {self.expected_rows:,}: "
            f"{self.missing:,} missing, {self.extra:,} too many, {self.differing:,} differ, "
            f"{self.repeated_keys:,} keys repeated"
        )


def compare(
    name: str,
    expected: pa.Table,
    actual: pa.Table,
    *,
    key: Sequence[str],
    tolerance: Mapping[str, float] | None = None,
) -> TableComparison:
    """Compare `actual` with `expected` over the columns of `expected`, by `key`, nulls equal.

    Whole numbers of any width are equal by value, times by instant. Columns that only `actual`
    has are left out; one that it lacks makes every row differ. `tolerance` is relative, per column.
    """
    lacking = [column for column in expected.column_names if column not in actual.column_names]
    if lacking:
        return _incomparable(name, expected, actual, lacking)
    db = duckdb.connect(config={"threads": 2})
    db.execute("SET TimeZone = 'UTC'")
    db.register("expected", expected)
    db.register("actual", actual.select(expected.column_names))
    same = " AND ".join(_same(column, tolerance or {}) for column in expected.column_names)
    names = [duckdb_name(column) for column in key]
    joined = " AND ".join(f"e.{name} IS NOT DISTINCT FROM a.{name}" for name in names)
    keys = ", ".join(names)
    db.execute(
        "CREATE TABLE verdict AS SELECT CASE WHEN a.found IS NULL THEN 'missing' "
        f"WHEN e.found IS NULL THEN 'extra' WHEN NOT ({same}) THEN 'differs' END AS verdict, "
        "e::VARCHAR AS expected, a::VARCHAR AS actual "
        "FROM (SELECT *, 1 AS found FROM expected) AS e "
        f"FULL JOIN (SELECT *, 1 AS found FROM actual) AS a ON {joined}"
    )
    counted = dict(
        db.execute(
            "SELECT verdict, count(*) FROM verdict WHERE verdict IS NOT NULL GROUP BY ALL"
        ).fetchall()
    )
    repeated = _one(
        db, f"SELECT count(*) FROM (SELECT {keys} FROM actual GROUP BY ALL HAVING count(*) > 1)"
    )
    samples = db.execute(
        "SELECT verdict || CASE WHEN verdict = 'extra' THEN '' ELSE ': expected ' || expected END "
        "|| CASE WHEN verdict = 'missing' THEN '' ELSE ': found ' || actual END "
        f"FROM verdict WHERE verdict IS NOT NULL LIMIT {_SAMPLES}"
    ).fetchall()
    return TableComparison(
        name=name,
        expected_rows=expected.num_rows,
        actual_rows=actual.num_rows,
        missing=counted.get("missing", 0),
        extra=counted.get("extra", 0),
        differing=counted.get("differs", 0),
        repeated_keys=repeated,
        samples=tuple(str(row[0]) for row in samples),
    )


def _same(column: str, tolerance: Mapping[str, float]) -> str:
    left, right = f"e.{duckdb_name(column)}", f"a.{duckdb_name(column)}"
    exact = f"{left} IS NOT DISTINCT FROM {right}"
    if column not in tolerance:
        return exact
    allowed = f"{tolerance[column]!r} * greatest(1.0, abs({left}), abs({right}))"
    return f"({exact} OR coalesce(abs({left} - {right}) <= {allowed}, false))"


def _incomparable(
    name: str, expected: pa.Table, actual: pa.Table, lacking: Sequence[str]
) -> TableComparison:
    return TableComparison(
        name=name,
        expected_rows=expected.num_rows,
        actual_rows=actual.num_rows,
        missing=0,
        extra=0,
        differing=max(1, expected.num_rows),
        repeated_keys=0,
        samples=(f"columns missing: {', '.join(lacking)}",),
    )


def _one(db: duckdb.DuckDBPyConnection, query: str) -> int:
    row = db.execute(query).fetchone()
    return int(row[0]) if row else 0
