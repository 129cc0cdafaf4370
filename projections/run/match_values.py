"""Values of a pattern's rows: how they are ordered, compared, added up and divided, as in SQL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from kernel.errors import InvalidRequest

_LEAST, _GREATEST = -(2**63), 2**63 - 1


def sortable(value: Any) -> tuple[Any, ...]:
    """Return what orders values of one column, NULL last, NaN behind all numbers."""
    if value is None:
        return (1,)
    if isinstance(value, float):
        return (0, math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value))
    return (0, value)


def total_of(values: Sequence[Any]) -> Any:
    """Add values, floating-point numbers in ascending order so that the sum is always the same.

    A total begins with 0: there is no zero with a sign.
    """
    first, *others = sorted(values, key=sortable)
    for value in others:
        first = first + value
    return first + 0.0 if isinstance(first, float) else _in_range(first)


def _in_range(value: Any) -> Any:
    if isinstance(value, int) and not _LEAST <= value <= _GREATEST:
        raise InvalidRequest("a whole number in a pattern is too large", remedy="Use DOUBLE.")
    return value


def _compared(holds: Callable[[int], bool]) -> Callable[[Any, Any], Any]:
    def compare(one: Any, other: Any) -> Any:
        return None if one is None or other is None else holds(_order_of(one, other))

    return compare


def _order_of(one: Any, other: Any) -> int:
    """Return below, equal or above zero; NaN equals itself and is above all other numbers."""
    one, other = _alike(one, other)
    nan = [isinstance(each, float) and math.isnan(each) for each in (one, other)]
    if any(nan):
        return int(nan[0]) - int(nan[1])
    return int(one > other) - int(one < other)


def _alike(one: Any, other: Any) -> tuple[Any, Any]:
    """Return two values as they are compared and computed: any number beside a double as one."""
    if isinstance(one, float) or isinstance(other, float):
        return float(one), float(other)
    return one, other


def _computed(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def both(one: Any, other: Any) -> Any:
        if one is None or other is None:
            return None
        return _in_range(compute(*_alike(one, other)))

    return both


def quotient(one: Any, other: Any) -> Any:
    """Divide two numbers that are known. Raises `InvalidRequest` for a divisor of zero."""
    if other == 0:
        raise InvalidRequest("division by zero in a pattern", remedy="Test the divisor first.")
    one, other = _alike(one, other)
    if isinstance(one, Decimal) or isinstance(other, Decimal):
        return one / other
    return float(one) / float(other)


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return _order_of(one, other) == 0


OPERATORS: dict[str, Callable[..., Any]] = {
    "not": lambda one: None if one is None else not one,
    "=": _compared(lambda order: order == 0),
    "<>": _compared(lambda order: order != 0),
    ">": _compared(lambda order: order > 0),
    ">=": _compared(lambda order: order >= 0),
    "<": _compared(lambda order: order < 0),
    "<=": _compared(lambda order: order <= 0),
    "<=>": _same,
    "+": _computed(lambda one, other: one + other),
    "-": _computed(lambda one, other: one - other),
    "*": _computed(lambda one, other: one * other),
    "/": _computed(quotient),
    "neg": lambda one: None if one is None else -one,
    "abs": lambda one: None if one is None else abs(one),
    "length": lambda one: one,
    "is null": lambda one: one is None,
}
"""Operators by their signs, for values that may be None."""
