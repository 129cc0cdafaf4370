"""Subqueries that give one value: an aggregate, joined to the rows that read it.

Of all rows of the subquery the value is one group of theirs, which every row is joined with: where
it changes, all rows that read it are computed again. Where the subquery equates something with
columns of the query around it, there is a group for each of these values, joined by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from sqlglot import exp

from projections.sql.expressions import AGGREGATES, conjuncts, unwrapped
from projections.sql.places import Script, offset_of

_VALUE = "penstock_value_"
"""Begins the name of the table that a value is in, and of its column: a query has no such names."""
_ONE_ROW = "one_row"

Known = Callable[[exp.Select], Collection[str]]
"""Returns the names of the columns of a query's inputs, in lower case."""
_FORM = (
    "Select one aggregate alone, (SELECT MAX(x.amount) FROM x WHERE x.key = a.key), and compute "
    "around it; columns of the query around it stand in WHERE, each equated with one of x."
)


def is_of_one_row(join: exp.Expr) -> bool:
    """Say whether all rows are joined with one, as the value of a subquery of all rows."""
    return bool(join.meta.get(_ONE_ROW))


def of_one_row(join: exp.Join) -> exp.Join:
    """Return a join, marked as one of all rows with the one that its right side has, or none."""
    join.meta[_ONE_ROW] = True
    return join


def with_values(script: Script, select: exp.Select, at: int, known: Known) -> exp.Select:
    """Write subqueries in SELECT and WHERE as columns of inputs that are joined to the rows.

    Raises `InvalidRequest` for one that is not a single aggregate without GROUP BY.
    """
    if not any(_values_in(select)):
        return select
    changed = select.copy()
    joins = [*(changed.args.get("joins") or [])]
    around = _aliases(select)
    for number, found in enumerate([*_values_in(changed)]):
        name = f"{_VALUE}{number}"
        query, equal, count = _one_row(script, found, name, _outside(found, around, known), at)
        join = exp.Join(
            this=exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name))),
            side="LEFT",
        )
        if equal:
            join.set("on", exp.and_(*equal))
        else:
            of_one_row(join)
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


def _one_row(
    script: Script, found: exp.Subquery, name: str, outside: set[str], at: int
) -> tuple[exp.Select, list[exp.Expr], bool]:
    """Return the query as groups of its rows, by what it is joined, and if its value is a count."""
    query = found.this
    items = query.expressions if isinstance(query, exp.Select) else []
    value = items[0].unalias() if len(items) == 1 else None
    whole = value.this if isinstance(value, exp.Filter) else value
    further = ("group", "having", "qualify", "distinct", "limit")
    plain = isinstance(whole, AGGREGATES)
    if value is None or not plain or any(query.args.get(each) for each in further):
        raise script.refusal(
            "a subquery in an expression is to give one value of all its rows",
            at=offset_of(found, at),
            fix=_FORM,
        )
    parts = conjuncts(query.args["where"].this if query.args.get("where") is not None else None)
    sides = [_sides(part, outside) for part in parts if _reads(part, outside)]
    rest = [part for part in parts if not _reads(part, outside)]
    pairs = [each for each in sides if each is not None]
    joins = query.args.get("joins") or []
    if len(pairs) < len(sides) or any(_reads(each, outside) for each in (value, *joins)):
        raise script.refusal(
            "a subquery reads the query around it other than by what it equates with it",
            at=offset_of(found, at),
            fix=_FORM,
        )
    made: exp.Select = query.copy()
    keys = [exp.alias_(own.copy(), f"{name}_{place}") for place, (own, _) in enumerate(pairs)]
    made.set("expressions", [exp.alias_(value.copy(), name), *keys])
    made.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
    # In brackets: a number would be the place of a column.
    groups: list[exp.Expr] = [exp.Paren(this=own.copy()) for own, _ in pairs] or [
        exp.Literal.string("all")
    ]
    made.set("group", exp.Group(expressions=groups))
    equal: list[exp.Expr] = [
        exp.EQ(this=exp.column(key.alias, table=name), expression=theirs.copy())
        for key, (_, theirs) in zip(keys, pairs, strict=True)
    ]
    return made, equal, isinstance(whole, exp.Count | exp.CountIf)


def _outside(found: exp.Subquery, around: set[str], known: Known) -> set[str]:
    """Return which aliases are of the query around a subquery: `d.x` is first a field of its own d.

    Columns are looked up only where it matters.
    """
    outside = around - _aliases(found.this)
    if not isinstance(found.this, exp.Select) or not _reads(found.this, outside):
        return outside
    return outside.difference(known(found.this))


def _sides(part: exp.Expr, outside: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """Return what a condition equates: of the subquery, and of the query around it."""
    part = unwrapped(part)
    if not isinstance(part, exp.EQ):
        return None
    one, other = unwrapped(part.this), unwrapped(part.expression)
    for own, theirs in ((one, other), (other, one)):
        columns = [*theirs.find_all(exp.Column)]
        alone = bool(columns) and all(_reads(each, outside) for each in columns)
        if alone and not _reads(own, outside):
            return own, theirs
    return None


def _reads(node: exp.Expr, aliases: set[str]) -> bool:
    """Say whether an expression names columns of some inputs by their aliases."""
    named = (found.parts for found in node.find_all(exp.Column))
    return any(len(parts) > 1 and parts[0].name.lower() in aliases for parts in named)


def _aliases(select: exp.Expr) -> set[str]:
    first = select.args.get("from_")
    items = [] if first is None else [first.this]
    items += [join.this for join in select.args.get("joins") or []]
    tables = (item.this if isinstance(item, exp.Stream) else item for item in items)
    return {str(table.alias_or_name).lower() for table in tables}
