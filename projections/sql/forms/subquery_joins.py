"""EXISTS, IN and their negations in WHERE, as the joins that they are.

`x NOT IN (SELECT y …)` is not known where `x` or a `y` is NULL, and what is not known is left out:
one `y` that is NULL leaves no row, one `y` at all leaves no row whose `x` is NULL. These are anti
joins of their own, with one row that is there as long as there is such a `y`. They are left out
where WHERE says that there is no NULL.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.forms.correlations import equated_in, equating_all, joins_read, reads
from projections.sql.forms.counted_subqueries import (
    above,
    bare,
    counted,
    has_aggregates,
    named_columns,
    named_rows,
    with_alias,
)
from projections.sql.forms.grouping_sets import has_sets
from projections.sql.forms.known_values import conditions_in, gives_values, has_value
from projections.sql.forms.scalar_subqueries import Known, aliases_of, of_one_row
from projections.sql.values.expressions import same_text, unwrapped
from projections.sql.words.places import Script, offset_of

_ALL = exp.Literal.string("all")
_NONE = exp.Literal.number(0)


def without_subqueries(script: Script, select: exp.Select, at: int, known: Known) -> exp.Select:
    """Write EXISTS and IN (SELECT …) in WHERE as semi joins, their negations as anti joins."""
    select = _related(_for_any(select), known)
    select = counted(select)
    parts = conditions_in(select, "where")
    kept: list[exp.Expr] = []
    made: list[exp.Join] = []
    for part in parts:
        joins = _as_joins(script, select, part, len(made), at, known)
        made += joins
        kept += [] if joins else [part]
    if not made:
        return select
    changed = select.copy()
    changed.set("joins", [*(changed.args.get("joins") or []), *made])
    rest = exp.and_(*kept, copy=True) if kept else None
    changed.set("where", exp.Where(this=rest) if rest is not None else None)
    return changed


def _as_joins(
    script: Script, select: exp.Select, part: exp.Expr, number: int, at: int, known: Known
) -> list[exp.Join]:
    part = unwrapped(part)
    negated = isinstance(part, exp.Not)
    inner = unwrapped(part.this) if negated else part
    if isinstance(inner, exp.Exists) and inner.this.args.get("group"):
        query = _with_given_names(inner.this, known)
        groups = _groups(select, query, f"penstock_exists_{number}", number)
        if groups is not None:
            groups.set("kind", "ANTI" if negated else "SEMI")
            return [groups]
    if isinstance(inner, exp.Exists):
        whole = _with_own_rows(inner, f"penstock_exists_{number}", aliases_of(select))
        return [_exists(script, whole, "ANTI" if negated else "SEMI", at)]
    if not isinstance(inner, exp.In) or not inner.args.get("query"):
        return []
    query = inner.args["query"].this
    given: Sequence[exp.Expr] = query.expressions if isinstance(query, exp.Select) else ()
    several = inner.this.expressions if isinstance(inner.this, exp.Tuple) else []
    if len(given) > 1 and len(given) == len(several):
        name = f"penstock_in_{number}"
        return [_in_several(select, query, several, name, negated=negated)]
    if len(given) != 1:
        word = "NOT IN" if negated else "IN"
        raise script.refusal(
            f"{word} (SELECT …) compares with one column",
            at=offset_of(inner, at),
            fix="Select one column, or write LEFT ANTI JOIN."
            if negated
            else "Select one column, or write LEFT SEMI JOIN.",
        )
    name = f"penstock_in_{number}"
    rows = named_rows(query, name)
    value = inner.this
    equal = exp.EQ(this=value.copy(), expression=exp.column(name, table=name))
    joins = [exp.Join(this=rows, side="LEFT", kind="ANTI" if negated else "SEMI", on=equal)]
    if negated and not gives_values(query):
        joins.append(_unless_null(rows, name))
    if negated and not has_value(select, value, conditions_in(select, "where")):
        joins.append(_unless_any(rows, name, value))
    return joins


def _for_any(select: exp.Select) -> exp.Select:
    """Leave out in EXISTS what does not say whether there is a row: DISTINCT, an order, LIMIT."""
    changed = select.copy()
    for found in changed.find_all(exp.Exists):
        query = found.this
        limit = query.args.get("limit")
        count = None if limit is None else limit.args.get("expression")
        some = limit is None or (isinstance(count, exp.Literal) and count.name not in ("", "0"))
        if isinstance(query, exp.Select) and some and not query.args.get("offset"):
            for clause in ("distinct", "order", "limit"):
                query.set(clause, None)
    return changed


def _groups(select: exp.Select, query: exp.Select, name: str, number: int) -> exp.Join | None:
    """Return the join with groups that EXISTS asks for; None where it reads more than is equated.

    They are groups by what is equated, too: each is of the rows that a row around it asks for.
    """
    outside = aliases_of(select) - aliases_of(query)
    own = _with_written_groups(query)
    # Which rows of all groups these leave would be asked of those of every key together.
    if own is None or any(query.args.get(each) for each in ("qualify", "limit", "offset")):
        return None
    made = equating_all(own, select, conditions_in(select, "where"), outside, number)
    assert isinstance(made, exp.Select), "it was one"
    pairs, rest = equated_in(made, outside)
    others = (made.args.get("having"), made.args["group"])
    if not pairs or has_sets(made) or joins_read(made, outside):
        return None
    if any(each is not None and reads(each, outside) for each in others):
        return None
    made = made.copy()
    columns = [f"{name}_{place}" for place in range(len(pairs))]
    keys = [exp.Paren(this=each.own.copy()) for each in pairs]
    made.set("group", exp.Group(expressions=[*made.args["group"].expressions, *keys]))
    named = zip(pairs, columns, strict=True)
    made.set("expressions", [exp.alias_(each.own.copy(), own) for each, own in named])
    made.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
    table = exp.Subquery(this=made, alias=exp.TableAlias(this=exp.to_identifier(name)))
    equal = [
        each.with_column(exp.column(own, table=name))
        for each, own in zip(pairs, columns, strict=True)
    ]
    return exp.Join(this=table, side="LEFT", on=exp.and_(*equal))


def _with_given_names(query: exp.Select, known: Known) -> exp.Select:
    """Write names given by AS, in GROUP BY and HAVING, as what they stand for.

    What EXISTS selects is not kept. A column of the inputs comes before such a name.
    """
    given = {item.alias.lower(): item.this for item in query.expressions if item.alias}
    if not given:
        return query
    made, columns = query.copy(), known(query)

    def meant(found: exp.Expr) -> exp.Expr:
        alone = isinstance(found, exp.Column) and len(found.parts) == 1
        value = given.get(found.name.lower()) if alone else None
        if value is None or found.name.lower() in columns:
            return found
        return exp.Paren(this=value.copy())

    for clause in ("group", "having"):
        if made.args.get(clause) is not None:
            made.set(clause, made.args[clause].transform(meant))
    return made


def _with_written_groups(query: exp.Select) -> exp.Select | None:
    """Write a group that is the number of a column as what that column is.

    None for a number that is no column's: what the query selects is not kept.
    """
    made = query.copy()
    items = made.expressions
    for group in [*made.args["group"].expressions]:
        if isinstance(group, exp.Literal) and group.is_int:
            at = int(group.name)
            if not 1 <= at <= len(items) or any(item.is_star for item in items[:at]):
                return None
            group.replace(exp.Paren(this=items[at - 1].unalias().copy()))
    return made


def _related(select: exp.Select, known: Known) -> exp.Select:
    """Write IN of rows that the query around them chooses as EXISTS.

    `x NOT IN` such rows holds where there is none of which it is not known to be different.
    """
    changed = select.copy()
    for found in [bare(part) for part in conditions_in(changed, "where")]:
        if isinstance(found, exp.In):
            negated = isinstance(above(found), exp.Not)
            made = _chosen(found, aliases_of(changed), known, negated=negated)
            if made is not None:
                found.replace(made)
    return changed


def _chosen(found: exp.In, around: set[str], known: Known, *, negated: bool) -> exp.Exists | None:
    """Return IN of rows that are chosen by columns of the query around as EXISTS, else None."""
    query = found.args["query"].this if found.args.get("query") else None
    further = ("group", "having", "qualify", "limit", "with_")
    if not isinstance(query, exp.Select) or any(query.args.get(e) for e in further):
        return None
    own, where = aliases_of(query), query.args.get("where")
    item, value = query.expressions[0].unalias(), found.this
    several = len(query.expressions) > 1 or isinstance(value, exp.Tuple)
    computed = item.find(exp.AggFunc, exp.Window, exp.Query) is not None
    if where is None or several or computed or reads(value, own):
        return None
    if not reads(where, around - own) or not reads(where, around - own - {*known(query)}):
        return None
    item = with_alias(item, query)
    equal: exp.Expr = exp.EQ(this=item, expression=value.copy())
    if negated:
        sides = [exp.Paren(this=each.copy()) for each in (item, value)]
        unknown = [exp.Is(this=each, expression=exp.Null()) for each in sides]
        equal = exp.Paren(this=exp.or_(equal, *unknown))
    made = query.copy()
    made.set("expressions", [exp.Literal.number(1)])
    made.set("distinct", None)
    made.set("where", exp.Where(this=exp.and_(where.this.copy(), equal)))
    return exp.Exists(this=made)


def _in_several(
    select: exp.Select, query: exp.Select, values: Sequence[exp.Expr], name: str, *, negated: bool
) -> exp.Join:
    """Return the join of (a, b) IN (SELECT x, y …), or of its negation.

    A row is NOT IN rows of which each is known to differ in one column: what is not known to differ
    may be the same.
    """
    given = [item.unalias() for item in query.expressions]
    inside = (*conditions_in(query, "where"), *conditions_in(query, "having"))
    around = conditions_in(select, "where")
    sure = [
        not has_sets(query) and has_value(query, item, inside) and has_value(select, value, around)
        for item, value in zip(given, values, strict=True)
    ]
    rows, columns = named_columns(query, name)
    equal: list[exp.Expr] = []
    for value, each, known in zip(values, columns, sure, strict=True):
        sides = [exp.Paren(this=value.copy()), each]
        same: exp.Expr = exp.EQ(this=value.copy(), expression=sides[1])
        if negated and not known:
            unknown = [exp.Is(this=side.copy(), expression=exp.Null()) for side in sides]
            same = exp.Paren(this=exp.or_(same, *unknown))
        equal.append(same)
    kind = "ANTI" if negated else "SEMI"
    return exp.Join(this=rows, side="LEFT", kind=kind, on=exp.and_(*equal))


def _with_own_rows(found: exp.Exists, name: str, around: set[str]) -> exp.Exists:
    """Return EXISTS of several inputs as one of the rows that they are joined to.

    So is one of rows that a subquery of their own chooses.
    """
    query = found.this
    if not isinstance(query, exp.Select):
        return found
    outside = around - aliases_of(query)
    parts = conditions_in(query, "where")
    both = [part for part in parts if reads(part, outside)]
    asking = any(part.find(exp.Query) for part in parts if not reads(part, outside))
    if not query.args.get("joins") and not asking:
        return found
    rows = query.copy()
    names: dict[str, str] = {}
    items: list[exp.Expr] = []

    def named(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or reads(node, outside):
            return node
        text = same_text(node)
        if text not in names:
            names[text] = f"{name}_{len(names)}"
            items.append(exp.alias_(node.copy(), names[text]))
        return exp.column(names[text], table=name)

    where = [part.copy().transform(named) for part in both]
    further = ("group", "having", "qualify", "limit")
    if not where or any(query.args.get(e) for e in further) or has_aggregates(query):
        return found
    own = [part.copy() for part in parts if not any(part is each for each in both)]
    rows.set("expressions", items)
    rows.set("distinct", None)
    rows.set("where", exp.Where(this=exp.and_(*own)) if own else None)
    table = exp.Subquery(this=rows, alias=exp.TableAlias(this=exp.to_identifier(name)))
    made = exp.Select(
        expressions=[exp.Literal.number(1)],
        from_=exp.From(this=table),
        where=exp.Where(this=exp.and_(*where)),
    )
    return exp.Exists(this=made)


def _unless_null(rows: exp.Subquery, name: str) -> exp.Join:
    """Leave no row while one of `rows` is NULL."""
    null = exp.Is(this=exp.column(name, table=name), expression=exp.Null())
    table = _one_row(rows, f"{name}_null", null)
    return of_one_row(exp.Join(this=table, side="LEFT", kind="ANTI"))


def _unless_any(rows: exp.Subquery, name: str, value: exp.Expr) -> exp.Join:
    """Leave no row whose value is NULL while there is one of `rows`."""
    table = _one_row(rows, f"{name}_any", None)
    null = exp.Is(this=exp.Paren(this=value.copy()), expression=exp.Null())
    unknown = exp.Case(ifs=[exp.If(this=null, true=_ALL.copy())])
    met = exp.EQ(this=unknown, expression=exp.column(f"{name}_any", table=f"{name}_any"))
    return exp.Join(this=table, side="LEFT", kind="ANTI", on=met)


def _one_row(rows: exp.Subquery, name: str, where: exp.Expr | None) -> exp.Subquery:
    """Return a table with one row as long as there is one for which a condition holds."""
    query = exp.Select(
        expressions=[exp.alias_(_ALL.copy(), name)],
        from_=exp.From(this=rows.copy()),
        where=None if where is None else exp.Where(this=where),
        group=exp.Group(expressions=[_ALL.copy()]),
    )
    return exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier(name)))


def _exists(script: Script, found: exp.Exists, kind: str, at: int) -> exp.Join:
    query = found.this
    plain = isinstance(query, exp.Select) and not any(
        content
        for clause, content in query.args.items()
        if clause not in ("expressions", "from_", "where") and content
    )
    where = query.args.get("where")
    if not plain or where is None or query.args.get("from_") is None:
        raise script.refusal(
            "EXISTS takes a SELECT with FROM and WHERE alone",
            at=offset_of(found, at),
            fix="Write LEFT SEMI JOIN or LEFT ANTI JOIN with the conditions in ON.",
        )
    if any(each.find(exp.AggFunc) for each in query.expressions):
        raise script.refusal(
            "EXISTS of an aggregate: without GROUP BY there is always one row of it",
            at=offset_of(found, at),
            fix="Ask for rows: EXISTS (SELECT 1 FROM x WHERE x.key = …).",
        )
    return exp.Join(
        this=query.args["from_"].this.copy(), side="LEFT", kind=kind, on=where.this.copy()
    )
