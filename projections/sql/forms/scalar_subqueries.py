"""Subqueries that give one value: one of aggregates, joined to the rows that read it.

Of all rows of the subquery the value is one group of theirs, which every row is joined with: where
it changes, all rows that read it are computed again. Where the subquery equates something with
columns of the query around it, there is a group for each of these values, joined by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from projections.sql.forms.comma_joins import alias_of_input
from projections.sql.forms.correlations import Equated, equated_in, equating_all, joins_read, reads
from projections.sql.forms.known_values import conditions_in
from projections.sql.values.expressions import AGGREGATES, render, unwrapped
from projections.sql.words.places import Script, offset_of

_VALUE = "penstock_value_"
"""Begins the name of the table that a value is in, and of its column: a query has no such names."""
_ONE_ROW = "one_row"


Known = Callable[[exp.Select], Collection[str]]
"""Returns the names of the columns of a query's inputs, in lower case."""
KeyOf = Callable[[exp.Select], Collection[str]]
"""Returns the key, in lower case, of the table that a query reads alone; nothing for others."""
_FORM = (
    "Select aggregates, (SELECT MAX(x.amount) FROM x WHERE x.key = a.key), what is computed of "
    "them, the first row in an order, (SELECT x.amount FROM x ORDER BY x.at DESC LIMIT 1), or a "
    "column of the row of a table that has a key, (SELECT x.name FROM x WHERE x.id = a.x_id); "
    "columns of the query around it stand in WHERE, with their aliases."
)


def is_of_one_row(join: exp.Expr) -> bool:
    """Say whether all rows are joined with one, as the value of a subquery of all rows."""
    return bool(join.meta.get(_ONE_ROW))


def of_one_row(join: exp.Join) -> exp.Join:
    """Return a join, marked as one of all rows with the one that its right side has, or none."""
    join.meta[_ONE_ROW] = True
    return join


def with_values(
    script: Script, select: exp.Select, at: int, known: Known, key_of: KeyOf
) -> exp.Select:
    """Write subqueries in SELECT and WHERE as columns of inputs that are joined to the rows.

    Raises `InvalidRequest` for one that is neither made of aggregates without GROUP BY nor of the
    one row that has a key.
    """
    if not any(_values_in(select)):
        return select
    changed = select.copy()
    joins = [*(changed.args.get("joins") or [])]
    around = aliases_of(select)
    known_values: dict[str, exp.Expr] = {}
    for number, found in enumerate([*_values_in(changed)]):
        name, text = f"{_VALUE}{number}", render(found)
        if text in known_values:
            _put(changed, found, known_values[text])
            continue
        outside = _outside(found, around, known)
        query = equating_all(found.this, select, conditions_in(select, "where"), outside, number)
        row = (
            _by_key(query, name, outside, key_of)
            or _first_row(query, name, outside)
            or _one_row(script, query, name, outside, offset_of(found, at))
        )
        join = exp.Join(
            this=exp.Subquery(this=row.query, alias=exp.TableAlias(this=exp.to_identifier(name))),
            side="LEFT",
        )
        if row.equal:
            join.set("on", exp.and_(*row.equal))
        else:
            of_one_row(join)
        joins.append(join)
        known_values[text] = row.value
        _put(changed, found, row.value)
    changed.set("joins", joins)
    return changed


def _put(select: exp.Select, found: exp.Subquery, value: exp.Expr) -> None:
    """Put the value of a subquery in its place; the same one may stand in several."""
    # A column of ours in place of an item would give it our name.
    unnamed = found.parent is select and found.arg_key == "expressions"
    bare = isinstance(value, exp.Column | exp.Coalesce) and not unnamed
    found.replace(value.copy() if bare else exp.Paren(this=value.copy()))


def _values_in(select: exp.Select) -> Iterator[exp.Subquery]:
    where = select.args.get("where")
    for part in (*select.expressions, *([where] if where is not None else [])):
        for found in part.walk(prune=lambda node: isinstance(node, exp.Subquery | exp.Exists)):
            inside = isinstance(found.parent, exp.In) and found.arg_key == "query"
            if isinstance(found, exp.Subquery) and not inside:
                yield found


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneRow:
    """The rows of a subquery as groups, by what they are joined, and its value over their columns.

    `equal` is empty where all rows are one group.
    """

    query: exp.Select
    equal: list[exp.Expr]
    value: exp.Expr


