"""EXISTS and IN (SELECT …) as parts of conditions, and as values: by numbers of rows."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.expressions import unwrapped
from projections.sql.known_values import conditions_in
from projections.sql.scalar_subqueries import aliases_of, reads

_NONE = exp.Literal.number(0)


def counted(select: exp.Select) -> exp.Select:
    """Write EXISTS and IN (SELECT …) that are parts of other conditions by numbers of rows.

    Where it matters whether `x IN (SELECT …)` is false or not known, three numbers say so.
    """
    made = select.copy()
    parts = [*made.expressions, *conditions_in(made, "where")]
    # A condition by itself is a join, which may say more than what is equated.
    whole = {id(bare(part)) for part in conditions_in(made, "where")}
    for part in parts:
        for found in [*part.find_all(exp.Exists, exp.In)]:
            query = found.this if isinstance(found, exp.Exists) else found.args.get("query")
            if id(found) in whole or not isinstance(query, exp.Query):
                continue
            if found.find_ancestor(exp.Select) is not made:
                continue
            denied = above(found)
            if isinstance(found, exp.In) and isinstance(denied, exp.Not) and is_asked(denied):
                number = _none_of(found, query)
                if number is not None:
                    denied.replace(exp.Paren(this=number))
                continue
            if not is_asked(found):
                value = None if _reads_around(query, made) else _known_among(found, query)
                if value is not None:
                    found.replace(exp.Paren(this=value))
                continue
            number = _number_of(found, query)
            if number is not None:
                found.replace(exp.Paren(this=exp.GT(this=number, expression=_NONE.copy())))
    return made


def _reads_around(query: exp.Expr, select: exp.Select) -> bool:
    """Say whether a subquery reads columns of the query around it, by their aliases."""
    rows = query.this if isinstance(query, exp.Subquery) else query
    return reads(rows, aliases_of(select) - aliases_of(rows))


def bare(part: exp.Expr) -> exp.Expr:
    """Return a condition without brackets and NOT."""
    part = unwrapped(part)
    return unwrapped(part.this) if isinstance(part, exp.Not) else part


def is_asked(found: exp.Expr) -> bool:
    """Say whether a condition that is not known is as good as one that does not hold."""
    if isinstance(found, exp.Exists):
        return True  # It is always known.
    node = found
    while isinstance(node.parent, exp.And | exp.Or | exp.Paren):
        node = node.parent
    above = node.parent
    if not isinstance(above, exp.If) or node.arg_key != "this":
        return isinstance(above, exp.Where)
    # CASE x WHEN … compares with what is not known.
    return not isinstance(above.parent, exp.Case) or above.parent.args.get("this") is None


def above(found: exp.Expr) -> exp.Expr | None:
    """Return what stands around an expression and its brackets."""
    above = found.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    return above


def _number_of(found: exp.Expr, query: exp.Expr) -> exp.Subquery | None:
    """Return how many rows there are for EXISTS, or of those that are equal for IN."""
    query = query.this if isinstance(query, exp.Subquery) else query
    if not isinstance(query, exp.Select):
        return None
    count = exp.Count(this=exp.Star())
    if isinstance(found, exp.Exists):
        further = ("group", "having", "qualify", "limit")
        if any(query.args.get(each) for each in further) or has_aggregates(query):
            return None
        counted = query.copy()
        counted.set("expressions", [count])
        counted.set("distinct", None)
        return exp.Subquery(this=counted)
    if len(query.expressions) != 1:
        return None
    rows = named_rows(query, "penstock_in")
    equal = exp.EQ(
        this=exp.column("penstock_in", table="penstock_in"), expression=found.this.copy()
    )
    counted = exp.Select(
        expressions=[count], from_=exp.From(this=rows), where=exp.Where(this=equal)
    )
    return exp.Subquery(this=counted)


def _none_of(found: exp.In, query: exp.Expr) -> exp.Expr | None:
    """Return that a value is NOT IN rows: there are none, or it and they are known to differ."""
    numbers = _numbers(found, query)
    if numbers is None:
        return None
    none, no_null, differ = (exp.EQ(this=number, expression=_NONE.copy()) for number in numbers)
    value = exp.Paren(this=found.this.copy())
    known = exp.Not(this=exp.Is(this=value, expression=exp.Null()))
    return exp.or_(none, exp.and_(known, no_null, differ))


def _known_among(found: exp.In, query: exp.Expr) -> exp.Expr | None:
    """Return whether a value is IN rows, NULL where that is not known."""
    numbers = _numbers(found, query)
    if numbers is None:
        return None
    rows, nulls, equal = numbers
    unknown = exp.Is(this=exp.Paren(this=found.this.copy()), expression=exp.Null())
    some_null = exp.GT(this=nulls, expression=_NONE.copy())
    branches: tuple[tuple[exp.Expr, exp.Expr], ...] = (
        (exp.EQ(this=rows, expression=_NONE.copy()), exp.false()),
        (exp.GT(this=equal, expression=_NONE.copy()), exp.true()),
        (exp.or_(unknown, some_null), exp.Null()),
    )
    ifs = [exp.If(this=condition, true=value) for condition, value in branches]
    return exp.Case(ifs=ifs, default=exp.false())


def _numbers(found: exp.In, query: exp.Expr) -> list[exp.Subquery] | None:
    """Return how many rows there are, how many are NULL, and how many equal a value."""
    equal = _number_of(found, query)
    query = query.this if isinstance(query, exp.Subquery) else query
    if equal is None or not isinstance(query, exp.Select):
        return None
    null = exp.Is(this=exp.column("penstock_in", table="penstock_in"), expression=exp.Null())
    rows = exp.From(this=named_rows(query, "penstock_in"))
    count = exp.Count(this=exp.Star())
    return [
        exp.Subquery(this=exp.Select(expressions=[count], from_=rows)),
        exp.Subquery(
            this=exp.Select(
                expressions=[count.copy()], from_=rows.copy(), where=exp.Where(this=null)
            )
        ),
        equal,
    ]


def has_aggregates(query: exp.Select) -> bool:
    """Say whether a query computes totals."""
    return any(each.find(exp.AggFunc) for each in query.expressions)


def named_rows(query: exp.Select, name: str) -> exp.Subquery:
    """Return a query of one column as a table, both under a name that no other query has."""
    query = query.copy()
    query.set("expressions", [exp.alias_(query.expressions[0].unalias().copy(), name)])
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name)))
