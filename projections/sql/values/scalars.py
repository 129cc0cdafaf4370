"""All functions of Spark that the small executor computes: of text, numbers, times, and casts."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.values import (
    scalar_casts,
    scalar_decimals,
    scalar_numbers,
    scalar_texts,
    scalar_times,
)
from projections.sql.values.scalar import Scalar, TypeOf

_CLASSES = {
    **scalar_texts.CLASSES,
    **scalar_numbers.CLASSES,
    **scalar_decimals.CLASSES,
    **scalar_times.CLASSES,
    **scalar_casts.CLASSES,
}
_NAMED = {**scalar_texts.NAMED, **scalar_numbers.NAMED, **scalar_times.NAMED}


def scalar_of(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Return the call that a node is; None for what other code knows, or Spark alone."""
    named = isinstance(node, exp.Anonymous)
    rule = _NAMED.get(node.name.lower()) if named else _CLASSES.get(type(node))
    return rule(node, types) if rule is not None else None
