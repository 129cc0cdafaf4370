"""Inputs with a comma or CROSS JOIN between, and what WHERE says of both: joins with ON.

`FROM a, b WHERE a.id = b.id` means `FROM a JOIN b ON a.id = b.id`. Conditions are known by the
aliases before their columns; one that names a column alone stays in WHERE, where it means the same.
What may be an error stays behind it there: it might be what keeps the error away.

An input that WHERE equates with none before it waits for the one that it is equated with. What all
sides of an OR say is said once, beside it: `(a.id = b.id AND x) OR (a.id = b.id AND y)` joins, too.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.forms.constant_queries import is_beside
from projections.sql.forms.element_forms import is_of_elements
from projections.sql.forms.outer_joins import adds_rows
from projections.sql.values.expressions import conjuncts, never_fails, same_text, unwrapped


def with_conditions(query: exp.Expr) -> exp.Expr:
    """Move conditions over both sides of such joins from WHERE into ON, in all SELECTs of a query.

    What is joined by no condition is left as it is.
    """
    for select in [*query.find_all(exp.Select)]:
        # `*` has the columns of the inputs in the order in which these are written.
        if not select.is_star:
            move_conditions(select)
    return query


def move_conditions(select: exp.Expr) -> None:
    """Move conditions over both sides of such joins from WHERE into ON, in one SELECT."""
    joins = select.args.get("joins") or []
    # Rows that an outer join adds behind them would pass by what moves out of WHERE.
    outer = any(adds_rows(join) for join in joins)
    if select.args.get("where") is not None and not outer and any(map(is_bare, joins)):
        _move(select, joins)


def _move(select: exp.Expr, joins: list[exp.Expr]) -> None:
    parts = [said for each in conjuncts(select.args["where"].this) for said in _said_by_all(each)]
    first = select.args.get("from_")
    known = set() if first is None else {alias_of_input(first.this)}
    waiting, placed = [*joins], list[exp.Expr]()
    while waiting:
        join = _next(waiting, parts, known)
        waiting = [each for each in waiting if each is not join]
        placed.append(join)
        own = alias_of_input(join.this)
        known.add(own)
        of_join = [
            each
            for place, each in enumerate(parts)
            if own in (of := _aliases(each))
            and of <= known
            and (never_fails(each) or all(_is_of(known, before) for before in parts[:place]))
        ]
        equated = any(_equates(each, own, known - {own}) for each in of_join)
        # What a LATERAL is joined by stands in it.
        if equated and is_bare(join) and not isinstance(join.this, exp.Lateral):
            parts = [each for each in parts if not any(each is moved for moved in of_join)]
            join.set("kind", None)
            join.set("on", exp.and_(*of_join))
    select.set("joins", placed)
    select.set("where", exp.Where(this=exp.and_(*parts)) if parts else None)


def _next(waiting: list[exp.Expr], parts: list[exp.Expr], known: set[str]) -> exp.Expr:
    """Return the join that comes next: the first one, or the next that WHERE equates with them."""
    for join in waiting:
        if not is_bare(join) or isinstance(join.this, exp.Lateral):
            break
        if any(_equates(part, alias_of_input(join.this), known) for part in parts):
            return join
    return waiting[0]


def _equates(part: exp.Expr, own: str, known: set[str]) -> bool:
    part = unwrapped(part)
    if not isinstance(part, exp.EQ):
        return False
    sides = _aliases(part.this), _aliases(part.expression)
    pairs = (sides, sides[::-1])
    return any(one == {own} and bool(other) and other <= known for one, other in pairs)


def _said_by_all(part: exp.Expr) -> list[exp.Expr]:
    """Return what all sides of an OR say, each by itself, and the OR of what is left of them."""
    inner = unwrapped(part)
    if not isinstance(inner, exp.Or):
        return [part]
    sides = [conjuncts(each) for each in inner.flatten()]
    common = [
        each
        for each in sides[0]
        if all(any(same_text(each) == same_text(o) for o in side) for side in sides[1:])
    ]
    if not common:
        return [part]
    texts = {same_text(each) for each in common}
    rests = [[each for each in side if same_text(each) not in texts] for side in sides]
    # A side that says no more than the others makes their rest of no matter.
    left = [exp.Paren(this=exp.or_(*(exp.and_(*rest) for rest in rests)))] if all(rests) else []
    return [*common, *left]


def _is_of(known: set[str], part: exp.Expr) -> bool:
    """Say whether a condition reads these inputs alone, so that it is asked no later than ON."""
    return bool(of := _aliases(part)) and of <= known


def is_bare(join: exp.Expr) -> bool:
    """Say whether an input stands behind a comma or CROSS JOIN, without a condition."""
    if is_of_elements(join) or is_beside(join.this):
        return False
    further = [clause for clause, content in join.args.items() if content and clause != "this"]
    return not further or (further == ["kind"] and join.text("kind").upper() == "CROSS")


def alias_of_input(item: exp.Expr) -> str:
    """Return the alias of what stands in FROM or JOIN, in lower case."""
    table = item.this if isinstance(item, exp.Stream) else item
    behind = [pivot.alias for pivot in table.args.get("pivots") or [] if pivot.alias]
    return str((behind or [table.alias_or_name])[-1]).lower()


def _aliases(part: exp.Expr) -> set[str]:
    """Return the inputs whose columns a condition reads; the empty name for one without alias."""
    if part.find(exp.Query, exp.Exists, exp.Window, exp.AggFunc) is not None:
        return set()
    columns = [found.parts for found in part.find_all(exp.Column)]
    return {str(parts[0].name).lower() if len(parts) > 1 else "" for parts in columns}
