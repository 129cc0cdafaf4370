"""EXISTS, IN and their negations in WHERE, as the joins that they are.

`x NOT IN (SELECT y …)` is not known where `x` or a `y` is NULL, and what is not known is left out:
one `y` that is NULL leaves no row, one `y` at all leaves no row whose `x` is NULL. These are anti
joins of their own, with one row that is there as long as there is such a `y`. They are left out
where WHERE says that there is no NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.expressions import conjuncts, same_text, unwrapped
from projections.sql.grouping_sets import has_sets
from projections.sql.places import Script, offset_of
from projections.sql.scalar_subqueries import of_one_row

_COMPARED = (
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.Like, exp.RegexpLike, exp.In, exp.Between),
)
"""Conditions that do not hold where what they compare is NULL, nor does their negation."""
_ALL = exp.Literal.string("all")


def without_subqueries(script: Script, select: exp.Select, at: int) -> exp.Select:
    """Write EXISTS and IN (SELECT …) in WHERE as semi joins, their negations as anti joins."""
    parts = _conditions(select, "where")
    kept: list[exp.Expr] = []
    made: list[exp.Join] = []
    for part in parts:
        joins = _as_joins(script, select, part, len(made), at)
        made += joins
        kept += [] if joins else [part]
    if not made:
        return select
    changed = select.copy()
    changed.set("joins", [*(changed.args.get("joins") or []), *made])
    rest = exp.and_(*kept, copy=True) if kept else None
    changed.set("where", exp.Where(this=rest) if rest is not None else None)
    return changed


def _as_joins(
    script: Script, select: exp.Select, part: exp.Expr, number: int, at: int
) -> list[exp.Join]:
    part = unwrapped(part)
    negated = isinstance(part, exp.Not)
    inner = unwrapped(part.this) if negated else part
    if isinstance(inner, exp.Exists):
        return [_exists(script, inner, "ANTI" if negated else "SEMI", at)]
    if not isinstance(inner, exp.In) or not inner.args.get("query"):
        return []
    query = inner.args["query"].this
    given: Sequence[exp.Expr] = query.expressions if isinstance(query, exp.Select) else ()
    if len(given) != 1:
        word = "NOT IN" if negated else "IN"
        raise script.refusal(
            f"{word} (SELECT …) compares with one column",
            at=offset_of(inner, at),
            fix="Select one column, or write LEFT ANTI JOIN."
            if negated
            else "Select one column, or write LEFT SEMI JOIN.",
        )
    name = f"penstock_in_{number}"
    rows = _named(query, name)
    value = inner.this
    equal = exp.EQ(this=value.copy(), expression=exp.column(name, table=name))
    joins = [exp.Join(this=rows, side="LEFT", kind="ANTI" if negated else "SEMI", on=equal)]
    if negated and not _gives_values(query):
        joins.append(_unless_null(rows, name))
    if negated and not _has_value(select, value, _conditions(select, "where")):
        joins.append(_unless_any(rows, name, value))
    return joins


def _named(query: exp.Select, name: str) -> exp.Subquery:
    """Return a query of one column as a table, both under a name that no other query has."""
    query = query.copy()
    query.set("expressions", [exp.alias_(query.expressions[0].unalias().copy(), name)])
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name)))


def _unless_null(rows: exp.Subquery, name: str) -> exp.Join:
    """Leave no row while one of `rows` is NULL."""
    null = exp.Is(this=exp.column(name, table=name), expression=exp.Null())
    table = _one_row(rows, f"{name}_null", null)
    return of_one_row(exp.Join(this=table, side="LEFT", kind="ANTI"))


def _unless_any(rows: exp.Subquery, name: str, value: exp.Expr) -> exp.Join:
    """Leave no row whose value is NULL while there is one of `rows`."""
    table = _one_row(rows, f"{name}_any", None)
    null = exp.Is(this=exp.Paren(this=value.copy()), expression=exp.Null())
    unknown = exp.Case(ifs=[exp.If(this=null, true=_ALL.copy())])
    met = exp.EQ(this=unknown, expression=exp.column(f"{name}_any", table=f"{name}_any"))
    return exp.Join(this=table, side="LEFT", kind="ANTI", on=met)


def _one_row(rows: exp.Subquery, name: str, where: exp.Expr | None) -> exp.Subquery:
    """Return a table with one row as long as there is one for which a condition holds."""
    query = exp.Select(
        expressions=[exp.alias_(_ALL.copy(), name)],
        from_=exp.From(this=rows.copy()),
        where=None if where is None else exp.Where(this=where),
        group=exp.Group(expressions=[_ALL.copy()]),
    )
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name)))


def _gives_values(query: exp.Select) -> bool:
    """Say whether the one column of a query is NULL in none of its rows."""
    value = query.expressions[0].unalias()
    if isinstance(value, exp.Count | exp.CountIf | exp.Literal):
        return True
    # A group of a smaller set has NULL in the place of what it is not by.
    parts = (*_conditions(query, "where"), *_conditions(query, "having"))
    return not has_sets(query) and _has_value(query, value, parts)


def _has_value(select: exp.Select, value: exp.Expr, conditions: Sequence[exp.Expr]) -> bool:
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


def _conditions(select: exp.Select, clause: str) -> tuple[exp.Expr, ...]:
    found = select.args.get(clause)
    return conjuncts(found.this if found is not None else None)


def _exists(script: Script, found: exp.Exists, kind: str, at: int) -> exp.Join:
    query = found.this
    plain = isinstance(query, exp.Select) and not any(
        content
        for clause, content in query.args.items()
        if clause not in ("expressions", "from_", "where") and content
    )
    where = query.args.get("where")
    if not plain or where is None or query.args.get("from_") is None:
        raise script.refusal(
            "EXISTS takes a SELECT with FROM and WHERE alone",
            at=offset_of(found, at),
            fix="Write LEFT SEMI JOIN or LEFT ANTI JOIN with the conditions in ON.",
        )
    if any(each.find(exp.AggFunc) for each in query.expressions):
        raise script.refusal(
            "EXISTS of an aggregate: without GROUP BY there is always one row of it",
            at=offset_of(found, at),
            fix="Ask for rows: EXISTS (SELECT 1 FROM x WHERE x.key = …).",
        )
    return exp.Join(
        this=query.args["from_"].this.copy(), side="LEFT", kind=kind, on=where.this.copy()
    )
