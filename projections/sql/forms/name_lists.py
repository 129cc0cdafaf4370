"""Names of columns behind the name of a query: `(SELECT …) q (a, b)` and `WITH q (a, b) AS (…)`.

An expression without a name of its own gets the one that is given there. One that has a name keeps
it inside, where HAVING and ORDER BY may read it, and a query around it gives it the other one.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.words.places import Script, offset_of

_ROWS = "penstock_named"


def with_names(script: Script, query: exp.Expr, alias: exp.Expr | None, at: int) -> exp.Expr:
    """Return a query whose columns have the names that stand behind its alias.

    Raises `InvalidRequest` for more or fewer names than columns.
    """
    names = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    if alias is None or not names:
        return query
    made = query.copy()
    first = made
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    items = first.expressions
    star = next((each for each in items if is_star(each)), None)
    if star is not None:
        raise script.refusal(
            f"{alias.name} names the columns of a *: a new field would get a name, or move it",
            at=offset_of(star, at),
            fix="Name the columns in the query: SELECT a, b FROM ….",
        )
    if not isinstance(first, exp.Select) or len(items) != len(names):
        raise script.refusal(
            f"{alias.name} is given {len(names)} names, and its query gives {len(items)} columns",
            at=offset_of(names[0], at),
            fix="Give each column a name, or name the columns in the query: SELECT … AS name.",
        )
    pairs = [*zip(items, names, strict=True)]
    first.set("expressions", [_named(item, name) for item, name in pairs])
    inside = [item.alias if isinstance(item, exp.Alias) else name.name for item, name in pairs]
    if all(one.lower() == name.name.lower() for one, name in zip(inside, names, strict=True)):
        return made
    rows = exp.Subquery(this=made, alias=exp.TableAlias(this=exp.to_identifier(_ROWS)))
    outer = [
        exp.alias_(exp.column(one, table=_ROWS, quoted=True), name.name, quoted=True)
        for one, name in zip(inside, names, strict=True)
    ]
    return exp.Select(expressions=outer, from_=exp.From(this=rows))


def is_star(item: exp.Expr) -> bool:
    """Say whether an item of SELECT is `*` or `a.*`."""
    return isinstance(item, exp.Star) or (
        isinstance(item, exp.Column) and isinstance(item.this, exp.Star)
    )


def _named(item: exp.Expr, name: exp.Expr) -> exp.Expr:
    named = isinstance(item, exp.Alias)
    return item if named else exp.alias_(item.copy(), name.name, quoted=True)
