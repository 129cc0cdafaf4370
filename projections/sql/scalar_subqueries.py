"""Subqueries that give one value: an aggregate of all rows, joined to each row of the query.

The value is a group of all rows of the subquery, and every row is joined with it. Where it changes,
all rows that read it are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from projections.sql.expressions import AGGREGATES
from projections.sql.places import Script, offset_of

_VALUE = "penstock_value_"
"""Begins the name of the table that a value is in, and of its column: a query has no such names."""
_ONE_ROW = "one_row"
_FORM = "Select one aggregate alone, (SELECT MAX(amount) FROM x WHERE …), and compute around it."


def is_of_one_row(join: exp.Expr) -> bool:
    """Say whether a join is with the value of a subquery."""
    return bool(join.meta.get(_ONE_ROW))


def with_values(script: Script, select: exp.Select, at: int) -> exp.Select:
    """Write subqueries in SELECT and WHERE as columns of inputs that are joined to every row.

    Raises `InvalidRequest` for one that is not a single aggregate without GROUP BY.
    """
    if not any(_values_in(select)):
        return select
    changed = select.copy()
    joins = [*(changed.args.get("joins") or [])]
    for number, found in enumerate([*_values_in(changed)]):
        name = f"{_VALUE}{number}"
        query, count = _one_row(script, found, name, at)
        join = exp.Join(
            this=exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name))),
            side="LEFT",
        )
        join.meta[_ONE_ROW] = True
        joins.append(join)
        value: exp.Expr = exp.column(name, table=name)
        value.meta["start"] = offset_of(found, at)
        # A group of no rows is none, where a count of them is 0.
        value = exp.Coalesce(this=value, expressions=[exp.Literal.number(0)]) if count else value
        # A column of ours in place of an item would give it our name.
        unnamed = found.parent is changed and found.arg_key == "expressions"
        found.replace(exp.Paren(this=value) if unnamed else value)
    changed.set("joins", joins)
    return changed


def _values_in(select: exp.Select) -> Iterator[exp.Subquery]:
    where = select.args.get("where")
    for part in (*select.expressions, *([where] if where is not None else [])):
        for found in part.walk(prune=lambda node: isinstance(node, exp.Subquery | exp.Exists)):
            inside = isinstance(found.parent, exp.In) and found.arg_key == "query"
            if isinstance(found, exp.Subquery) and not inside:
                yield found


def _one_row(script: Script, found: exp.Subquery, name: str, at: int) -> tuple[exp.Select, bool]:
    """Return the query as a group of all its rows, and whether its value is a count."""
    query = found.this
    items = query.expressions if isinstance(query, exp.Select) else []
    value = items[0].unalias() if len(items) == 1 else None
    whole = value.this if isinstance(value, exp.Filter) else value
    further = ("group", "having", "qualify", "distinct")
    plain = isinstance(whole, AGGREGATES)
    if value is None or not plain or any(query.args.get(each) for each in further):
        raise script.refusal(
            "a subquery in an expression is to give one value of all its rows",
            at=offset_of(found, at),
            fix=_FORM,
        )
    made: exp.Select = query.copy()
    made.set("expressions", [exp.alias_(value.copy(), name)])
    made.set("group", exp.Group(expressions=[exp.Literal.string("all")]))
    return made, isinstance(whole, exp.Count | exp.CountIf)
