"""Inputs with a comma or CROSS JOIN between, and what WHERE says of both: joins with ON.

`FROM a, b WHERE a.id = b.id` means `FROM a JOIN b ON a.id = b.id`. Conditions are known by the
aliases before their columns; one that names a column alone stays in WHERE, where it means the same.
What may be an error stays behind it there: it might be what keeps the error away.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.element_forms import is_of_elements
from projections.sql.expressions import conjuncts, never_fails
from projections.sql.outer_joins import side_of


def with_conditions(query: exp.Expr) -> exp.Expr:
    """Move conditions over both sides of such joins from WHERE into ON, in all SELECTs of a query.

    What is joined by no condition is left as it is.
    """
    for select in [*query.find_all(exp.Select)]:
        joins = select.args.get("joins") or []
        # Rows that an outer join adds behind them would pass by what moves out of WHERE.
        outer = any(side_of(join) in ("RIGHT", "FULL") for join in joins)
        if select.args.get("where") is not None and not outer:
            _move(select, joins)
    return query


def _move(select: exp.Select, joins: list[exp.Expr]) -> None:
    parts = [*conjuncts(select.args["where"].this)]
    first = select.args.get("from_")
    known = set() if first is None else {_alias(first.this)}
    for join in joins:
        own = _alias(join.this)
        known.add(own)
        of_join = [
            each
            for place, each in enumerate(parts)
            if own in (of := _aliases(each))
            and of <= known
            and (never_fails(each) or all(_is_of(known, before) for before in parts[:place]))
        ]
        if _is_bare(join) and any(len(_aliases(each)) > 1 for each in of_join):
            parts = [each for each in parts if not any(each is moved for moved in of_join)]
            join.set("kind", None)
            join.set("on", exp.and_(*of_join))
    select.set("where", exp.Where(this=exp.and_(*parts)) if parts else None)


def _is_of(known: set[str], part: exp.Expr) -> bool:
    """Say whether a condition reads these inputs alone, so that it is asked no later than ON."""
    return bool(of := _aliases(part)) and of <= known


def _is_bare(join: exp.Expr) -> bool:
    if is_of_elements(join):
        return False
    further = [clause for clause, content in join.args.items() if content and clause != "this"]
    return not further or (further == ["kind"] and join.text("kind").upper() == "CROSS")


def _alias(item: exp.Expr) -> str:
    table = item.this if isinstance(item, exp.Stream) else item
    return str(table.alias_or_name).lower()


def _aliases(part: exp.Expr) -> set[str]:
    """Return the inputs whose columns a condition reads; the empty name for one without alias."""
    if part.find(exp.Query, exp.Exists, exp.Window, exp.AggFunc) is not None:
        return set()
    columns = [found.parts for found in part.find_all(exp.Column)]
    return {str(parts[0].name).lower() if len(parts) > 1 else "" for parts in columns}
