"""Subqueries that read the query around them by more than what they equate with it.

`(SELECT COUNT(*) FROM b WHERE b.x < a.x)` has one value for each `x` of the query around it. So the
subquery is joined with these, each once, by what it says of them, and equates them with those of
the query around it: then it is of the rows that are equal, as any other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sqlglot import exp

from projections.sql.forms.known_values import conditions_in, has_value
from projections.sql.values.expressions import AGGREGATES, same_text, unwrapped

_AROUND = "penstock_around_"
"""Begins the name of the values of the query around that a subquery is asked for."""
_OF_VALUES = "values_around"


class Equated(NamedTuple):
    """What a subquery equates: a side of its own, and one of the query around it.

    `kind` says whether NULL is equal to itself.
    """

    own: exp.Expr
    theirs: exp.Expr
    kind: type[exp.Expr]

    def with_column(self, own: exp.Expr) -> exp.Expr:
        """Write the equation with a column that the own side is computed as."""
        # In brackets: it may be a comparison itself.
        plain = isinstance(self.theirs, exp.Column)
        theirs = self.theirs.copy() if plain else exp.Paren(this=self.theirs.copy())
        return self.kind(this=own, expression=theirs)


def is_of_values(join: exp.Expr) -> bool:
    """Say whether a join is one with values of the query around.

    They have no time of their own: its rows keep their places in the order of their source.
    """
    return bool(join.meta.get(_OF_VALUES))


def reads(node: exp.Expr, aliases: set[str]) -> bool:
    """Say whether an expression names columns of some inputs by their aliases."""
    named = (found.parts for found in node.find_all(exp.Column))
    return any(len(parts) > 1 and parts[0].name.lower() in aliases for parts in named)


def joins_read(query: exp.Select, aliases: set[str]) -> bool:
    """Say whether the joins of a subquery read inputs of the query around it."""
    joins = query.args.get("joins") or []
    return any(reads(join, aliases) for join in joins if not is_of_values(join))


def equating_all(
    query: exp.Expr,
    inputs: exp.Select,
    asked: Sequence[exp.Expr],
    outside: set[str],
    number: int,
) -> exp.Expr:
    """Return a subquery that equates all it reads of `inputs`, the FROM around it, if it can be.

    `asked` are conditions that the rows around it satisfy.
    """
    plain = isinstance(query, exp.Select) and query.args.get("from_") and reads(query, outside)
    if not isinstance(query, exp.Select) or not plain or query.args.get("with_"):
        return query
    pairs, rest = equated_in(query, outside)
    elsewhere = (*query.expressions, query.args.get("order"), *rest)
    more = any(each is not None and reads(each, outside) for each in elsewhere)
    if pairs is not None and not more and not joins_read(query, outside):
        return query
    name = f"{_AROUND}{number}"
    while name in outside:  # A query around this one may be such a subquery.
        name += "_"
    return _equating(query, inputs, asked, outside, name) or query


def equated_in(query: exp.Select, outside: set[str]) -> tuple[list[Equated] | None, list[exp.Expr]]:
    """Return what WHERE equates with the query around it, and its other conditions.

    None where it reads that query other than by what it equates.
    """
    parts = conditions_in(query, "where")
    sides = [_equated_sides(part, outside) for part in parts if reads(part, outside)]
    pairs = [each for each in sides if each is not None]
    rest = [part.copy() for part in parts if not reads(part, outside)]
    return pairs if len(pairs) == len(sides) else None, rest


def _equated_sides(part: exp.Expr, outside: set[str]) -> Equated | None:
    """Return what a condition equates: of the subquery, and of the query around it."""
    part = unwrapped(part)
    if not isinstance(part, exp.EQ | exp.NullSafeEQ):
        return None
    one, other = unwrapped(part.this), unwrapped(part.expression)
    for own, theirs in ((one, other), (other, one)):
        if _of_others(theirs, outside) and not reads(own, outside):
            return Equated(own, theirs, type(part))
    return None


def _equating(
    query: exp.Select, inputs: exp.Select, asked: Sequence[exp.Expr], outside: set[str], name: str
) -> exp.Select | None:
    """Return a subquery that equates all that it reads of `inputs`, the FROM around it.

    `asked` are conditions that the rows around it satisfy, and `name` one that no query has. None
    for a subquery in which this cannot be told apart.
    """
    # The values are joined behind all other inputs: these cannot read them.
    if _is_hidden(query, outside) or joins_read(query, outside):
        return None
    if any(_of_others(call, outside) for call in _calls(query)):
        return None
    values: dict[str, exp.Expr] = {}

    def value(found: exp.Expr) -> exp.Expr:
        if not _is_of_others(found, outside):
            return found
        named = values.setdefault(
            same_text(found), exp.alias_(found.copy(), f"{name}_{len(values)}")
        )
        return exp.column(named.alias, table=name)

    made = query.copy()
    parts = [part.copy() for part in conditions_in(query, "where")]
    for clause, content in [*made.args.items()]:
        if clause not in ("where", "from_") and content:
            several = content if isinstance(content, list) else [content]
            changed = [
                each.transform(value, copy=False) if isinstance(each, exp.Expr) else each
                for each in several
            ]
            made.set(clause, changed if isinstance(content, list) else changed[0])
    # What asks for rows itself stands in WHERE; all else says which values a row meets.
    meets = [reads(part, outside) and part.find(exp.Query) is None for part in parts]
    said = [part.copy() for part, met in zip(parts, meets, strict=True) if met]
    parts = [part.transform(value, copy=False) for part in parts]
    on = [part for part, met in zip(parts, meets, strict=True) if met]
    rest = [part for part, met in zip(parts, meets, strict=True) if not met]
    join = exp.Join(this=_domain(inputs, asked, [*values.values()], name))
    join.set("on" if on else "kind", exp.and_(*on) if on else "CROSS")
    join.meta[_OF_VALUES] = True
    made.append("joins", join)
    equal = [
        (exp.EQ if has_value(query, item.this, said) else exp.NullSafeEQ)(
            this=exp.column(item.alias, table=name), expression=exp.Paren(this=item.this.copy())
        )
        for item in values.values()
    ]
    made.set("where", exp.Where(this=exp.and_(*equal, *rest)))
    return made


def _domain(
    inputs: exp.Select, asked: Sequence[exp.Expr], items: Sequence[exp.Expr], name: str
) -> exp.Subquery:
    """Return the values that the rows of some inputs have, each once."""
    where = [each.copy() for each in asked if each.find(exp.Query, exp.Window) is None]
    query = exp.Select(
        expressions=[item.copy() for item in items],
        distinct=exp.Distinct(),
        from_=inputs.args["from_"].copy(),
        joins=[join.copy() for join in inputs.args.get("joins") or []],
        where=exp.Where(this=exp.and_(*where)) if where else None,
    )
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name)))


def _is_hidden(query: exp.Select, outside: set[str]) -> bool:
    """Say whether a query inside of another one has inputs that are called like those around it."""
    inputs = (*query.find_all(exp.Table), *query.find_all(exp.Subquery))
    return any(str(each.alias_or_name).lower() in outside for each in inputs)


def _calls(query: exp.Select) -> Iterator[exp.Expr]:
    for item in query.expressions:
        yield from item.find_all(*AGGREGATES)


def _is_of_others(node: exp.Expr, outside: set[str]) -> bool:
    """Say whether an expression is a value of the query around: it reads its columns alone."""
    if not isinstance(node, exp.Condition) or node.find(exp.Query, exp.AggFunc, exp.Window):
        return False
    return _of_others(node, outside)


def _of_others(node: exp.Expr, outside: set[str]) -> bool:
    """Say whether an expression reads columns of the query around, and none of its own."""
    columns = [*node.find_all(exp.Column)]
    return bool(columns) and all(reads(each, outside) for each in columns)
