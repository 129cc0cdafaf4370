"""EXISTS and IN (SELECT …) as parts of conditions, and as values: by numbers of rows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.forms.comma_joins import alias_of_input
from projections.sql.forms.correlations import reads
from projections.sql.forms.known_values import conditions_in
from projections.sql.forms.scalar_subqueries import aliases_of
from projections.sql.values.expressions import unwrapped

_NONE = exp.Literal.number(0)
_FURTHER = ("group", "having", "qualify", "limit", "offset", "with_")


def counted(select: exp.Select) -> exp.Select:
    """Write EXISTS and IN (SELECT …) that are parts of other conditions by numbers of rows.

    As in Spark these are true or false: where it is not known whether a value is among rows, both
    `x IN (SELECT …)` and `x NOT IN (SELECT …)` are false. What is denied together with others, as
    in `NOT (a OR x IN (SELECT …))`, is NOT IN.
    """
    made = select.copy()
    around = aliases_of(made)
    # A condition by itself is a join, which may say more than what is equated.
    whole = {id(bare(part)) for part in conditions_in(made, "where")}
    for part in [*made.expressions, *conditions_in(made, "where")]:
        for found in [*part.find_all(exp.Exists, exp.In)]:
            query = found.this if isinstance(found, exp.Exists) else found.args.get("query")
            query = query.this if isinstance(query, exp.Subquery) else query
            if id(found) in whole or not isinstance(query, exp.Select):
                continue
            if found.find_ancestor(exp.Select) is made:
                holds = _holds(found, query, around - aliases_of(query))
                if holds is not None:
                    found.replace(exp.Paren(this=holds))
    return made


def _holds(found: exp.Expr, query: exp.Select, outside: set[str]) -> exp.Expr | None:
    """Return a condition on numbers of rows; None for a query that is refused where it is read."""
    if isinstance(found, exp.Exists):
        number = _number_of_any(query)
        return None if number is None else _some(number)
    given = found.this.expressions if isinstance(found.this, exp.Tuple) else [found.this]
    values = [exp.Paren(this=each.copy()) for each in given]
    if len(query.expressions) != len(values):
        return None
    if not _is_denied(found):
        return _some(_number_of(query, outside, equal_to=values))
    if len(values) > 1:
        # It is not known to be different from a row that may be the same.
        return _some(_number_of(query, outside, equal_to=values, or_unknown=True))
    (value,) = values
    none = exp.EQ(this=_number_of(query, outside), expression=_NONE.copy())
    known = exp.Not(this=exp.Is(this=value, expression=exp.Null()))
    no_null = exp.EQ(
        this=_number_of(query, outside, equal_to=[exp.Null()]), expression=_NONE.copy()
    )
    differ = exp.EQ(this=_number_of(query, outside, equal_to=values), expression=_NONE.copy())
    return exp.Not(this=exp.Paren(this=exp.or_(none, exp.and_(known, no_null, differ))))


def _some(number: exp.Expr) -> exp.Expr:
    return exp.GT(this=number, expression=_NONE.copy())


def _is_denied(found: exp.Expr) -> bool:
    """Say whether a condition counts if it does not hold: by NOT, and what NOT is of."""
    denied, node = False, found
    while isinstance(node.parent, exp.And | exp.Or | exp.Paren | exp.Not):
        node = node.parent
        denied ^= isinstance(node, exp.Not)
    return denied


def bare(part: exp.Expr) -> exp.Expr:
    """Return a condition without brackets and NOT."""
    part = unwrapped(part)
    return unwrapped(part.this) if isinstance(part, exp.Not) else part


def above(found: exp.Expr) -> exp.Expr | None:
    """Return what stands around an expression and its brackets."""
    above = found.parent
    while isinstance(above, exp.Paren):
        above = above.parent
    return above


def _number_of_any(query: exp.Select) -> exp.Subquery | None:
    """Return how many rows EXISTS has; None for a query of groups or of some of its rows."""
    further = ("group", "having", "qualify", "limit")
    if any(query.args.get(each) for each in further) or has_aggregates(query):
        return None
    counted = query.copy()
    counted.set("expressions", [exp.Count(this=exp.Star())])
    counted.set("distinct", None)
    return exp.Subquery(this=counted)


def _number_of(
    query: exp.Select,
    outside: set[str],
    *,
    equal_to: Sequence[exp.Expr] = (),
    or_unknown: bool = False,
) -> exp.Subquery:
    """Return how many rows a query has, those alone whose columns are some values if given.

    Where it reads the query around it, `outside`, what it says of that stays in its own WHERE.
    `or_unknown`: a column counts too of which it is not known whether it is the value.
    """
    count = exp.Count(this=exp.Star())
    items = [each.unalias() for each in query.expressions]
    plain = not any(query.args.get(each) for each in _FURTHER)
    computed = any(each.find(exp.AggFunc, exp.Window, exp.Query) for each in items)
    if plain and not computed and reads(query, outside):
        counted, own = query.copy(), [with_alias(each, query) for each in items]
        counted.set("expressions", [count])
        counted.set("distinct", None)
    else:
        rows, own = named_columns(query, "penstock_in")
        counted = exp.Select(expressions=[count], from_=exp.From(this=rows))
    for side, value in zip(own, equal_to, strict=False):
        null = isinstance(value, exp.Null)
        sides = [exp.Paren(this=side), value.copy()]
        met: exp.Expr = (exp.Is if null else exp.EQ)(this=sides[0], expression=sides[1])
        if or_unknown:
            unknown = [exp.Is(this=each.copy(), expression=exp.Null()) for each in sides]
            met = exp.Paren(this=exp.or_(met, *unknown))
        counted.where(met, copy=False)
    return exp.Subquery(this=counted)


def named_columns(query: exp.Select, name: str) -> tuple[exp.Subquery, list[exp.Expr]]:
    """Return a query as a table, and its columns: names that no other query has."""
    if len(query.expressions) == 1:
        return named_rows(query, name), [exp.column(name, table=name)]
    rows = query.copy()
    names = [f"{name}_{place}" for place in range(len(query.expressions))]
    items = zip(rows.expressions, names, strict=True)
    rows.set("expressions", [exp.alias_(each.unalias().copy(), own) for each, own in items])
    table = exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier(name)))
    return table, [exp.column(own, table=name) for own in names]


def with_alias(item: exp.Expr, query: exp.Select) -> exp.Expr:
    """Return an expression with the alias of the only input of its query before its columns."""
    first = query.args.get("from_")
    if first is None or query.args.get("joins"):
        return item.copy()
    alias = exp.to_identifier(alias_of_input(first.this), quoted=True)

    def named(node: exp.Expr) -> exp.Expr:
        alone = isinstance(node, exp.Column) and len(node.parts) == 1
        return exp.column(node.this.copy(), table=alias.copy()) if alone else node

    return item.copy().transform(named)


def has_aggregates(query: exp.Select) -> bool:
    """Say whether a query computes totals."""
    return any(each.find(exp.AggFunc) for each in query.expressions)


def named_rows(query: exp.Select, name: str) -> exp.Subquery:
    """Return a query of one column as a table, both under a name that no other query has."""
    query = query.copy()
    query.set("expressions", [exp.alias_(query.expressions[0].unalias().copy(), name)])
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name)))
