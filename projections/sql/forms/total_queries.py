"""Queries of WITH that give the one row of totals: put where they are read.

`WITH b AS (SELECT AVG(n) AS mean FROM a) SELECT … FROM a, b WHERE a.n > b.mean` is a join of all
rows with one, and `(SELECT mean FROM b)` is a subquery of one value.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from projections.sql.forms.comma_joins import alias_of_input, is_bare
from projections.sql.forms.scalar_subqueries import is_of_aggregates

Inner = Callable[[exp.Expr], exp.Expr | None]
"""Returns the query of WITH that an input names, else None."""
_FURTHER = ("group", "having", "qualify", "distinct", "limit", "offset", "order", "with_", "joins")


def with_totals(select: exp.Select, inner: Inner) -> exp.Select:
    """Return a SELECT that has these queries in the place of their names."""

    def totals(item: exp.Expr) -> exp.Select | None:
        query = inner(item) if isinstance(item, exp.Table) else None
        return query if isinstance(query, exp.Select) and _gives_totals(query) else None

    changed = select.copy()
    first, joins = changed.args.get("from_"), changed.args.get("joins") or []
    alone = first is not None and totals(first.this) is not None and not changed.is_star
    if first is not None and alone and joins and is_bare(joins[0]):
        # All rows are joined with the one, not the one with them.
        one, rows = first.this.copy(), joins[0].this.copy()
        first.set("this", rows)
        joins[0].set("this", one)
    for join in joins:
        query = totals(join.this)
        if query is not None:
            name = join.this.alias or join.this.name
            alias = exp.TableAlias(this=exp.to_identifier(name, quoted=True))
            join.set("this", exp.Subquery(this=query.copy(), alias=alias))
    for found in [*changed.find_all(exp.Subquery)]:
        inside = not isinstance(found.parent, exp.From | exp.Join)
        if inside and found.find_ancestor(exp.Select) is changed:
            _read_value(found, totals)
    return changed


def _gives_totals(query: exp.Select) -> bool:
    """Say whether a query is of aggregates of all its rows."""
    further = [each for each in _FURTHER if each != "joins"]
    plain = not any(query.args.get(each) for each in further)
    items = query.expressions
    return plain and bool(items) and all(is_of_aggregates(each.unalias()) for each in items)


def _read_value(found: exp.Subquery, totals: Callable[[exp.Expr], exp.Select | None]) -> None:
    """Put what a value is computed of in the place of the columns of a query of totals."""
    query = found.this
    plain = isinstance(query, exp.Select) and not any(query.args.get(each) for each in _FURTHER)
    first = query.args.get("from_") if plain and not query.args.get("where") else None
    rows = None if first is None else totals(first.this)
    if first is None or rows is None or len(query.expressions) != 1:
        return
    known = {each.alias.lower(): each.unalias() for each in rows.expressions if each.alias}
    # What is named with another alias is of the query around, whatever its name.
    own: tuple[list[str], ...] = ([], [alias_of_input(first.this)])

    def value_of(node: exp.Column) -> exp.Expr | None:
        of_these = [part.name.lower() for part in node.parts[:-1]] in own
        return known.get(node.name.lower()) if of_these else None

    def meant(node: exp.Expr) -> exp.Expr:
        value = value_of(node) if isinstance(node, exp.Column) else None
        return node if value is None else exp.Paren(this=value.copy())

    item = query.expressions[0].unalias()
    values = [value_of(each) for each in item.find_all(exp.Column)]
    if not values or None in values:
        return
    made = rows.copy()
    made.set("expressions", [item.copy().transform(meant)])
    found.set("this", made)
