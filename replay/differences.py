"""What a comparison of two tables' rows found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How a column differs in rows that both tables have.

    `rows`: in how many. `greatest`: the greatest absolute difference of numbers. `key`, `live` and
    `built` show one of them.
    """

    name: str
    rows: int
    greatest: float | None
    key: str
    live: str | None
    built: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDifferences:
    """What two tables' rows have in common and what not.

    `missing`: keys that only the live table has; `extra`: that only the built one has; `differing`:
    keys of both with different rows. `repeated_keys`: rows too many for their key, in either.
    `expected`: missing, extra and differing keys for which the predicate holds.
    """

    live_rows: int
    built_rows: int
    live_hash: str
    built_hash: str
    missing: int
    extra: int
    differing: int
    repeated_keys: int
    expected: int
    drift: tuple[Drift, ...]
    examples: tuple[Mapping[str, object], ...]