def _one_row(script: Script, query: exp.Expr, name: str, outside: set[str], at: int) -> _OneRow:
    items = query.expressions if isinstance(query, exp.Select) else []
    written = items[0].unalias() if len(items) == 1 else None
    further = ("group", "having", "qualify", "distinct", "limit")
    refused = any(query.args.get(each) for each in further)
    if (
        not isinstance(query, exp.Select)
        or refused
        or written is None
        or not is_of_aggregates(written)
    ):
        raise script.refusal(
            "a subquery in an expression is to give one value of all its rows",
            at=at,
            fix=_FORM,
        )
    pairs, rest = equated_in(query, outside)
    if pairs is None or reads(written, outside) or joins_read(query, outside):
        raise script.refusal(
            "a subquery reads the query around it in a way that is not compiled",
            at=at,
            fix=_FORM,
        )
    made: exp.Select = query.copy()
    calls, value = _computed(written, name, at)
    equal = _give(made, calls, pairs, rest, name)
    # In brackets: a number would be the place of a column.
    groups: list[exp.Expr] = [exp.Paren(this=each.own.copy()) for each in pairs] or [
        exp.Literal.string("all")
    ]
    made.set("group", exp.Group(expressions=groups))
    return _OneRow(query=made, equal=equal, value=value)


def _give(
    query: exp.Select,
    items: Sequence[exp.Expr],
    pairs: Sequence[Equated],
    rest: Sequence[exp.Expr],
    name: str,
) -> list[exp.Expr]:
    """Have a query give what it equates beside its items, of the rows for which the rest holds.

    Returns by what its rows are joined under a name.
    """
    keys = [exp.alias_(each.own.copy(), f"{name}_{place}") for place, each in enumerate(pairs)]
    query.set("expressions", [*items, *keys])
    query.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
    return [
        each.with_column(exp.column(key.alias, table=name))
        for key, each in zip(keys, pairs, strict=True)
    ]


def _by_key(query: exp.Expr, name: str, outside: set[str], key_of: KeyOf) -> _OneRow | None:
    """Return the row of a table whose whole key a subquery equates; None for another subquery.

    With columns of the query around it, or with values that are written out. Of one row LIMIT says
    nothing.
    """
    further = ("group", "having", "qualify", "distinct", "joins", "order", "with_", "offset")
    plain = isinstance(query, exp.Select) and not any(query.args.get(each) for each in further)
    if not isinstance(query, exp.Select) or not plain or len(query.expressions) != 1:
        return None
    item = query.expressions[0].unalias()
    pairs, rest = equated_in(query, outside)
    first = query.args.get("from_")
    alias = "" if first is None else alias_of_input(first.this).lower()
    # A field of a struct may be called like the key, as in c.address.id.
    equated = {
        own.name.lower()
        for own, _, _ in pairs or []
        if isinstance(own, exp.Column) and _is_of(own, alias)
    }
    equated |= {own.name.lower() for own in _fixed(rest, alias)}
    computed = item.find(exp.AggFunc, exp.Window, exp.Query) is not None or reads(item, outside)
    key = {*key_of(query)}
    limit = query.args.get("limit")
    count = None if limit is None else limit.args.get("expression")
    some = limit is None or (isinstance(count, exp.Literal) and count.is_int and count.name != "0")
    if computed or pairs is None or not key or not key <= equated or not some:
        return None
    made = query.copy()
    made.set("limit", None)
    equal = _give(made, [exp.alias_(item.copy(), name)], pairs, rest, name)
    return _OneRow(query=made, equal=equal, value=exp.column(name, table=name))


def _fixed(parts: Sequence[exp.Expr], alias: str) -> Iterator[exp.Column]:
    """Yield the columns of a table that conditions equate with values that are written out."""
    for part in map(unwrapped, parts):
        if isinstance(part, exp.EQ):
            one, other = unwrapped(part.this), unwrapped(part.expression)
            for own, value in ((one, other), (other, one)):
                plain = value.find(exp.Column, exp.Query, exp.Func) is None
                if isinstance(own, exp.Column) and plain and _is_of(own, alias):
                    yield own


def _is_of(column: exp.Column, alias: str) -> bool:
    """Say whether a column is one of an input itself, and no field of a struct."""
    return [part.name.lower() for part in column.parts[:-1]] in ([], [alias])


