"""Which input a column without an alias is of, where joins and subqueries have to know it.

Conditions of joins that stand in WHERE, and of subqueries that stand in conditions, are told apart
by the aliases before their columns. Whose a column without one is follows from what the inputs
have: in a subquery it is first one of its own inputs, then one of the query around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from sqlglot import exp

from projections.sql.forms.comma_joins import alias_of_input, is_bare

Columns = Callable[[exp.Expr], Collection[str] | None]
"""Returns the columns of an input in lower case; None where they are not known."""
_Inputs = Mapping[str, Collection[str]]
_ASKED = ("expressions", "where", "having", "qualify")


def qualified(select: exp.Select, columns: Columns) -> exp.Select:
    """Return a SELECT with an alias before each column whose input has to be known."""
    bare = any(map(is_bare, select.args.get("joins") or []))
    asked = [part for clause in _ASKED for part in _parts(select, clause)]
    if not bare and all(part.find(exp.Query) is None for part in asked):
        return select
    changed = select.copy()
    _qualify(changed, [], columns)
    return changed


def _qualify(select: exp.Select, around: Sequence[_Inputs], columns: Columns) -> None:
    own = _inputs(select, columns)
    if own is None or (around and select.args.get("with_") is not None):
        return  # What a WITH of its own names is not known here.
    scopes = [own, *around]
    given = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
    on = [join.args["on"] for join in select.args.get("joins") or [] if join.args.get("on")]
    for clause in _ASKED:
        # WHERE does not know the names given by AS. Elsewhere a column that is not of a query
        # around is found where it is read, if no subquery stands beside it.
        known = set() if clause == "where" else given
        for part in _parts(select, clause):
            own_too = clause == "where" or part.find(exp.Query) is not None
            _name(part, scopes, known, columns, own=own_too)
    for part in on:
        _name(part, scopes, set(), columns, own=bool(around))


def _parts(select: exp.Expr, clause: str) -> list[exp.Expr]:
    found = select.args.get(clause)
    return [] if found is None else [*found] if isinstance(found, list) else [found]


def _name(
    part: exp.Expr,
    scopes: Sequence[_Inputs],
    given: Collection[str],
    columns: Columns,
    *,
    own: bool,
) -> None:
    """Put aliases before the columns of an expression, and in the subqueries inside of it."""
    for found in [*part.walk(prune=lambda node: isinstance(node, exp.Query))]:
        if isinstance(found, exp.Query):
            for select in _selects(found):
                _qualify(select, scopes, columns)
        elif isinstance(found, exp.Column) and len(found.parts) == 1:
            alias = _alias(found.name.lower(), scopes, own=own and found.name.lower() not in given)
            if alias is not None:
                found.set("table", exp.to_identifier(alias, quoted=True))


def _selects(query: exp.Expr) -> Iterator[exp.Select]:
    if isinstance(query, exp.Select):
        yield query
    elif isinstance(query, exp.Subquery):
        yield from _selects(query.this)
    elif isinstance(query, exp.SetOperation):
        yield from _selects(query.this)
        yield from _selects(query.expression)


def _alias(name: str, scopes: Sequence[_Inputs], *, own: bool) -> str | None:
    """Return the input that a column is of; None where it is not to be named, or not known."""
    nearer: set[str] = set()
    for place, inputs in enumerate(scopes):
        having = [alias for alias, columns in inputs.items() if name in columns]
        if having:
            known = len(having) == 1 and having[0].lower() not in nearer
            return having[0] or None if known and (own or place > 0) else None
        nearer |= {alias.lower() for alias in inputs}
    return None


def _inputs(select: exp.Select, columns: Columns) -> _Inputs | None:
    first = select.args.get("from_")
    items = [] if first is None else [first.this]
    items += [join.this for join in select.args.get("joins") or []]
    found: dict[str, Collection[str]] = {}
    for item in items:
        known = columns(item)
        if known is None:
            return None
        found[alias_of_input(item)] = known
    return found
