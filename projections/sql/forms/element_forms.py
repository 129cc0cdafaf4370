"""The forms in which a query reads elements of arrays and entries of maps as rows.

`SELECT explode(x) AS e`, `LATERAL VIEW explode(x) t AS e`, `CROSS JOIN LATERAL explode(x) AS t(e)`
and `CROSS JOIN UNNEST(x) AS t(e)` are one thing: a join of each row with its own elements. They
are all written as such a join, in their place among the joins.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from projections.sql.forms.constant_queries import gives_written_rows, rows_of_call
from projections.sql.forms.outer_joins import adds_rows, side_of
from projections.sql.values.expressions import AGGREGATES
from projections.sql.words.places import Script, offset_of

FORM = "Write it in FROM: FROM x LATERAL VIEW explode(x.lines) t AS line."
_GENERATORS = (exp.Explode, exp.Inline)
_OWN = "__elements"
"""Begins the names of elements that are given none."""
_AROUND = ("group", "having", "qualify", "distinct")


def is_generator(node: exp.Expr) -> bool:
    """Say whether a call gives rows."""
    named = isinstance(node, exp.Anonymous) and node.name.lower() == "inline_outer"
    return isinstance(node, _GENERATORS) or named or gives_written_rows(node)


def is_of_elements(join: exp.Expr) -> bool:
    """Say whether a join is one of each row with its own elements."""
    item = join.this
    lateral = isinstance(item, exp.Lateral) and not isinstance(item.this, exp.Subquery)
    return lateral or isinstance(item, exp.Unnest)


def explodes(query: exp.Expr) -> bool:
    """Say whether a query reads elements as rows."""
    return any(map(is_of_elements, query.find_all(exp.Join)))


def with_explosions(script: Script, query: exp.Expr) -> exp.Expr:
    """Write all forms as joins. Raises `InvalidRequest` where elements cannot stand."""
    at = offset_of(query, 0)
    for select in [*query.find_all(exp.Select)]:
        _read_items(script, select, at)
        _read_views(script, select, at)
    for found in query.walk():
        if isinstance(found, exp.Unnest) or is_generator(found):
            _refuse_elsewhere(script, found, at)
    return query


def _read_items(script: Script, select: exp.Expr, at: int) -> None:
    """Turn a generator in SELECT into a view of elements, and its columns into those of that."""
    items = [each for each in select.expressions if is_generator(each.unalias())]
    items += [e for e in select.expressions if isinstance(e, exp.Aliases) and is_generator(e.this)]
    if not items:
        return
    place = offset_of(items[0], at)
    if len(items) > 1:
        raise script.refusal("two generators in one SELECT", at=place, fix=FORM)
    if any(select.args.get(each) for each in _AROUND) or _is_around_rows(select):
        raise script.refusal("a generator in SELECT beside groups or OVER", at=place, fix=FORM)
    item = items[0]
    named = item.expressions if isinstance(item, exp.Aliases) else [item.args.get("alias")]
    if not isinstance(item, exp.Alias | exp.Aliases):
        raise script.refusal(
            "elements without a name",
            at=place,
            fix="Name them: explode(lines) AS line, posexplode(lines) AS (pos, line).",
        )
    # WHERE does not know these names: they are of the result.
    hidden = [exp.to_identifier(f"__{each.name}", quoted=True) for each in named]
    alias = exp.TableAlias(this=exp.to_identifier(_OWN, quoted=True), columns=hidden)
    view = exp.Lateral(this=item.this, view=True, alias=alias)
    made = []
    for own, each in zip(hidden, named, strict=True):
        value = exp.column(own.copy(), table=exp.to_identifier(_OWN, quoted=True))
        value.meta["start"] = place
        made.append(exp.alias_(value, each.copy()))
    expressions = [
        part for each in select.expressions for part in (made if each is item else [each])
    ]
    select.set("expressions", expressions)
    select.append("laterals", view)


def _is_around_rows(select: exp.Expr) -> bool:
    """Say whether an item of a SELECT is computed from several rows."""
    return any(each.find(exp.Window, *AGGREGATES) for each in select.expressions)


def _read_views(script: Script, select: exp.Expr, at: int) -> None:
    """Put the views of elements among the joins, each behind what is written before it."""
    views = select.args.get("laterals") or []
    if not views:
        return
    joins = [*(select.args.get("joins") or [])]
    for number, view in enumerate(views):
        place = offset_of(view, at)
        alias = view.args.get("alias") or exp.TableAlias()
        if alias.this is None:
            alias.set("this", exp.to_identifier(f"{_OWN}_{number}", quoted=True))
        view.set("alias", alias)
        behind = [n for n, join in enumerate(joins) if offset_of(join, at) > place]
        if view.alias == _OWN:
            behind = []
        item = rows_of_call(view) if gives_written_rows(view.this) else view
        if item is None:
            raise script.refusal(
                "rows that are no values written out: their number, or a field's name, is none",
                at=place,
                fix="Write stack(2, 'north', north, 'south', south) AS (region, amount), or "
                "json_tuple(document, 'a', 'b') AS (a, b).",
            )
        joins.insert(behind[0] if behind else len(joins), exp.Join(this=item, kind="CROSS"))
    select.set("laterals", None)
    select.set("joins", joins)


def _refuse_elsewhere(script: Script, found: exp.Expr, at: int) -> None:
    """Refuse elements that are neither joined to rows nor an item of SELECT."""
    around = found.parent
    if isinstance(around, exp.Lateral):
        around = around.parent
    place = offset_of(found, at)
    if isinstance(around, exp.In):
        raise script.refusal(
            "IN UNNEST is not compiled", at=place, fix="Write array_contains(x.lines, value)."
        )
    if not isinstance(around, exp.Join):
        what = "UNNEST" if isinstance(found, exp.Unnest) else "a generator"
        raise script.refusal(
            f"elements of arrays and maps are not read here: {what} belongs to rows of an input",
            at=place,
            fix=FORM,
        )


def refuse_before_outer(script: Script, joins: list[exp.Expr], at: int) -> None:
    """Refuse elements before a RIGHT or FULL JOIN, which adds rows to what is exploded already."""
    for place, join in enumerate(joins):
        before = any(map(is_of_elements, joins[: place + 1]))
        if before and adds_rows(join):
            raise script.refusal(
                f"{side_of(join)} JOIN of or behind elements that are read as rows is not compiled",
                at=offset_of(join.this, at),
                fix="Read the elements in a query of their own: … JOIN (SELECT … FROM x LATERAL "
                "VIEW explode(x.lines) t AS line) y ON ….",
            )


def names_of(alias: exp.Expr | None) -> Iterator[str]:
    """Yield the names of columns behind an alias."""
    for each in [] if alias is None else alias.args.get("columns") or []:
        yield str(each.name)
