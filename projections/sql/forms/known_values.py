"""Which expressions are NULL in no row that a query leaves, by what its WHERE and HAVING say."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.forms.grouping_sets import has_sets
from projections.sql.values.expressions import conjuncts, same_text, unwrapped

_COMPARED = (
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.Like, exp.RegexpLike, exp.In, exp.Between),
)
"""Conditions that do not hold where what they compare is NULL, nor does their negation."""


def gives_values(query: exp.Select) -> bool:
    """Say whether the one column of a query is NULL in none of its rows."""
    value = query.expressions[0].unalias()
    if isinstance(value, exp.Count | exp.CountIf | exp.Literal):
        return True
    # A group of a smaller set has NULL in the place of what it is not by.
    parts = (*conditions_in(query, "where"), *conditions_in(query, "having"))
    return not has_sets(query) and has_value(query, value, parts)


def has_value(select: exp.Select, value: exp.Expr, conditions: Sequence[exp.Expr]) -> bool:
    """Say whether an expression over the inputs of a SELECT is not NULL where conditions hold."""
    text = _plain(select, value)
    return any(text == _plain(select, side) for part in conditions for side in _with_values(part))


def _with_values(condition: exp.Expr) -> list[exp.Expr]:
    """Return expressions that are not NULL where a condition holds."""
    condition = unwrapped(condition)
    negated = isinstance(condition, exp.Not)
    inner = unwrapped(condition.this) if negated else condition
    if isinstance(inner, exp.Is):
        known = negated and isinstance(inner.expression, exp.Null)
        return [inner.this] if known else []
    if not isinstance(inner, _COMPARED) or (negated and inner.args.get("query")):
        return []  # Nothing at all is NOT IN no rows.
    return [each for each in (inner.this, inner.args.get("expression")) if each is not None]


def _plain(select: exp.Select, node: exp.Expr) -> str:
    """Return the text of an expression, without the alias of the only input."""
    first = select.args.get("from_")
    table = None if first is None or select.args.get("joins") else first.this
    of = table.this if isinstance(table, exp.Stream) else table
    alias = "" if of is None else str(of.alias_or_name).lower()

    def bare(found: exp.Expr) -> exp.Expr:
        if not isinstance(found, exp.Column):
            return found
        parts = [part.name.lower() for part in found.parts]
        own = len(parts) > 1 and parts[0] == alias
        return exp.column(".".join(parts[1:] if own else parts), quoted=True)

    return same_text(node.copy().transform(bare))


def conditions_in(select: exp.Select, clause: str) -> tuple[exp.Expr, ...]:
    """Return the parts of WHERE or HAVING that are joined by AND."""
    found = select.args.get(clause)
    return conjuncts(found.this if found is not None else None)
