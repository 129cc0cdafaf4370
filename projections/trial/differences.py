"""Expected rows beside found ones: what is missing, what is too much, which columns differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from projections.trial.inputs import Row

NEAR = 1e-9
"""Floating-point numbers that differ by less than this share of them are written as the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One row that is not as expected. A missing one has no `found`, an extra one no `expected`."""

    key: Row
    expected: Row | None
    found: Row | None

    @property
    def kind(self) -> str:
        """Return `missing`, `extra` or `changed`."""
        if self.found is None:
            return "missing"
        return "extra" if self.expected is None else "changed"

    @property
    def line(self) -> str:
        """Return the difference as people read it."""
        if self.expected is not None and self.found is not None:
            parts = [
                f"{name} is {shown(self.found[name])}, expected {shown(value)}"
                for name, value in self.expected.items()
                if not alike(value, self.found[name])
            ]
            return f"changed  {_listed(self.key)}: {'; '.join(parts)}"
        return f"{self.kind:<8} {_listed(self.expected or self.found or {})}"


def differences(
    expected: Sequence[Row], found: Sequence[Row], key: Sequence[str]
) -> list[Difference]:
    """Compare rows by key. Both have the same columns; `expected` has each key once."""
    wanted = {_identity(row, key): row for row in expected}
    had = {_identity(row, key): row for row in found}
    made = []
    for identity in [*wanted, *(each for each in had if each not in wanted)]:
        one, other = wanted.get(identity), had.get(identity)
        if one is None or other is None or not all(alike(one[n], other[n]) for n in one):
            named = one or other or {}
            made.append(
                Difference(key={name: named[name] for name in key}, expected=one, found=other)
            )
    return made


def alike(one: object, other: object) -> bool:
    """Say whether two values are written as the same."""
    if isinstance(one, float) and isinstance(other, float | int):
        both_nan = math.isnan(one) and math.isnan(other)
        return both_nan or one == other or math.isclose(one, other, rel_tol=NEAR)
    return one == other


def shown(value: object) -> str:
    """Write a value as a test file does."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case datetime():
            return f"'{value.replace(tzinfo=None).isoformat(sep=' ')}'"
        case int() | float():
            return str(value)
        case _:
            return f"'{value}'"


def _listed(row: Row) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in row.items())


def _identity(row: Row, key: Sequence[str]) -> tuple[object, ...]:
    return tuple(row[name] for name in key)
