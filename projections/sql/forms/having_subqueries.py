"""Subqueries in HAVING: a condition of a query around the groups.

There it is WHERE, and what it reads of the groups is a column of theirs. So groups are not computed
again where only the value changes that they are compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from projections.sql.forms.scalar_subqueries import aliases_of
from projections.sql.operators.query import read_items
from projections.sql.values.expressions import AGGREGATES, conjuncts, render
from projections.sql.words.places import Script, offset_of

_GROUPS = "penstock_having"
_FURTHER = "penstock_having_"
"""The name of the groups, and what begins names of columns of theirs that no query has."""


def without_having_subqueries(script: Script, select: exp.Select, at: int) -> exp.Select:
    """Move conditions with subqueries from HAVING to the WHERE of a query around the groups."""
    having = select.args.get("having")
    parts = conjuncts(having.this if having is not None else None)
    moved = [part for part in parts if part.find(exp.Query) is not None]
    # What is computed over several groups is computed of those that HAVING leaves.
    over = select.args.get("qualify") is not None or any(
        e.find(exp.Window) for e in select.expressions
    )
    if not moved or over or select.args.get("group") is None:
        return select
    items = read_items(script, select, at)
    groups = select.copy()
    kept = [part.copy() for part in parts if not any(part is each for each in moved)]
    groups.set("having", exp.Having(this=exp.and_(*kept)) if kept else None)
    groups.set("distinct", None)
    named = {item.name.lower(): item.name for item in items}
    further: dict[str, exp.Expr] = {}
    where = [_over_groups(part, named, further, aliases_of(select)) for part in moved]
    groups.set("expressions", [*groups.expressions, *further.values()])
    rows = exp.Subquery(this=groups, alias=exp.TableAlias(this=exp.to_identifier(_GROUPS)))
    return exp.Select(
        expressions=[_of_groups(item.name, item.at) for item in items],
        distinct=select.args.get("distinct"),
        from_=exp.From(this=rows),
        where=exp.Where(this=exp.and_(*where)),
    )


def _over_groups(
    part: exp.Expr, named: dict[str, str], further: dict[str, exp.Expr], inputs: set[str]
) -> exp.Expr:
    """Turn a condition over groups into one over columns of theirs.

    Subqueries stay as they are, but for columns of the inputs of the groups.
    """

    def column_of(found: exp.Expr) -> exp.Expr:
        at = offset_of(found, 0)
        alone = isinstance(found, exp.Column) and len(found.parts) == 1
        if alone and found.name.lower() in named:
            return _of_groups(named[found.name.lower()], at)
        text = render(found)
        if text not in further:
            further[text] = exp.alias_(found.copy(), f"{_FURTHER}{len(further)}")
        return _of_groups(further[text].alias, at)

    made = exp.Paren(this=part.copy())
    for found in (*_read(made), *_read_inside(made, inputs)):
        found.replace(column_of(found))
    return made


def _read(part: exp.Expr) -> Sequence[exp.Expr]:
    """Return the aggregates and columns that a condition reads outside of its subqueries."""
    kinds = (exp.Filter, exp.Column, *AGGREGATES)
    whole = part.walk(prune=lambda node: isinstance(node, (exp.Query, *kinds)))
    return [found for found in whole if isinstance(found, kinds)]


def _read_inside(part: exp.Expr, inputs: set[str]) -> Sequence[exp.Expr]:
    """Return the columns of some inputs that subqueries of a condition read."""
    return [
        found
        for found in part.find_all(exp.Column)
        if len(found.parts) > 1
        and (alias := found.parts[0].name.lower()) in inputs
        and (select := found.find_ancestor(exp.Select)) is not None
        and not any(alias in aliases_of(each) for each in _around(select))
    ]


def _around(select: exp.Expr | None) -> Iterator[exp.Expr]:
    while select is not None:
        yield select
        select = select.find_ancestor(exp.Select)


def _of_groups(name: str, at: int) -> exp.Expr:
    made: exp.Expr = exp.column(name, table=_GROUPS, quoted=True)
    made.meta["start"] = at
    return made