def first_of_each(query: exp.Select, keys: list[exp.Expr]) -> bool:
    """Write ORDER BY with LIMIT as the first rows of each key."""
    limit, order = query.args.get("limit"), query.args.get("order")
    count = limit.args.get("expression") if isinstance(limit, exp.Limit) else None
    if order is None or query.args.get("group") or not isinstance(count, exp.Literal):
        return False
    items = query.expressions
    known = {item.alias.lower(): item.this for item in items if item.alias}

    def meant(found: exp.Expr) -> exp.Expr:
        alone = isinstance(found, exp.Column) and len(found.parts) == 1
        return known.get(found.name.lower(), found).copy() if alone else found

    ordered = []
    for each in order.expressions:
        place = each.this
        if not isinstance(place, exp.Literal) or place.is_string:
            ordered.append(each.transform(meant))
            continue
        # A number is the place of a column; before OVER it would be a value like any other.
        at = int(place.name) if place.is_int else 0
        if not 1 <= at <= len(items) or any(item.is_star for item in items):
            return False
        ordered.append(each.copy())
        ordered[-1].set("this", items[at - 1].unalias().copy())
    number = exp.Window(
        this=exp.RowNumber(),
        partition_by=[key.copy() for key in keys] or None,
        order=exp.Order(expressions=ordered),
        over="OVER",
    )
    query.set("qualify", exp.Qualify(this=exp.LTE(this=number, expression=count.copy())))
    query.set("limit", None)
    query.set("order", None)
    return True


def _first_row(query: exp.Expr, name: str, outside: set[str]) -> _OneRow | None:
    """Return the first row in an order, of those that a subquery equates; None for another one."""
    further = ("group", "having", "qualify", "distinct", "offset", "with_")
    plain = isinstance(query, exp.Select) and not any(query.args.get(each) for each in further)
    if not isinstance(query, exp.Select) or not plain or len(query.expressions) != 1:
        return None
    limit = query.args.get("limit")
    count = limit.args.get("expression") if isinstance(limit, exp.Limit) else None
    item = query.expressions[0].unalias()
    pairs, rest = equated_in(query, outside)
    others = (item, query.args.get("order"))
    if count != exp.Literal.number(1) or pairs is None or joins_read(query, outside):
        return None
    if item.find(exp.AggFunc, exp.Window, exp.Query) or any(
        each is not None and reads(each, outside) for each in others
    ):
        return None
    made = query.copy()
    if not first_of_each(made, [each.own for each in pairs]):
        return None
    equal = _give(made, [exp.alias_(item.copy(), name)], pairs, rest, name)
    return _OneRow(query=made, equal=equal, value=exp.column(name, table=name))


def is_of_aggregates(value: exp.Expr) -> bool:
    """Say whether an expression reads columns inside of aggregates alone, and has one."""
    calls = [*_aggregates_in(value)]
    inside = sum(len([*call.find_all(exp.Column)]) for call in calls)
    return bool(calls) and inside == len([*value.find_all(exp.Column)])


def _aggregates_in(value: exp.Expr) -> Iterator[exp.Expr]:
    kinds = (exp.Filter, *AGGREGATES)
    for found in value.walk(prune=lambda node: isinstance(node, (*kinds, exp.Query, exp.Window))):
        if isinstance(found, kinds):
            yield found


def _computed(written: exp.Expr, name: str, at: int) -> tuple[list[exp.Expr], exp.Expr]:
    """Return the aggregates of a value as columns of a row, and the value over these.

    It is computed where the row is read, so that it has a value where there is no row, too.
    """
    around = exp.Paren(this=written.copy())
    calls: list[exp.Expr] = []
    for place, call in enumerate([*_aggregates_in(around)]):
        named = name if place == 0 else f"{name}_of_{place}"
        calls.append(exp.alias_(call.copy(), named))
        column: exp.Expr = exp.column(named, table=name)
        column.meta["start"] = at
        whole = call.this if isinstance(call, exp.Filter) else call
        if isinstance(whole, exp.Count | exp.CountIf):
            # A group of no rows is none, where a count of them is 0.
            column = exp.Coalesce(this=column, expressions=[exp.Literal.number(0)])
        call.replace(column)
    return calls, around.this


def _outside(found: exp.Subquery, around: set[str], known: Known) -> set[str]:
    """Return which aliases are of the query around a subquery: `d.x` is first a field of its own d.

    Columns are looked up only where it matters.
    """
    outside = around - aliases_of(found.this)
    if not isinstance(found.this, exp.Select) or not reads(found.this, outside):
        return outside
    return outside.difference(known(found.this))


def aliases_of(select: exp.Expr) -> set[str]:
    """Return the aliases of the inputs of a SELECT, in lower case."""
    first = select.args.get("from_")
    items = [] if first is None else [first.this]
    items += [join.this for join in select.args.get("joins") or []]
    tables = (item.this if isinstance(item, exp.Stream) else item for item in items)
    return {str(table.alias_or_name).lower() for table in tables}
