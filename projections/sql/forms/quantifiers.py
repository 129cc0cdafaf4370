"""Comparisons with ANY, SOME and ALL of several values, as comparisons with one of them.

What is greater than ANY of some values is greater than the least of them; what is greater than ALL
is greater than the greatest, unless one of them is not known, or there are none. In a condition of
WHERE or HAVING, or of AND and OR in it, it is of no matter whether it is false or not known.
Elsewhere it is a value, NULL where one that is not known might decide it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from projections.sql.values.expressions import unwrapped
from projections.sql.words.tokens import SPARK, spark_expression

_DENIED: Mapping[type[exp.Expr], type[exp.Binary]] = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.GT: exp.LTE,
    exp.GTE: exp.LT,
    exp.LT: exp.GTE,
    exp.LTE: exp.GT,
}
COMPARISONS = tuple(_DENIED)
_UP = (exp.GT, exp.GTE)
_ELEMENT = "penstock_element"
"""The argument of a lambda: a query has no such name."""


def compared(node: exp.Expr) -> exp.Expr | None:
    """Write `x > ANY (…)` and its like; None for a comparison that is none of these."""
    several = _several(node.expression)
    if not isinstance(several, exp.Any | exp.All):
        return None
    query = _query_of(several)
    if query is None:
        return _with_elements(node, several)
    any_of = isinstance(several, exp.Any)
    if isinstance(node, exp.EQ) and any_of:
        return exp.In(this=node.this, query=exp.Subquery(this=query))
    if isinstance(node, exp.NEQ) and not any_of:
        return exp.Not(this=exp.In(this=node.this, query=exp.Subquery(this=query)))
    if _is_asked(node):
        return _with_extremes(node, query, any_of=any_of)
    return None if _is_denied(node) else _as_value(node, query, any_of=any_of)


def denied(node: exp.Expr) -> exp.Expr | None:
    """Write NOT x > ANY (…) as x <= ALL (…), and the other way round."""
    inner = unwrapped(node.this)
    several = inner.expression if isinstance(inner, exp.Binary) else None
    if type(inner) not in _DENIED or not isinstance(several, exp.Any | exp.All):
        return None
    if _query_of(several) is None or not _is_asked(node):
        return None
    other = (exp.All if isinstance(several, exp.Any) else exp.Any)(this=several.this.copy())
    made = _DENIED[type(inner)](this=inner.this.copy(), expression=other)
    holder = exp.Where(this=made)
    found = compared(made)
    holder.set("this", None)
    return None if found is None else exp.Paren(this=found)


def is_aggregate(node: exp.Expr) -> exp.Expr | None:
    """Read ANY(x > 3) and SOME(x > 3) behind no comparison: whether it is so of one row."""
    if isinstance(node.parent, exp.Binary | exp.Predicate):
        return None
    return exp.LogicalOr(this=unwrapped(node.this))


def _several(side: exp.Expr) -> exp.Expr:
    """Return what is behind a comparison, ALL of values that are written out as such."""
    if isinstance(side, exp.Anonymous) and side.name.upper() == "ALL":
        one = len(side.expressions) == 1
        return exp.All(this=side.expressions[0] if one else exp.Tuple(expressions=side.expressions))
    return side


def _query_of(several: exp.Expr) -> exp.Expr | None:
    query = unwrapped(several.this)
    query = query.this if isinstance(query, exp.Subquery) else query
    return query if isinstance(query, exp.Query) else None


def _with_elements(node: exp.Expr, several: exp.Expr) -> exp.Expr | None:
    """Write a comparison with the elements of an array, or with values that are written out."""
    any_of = isinstance(several, exp.Any)
    equal = isinstance(node, exp.EQ) and any_of
    among = equal or (isinstance(node, exp.NEQ) and not any_of)
    given = unwrapped(several.this)
    if isinstance(given, exp.Literal | exp.Neg):
        given = exp.Tuple(expressions=[given])
    if not isinstance(given, exp.Tuple | exp.Array):
        return _with_array(node, given, any_of=any_of, among=among)
    if not given.expressions:
        return exp.false() if any_of else exp.true()
    if among:
        made: exp.Expr = exp.In(this=node.this, expressions=given.expressions)
        return made if equal else exp.Not(this=made)
    each = [type(node)(this=node.this.copy(), expression=one) for one in given.expressions]
    return exp.Paren(this=exp.or_(*each) if any_of else exp.and_(*each))


def _with_array(node: exp.Expr, array: exp.Expr, *, any_of: bool, among: bool) -> exp.Expr:
    if among:
        made = _call("array_contains", array, node.this)
        return made if any_of else exp.Not(this=made)
    element = exp.column(_ELEMENT)
    one = type(node)(this=node.this.copy(), expression=element)
    asked = exp.Lambda(this=one, expressions=[exp.to_identifier(_ELEMENT)])
    return _call("exists" if any_of else "forall", array, asked)


def _call(name: str, *parts: exp.Expr) -> exp.Expr:
    text = ", ".join(str(each.sql(dialect=SPARK, comments=False)) for each in parts)
    return spark_expression(f"{name}({text})")


def _as_value(node: exp.Expr, query: exp.Expr, *, any_of: bool) -> exp.Expr | None:
    """Write a comparison that is true, false, or not known."""
    rows = _selected(query, lambda _: exp.Count(this=exp.Star()))
    known = _selected(query, lambda value: exp.Count(this=value.copy()))
    asked = _asked_of_extremes(node, query, any_of=any_of, known=False)
    if rows is None or known is None or asked is None:
        return None
    number = exp.Subquery(this=rows)
    decided = asked if any_of else exp.Not(this=asked)
    branches = (
        (exp.EQ(this=number, expression=exp.Literal.number(0)), exp.Boolean(this=not any_of)),
        (decided, exp.Boolean(this=any_of)),
        (exp.GT(this=number.copy(), expression=exp.Subquery(this=known)), exp.Null()),
    )
    ifs = [exp.If(this=condition, true=value) for condition, value in branches]
    return exp.Paren(this=exp.Case(ifs=ifs, default=asked.copy()))


def _asked_of_extremes(
    node: exp.Expr, query: exp.Expr, *, any_of: bool, known: bool
) -> exp.Expr | None:
    """Write the comparison with the least or the greatest value, or with both."""
    kind = type(node)
    if kind in (exp.EQ, exp.NEQ):
        both = [_with_one(node, query, each, known=known) for each in (exp.Min, exp.Max)]
        return None if None in both else exp.Paren(this=(exp.or_ if any_of else exp.and_)(*both))
    least = any_of == (kind in _UP)
    one = _with_one(node, query, exp.Min if least else exp.Max, known=known)
    return None if one is None else exp.Paren(this=one)


def _with_extremes(node: exp.Expr, query: exp.Expr, *, any_of: bool) -> exp.Expr | None:
    made = _asked_of_extremes(node, query, any_of=any_of, known=not any_of)
    if any_of or made is None:
        return made
    number = _selected(query, lambda value: exp.Count(this=exp.Star()))
    if number is None:
        return None
    none = exp.EQ(this=exp.Subquery(this=number), expression=exp.Literal.number(0))
    return exp.Paren(this=exp.or_(made, none))


def _with_one(
    node: exp.Expr, query: exp.Expr, extreme: type[exp.Expr], *, known: bool
) -> exp.Expr | None:
    """Compare with the least or greatest of some values; `known`: if none of them is NULL."""

    def value(of: exp.Expr) -> exp.Expr:
        made = extreme(this=of.copy())
        if not known:
            return made
        all_known = exp.EQ(this=exp.Count(this=exp.Star()), expression=exp.Count(this=of.copy()))
        return exp.Case(ifs=[exp.If(this=all_known, true=made)])

    one = _selected(query, value)
    if one is None:
        return None
    return type(node)(this=node.this.copy(), expression=exp.Subquery(this=one))


def _selected(query: exp.Expr, value: Callable[[exp.Expr], exp.Expr]) -> exp.Select | None:
    """Return a query of one value that is made of the only column of another one."""
    further = ("group", "having", "qualify", "distinct", "limit", "offset", "with_")
    items = query.expressions if isinstance(query, exp.Select) else []
    plain = not any(query.args.get(each) for each in further)
    if len(items) == 1 and plain and not items[0].find(exp.AggFunc, exp.Window, exp.Star):
        made = query.copy()
        made.set("expressions", [value(items[0].unalias())])
        return made if isinstance(made, exp.Select) else None
    name = "penstock_values"
    rows = exp.Subquery(
        this=query.copy(),
        alias=exp.TableAlias(this=exp.to_identifier(name), columns=[exp.to_identifier(name)]),
    )
    return exp.Select(expressions=[value(exp.column(name, table=name))], from_=exp.From(this=rows))


def _is_asked(found: exp.Expr) -> bool:
    """Say whether a condition that is not known is as good as one that does not hold."""
    node = found
    while isinstance(node.parent, exp.And | exp.Or | exp.Paren):
        node = node.parent
    return isinstance(node.parent, exp.Where | exp.Having)


def _is_denied(found: exp.Expr) -> bool:
    """Say whether a comparison stands behind a NOT that is asked, which reads it itself."""
    node = found
    while isinstance(node.parent, exp.Paren):
        node = node.parent
    return isinstance(node.parent, exp.Not) and _is_asked(node.parent)
