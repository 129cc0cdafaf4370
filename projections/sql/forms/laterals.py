"""LATERAL, and the one row of totals behind CROSS JOIN: joins by what they equate.

`a, LATERAL (SELECT … FROM b WHERE b.k = a.k ORDER BY x LIMIT 3) t` is a join with the first three
rows of each `k`, and a total of the rows that are equal is one of their groups. `a CROSS JOIN
(SELECT SUM(x) AS total FROM b) t` joins all rows with one. A group of no rows is none, where SQL
has a row of it: such joins are LEFT, and counts are 0 where there is no row.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from projections.sql.forms.comma_joins import alias_of_input, is_bare
from projections.sql.forms.correlations import equated_in, equating_all, joins_read, reads
from projections.sql.forms.outer_joins import adds_rows
from projections.sql.forms.scalar_subqueries import (
    aliases_of,
    first_of_each,
    is_of_aggregates,
    of_one_row,
)
from projections.sql.values.expressions import AGGREGATES, conjuncts, unwrapped
from projections.sql.words.places import Script, offset_of

_KEY = "penstock_lateral_"
_NONE = exp.Literal.number(0)
_STRICT = (
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Paren, exp.Cast, exp.Round),
    *(exp.Literal, exp.DataType, exp.DataTypeParam),
)
"""What is NULL where a part of it is."""
_FURTHER = ("having", "qualify", "distinct", "offset", "with_")


def without_laterals(script: Script, select: exp.Select, at: int) -> exp.Select:
    """Write them as joins. Raises `InvalidRequest` for a LATERAL that equates nothing."""
    joins = select.args.get("joins") or []
    if not any(isinstance(join.this, exp.Lateral | exp.Subquery) for join in joins):
        return select
    changed = select.copy()
    first = changed.args.get("from_")
    known = set() if first is None else {alias_of_input(first.this)}
    for place, join in enumerate(changed.args["joins"]):
        if isinstance(join.this, exp.Lateral) and isinstance(join.this.this, exp.Subquery):
            if not _joined(changed, join, known, place):
                raise script.refusal(
                    "LATERAL is not compiled here",
                    at=offset_of(join, at),
                    fix="Name what it reads of the inputs before it with their aliases: LATERAL "
                    "(SELECT x FROM b WHERE b.key = a.key ORDER BY x LIMIT 3) t.",
                )
        elif isinstance(join, exp.Join) and isinstance(join.this, exp.Subquery):
            _of_totals(changed, join)
        known.add(alias_of_input(join.this))
    return changed


def _joined(select: exp.Select, join: exp.Expr, known: Collection[str], number: int) -> bool:
    """Write a LATERAL as a join, if what it reads of the inputs before it is equated."""
    lateral = join.this
    query = lateral.this.this
    on = join.args.get("on")
    plain = on is None or (isinstance(on, exp.Boolean) and on.this)
    if not plain or not isinstance(query, exp.Select) or _has(query, _FURTHER):
        return False
    outside = {*known} - aliases_of(query)
    before = select.copy()
    before.set("joins", before.args["joins"][:number])
    query = equating_all(query.copy(), before, (), outside, number)
    assert isinstance(query, exp.Select), "it was one"
    pairs, rest = equated_in(query, outside)
    if not pairs or joins_read(query, outside):
        return False
    if any(reads(each, outside) for each in query.expressions):
        return False
    keys = [each.own.copy() for each in pairs]
    names = [f"{_KEY}{number}_{place}" for place in range(len(keys))]
    made = query.copy()
    _partition(made, keys)
    total = not query.args.get("group") and all(_is_total(each) for each in query.expressions)
    if (query.args.get("limit") or query.args.get("order")) and not first_of_each(made, keys):
        return False
    if total or query.args.get("group"):
        group = query.args.get("group")
        own = [] if group is None else [each.copy() for each in group.expressions]
        made.set("group", exp.Group(expressions=[*own, *(exp.Paren(this=key) for key in keys)]))
    items = [exp.alias_(key.copy(), name) for key, name in zip(keys, names, strict=True)]
    made.set("expressions", [*made.expressions, *items])
    made.set("where", exp.Where(this=exp.and_(*rest)) if rest else None)
    alias = alias_of_input(lateral)
    equal = [
        each.with_column(exp.column(name, table=alias))
        for name, each in zip(names, pairs, strict=True)
    ]
    if total and not _count_none(select, query, alias):
        return False
    if total:
        join.set("side", "LEFT")
    join.set("kind", None)
    join.set("this", exp.Subquery(this=made, alias=lateral.args["alias"].copy()))
    join.set("on", exp.and_(*equal))
    return True


def _partition(query: exp.Select, keys: Collection[exp.Expr]) -> None:
    """Let functions over rows be of the rows of one key: those are all that LATERAL sees."""
    for item in query.expressions:
        for found in [*item.walk(prune=lambda node: isinstance(node, exp.Query))]:
            if isinstance(found, exp.Window):
                by = found.args.get("partition_by") or []
                found.set("partition_by", [*by, *(key.copy() for key in keys)])


def _has(query: exp.Select, clauses: Collection[str]) -> bool:
    return any(query.args.get(each) for each in clauses)


def _is_total(item: exp.Expr) -> bool:
    """Say whether an item is made of aggregates, and NULL where one of them is."""
    value = item.unalias()
    calls = (exp.Filter, *AGGREGATES)
    outside = [*value.walk(prune=lambda node: isinstance(node, calls))]
    return is_of_aggregates(value) and all(isinstance(each, (*calls, *_STRICT)) for each in outside)


def _of_totals(select: exp.Select, join: exp.Join) -> None:
    """Write CROSS JOIN with the one row of a query of totals as a join of all rows with it.

    An inner join that equates a total has none of what no row has. Any other condition may hold
    where the totals are NULL, and is asked of all rows behind the join.
    """
    inner = join.text("side") == "" and join.text("kind").upper() in ("", "INNER")
    on = join.args.get("on")
    if not is_bare(join) and not (inner and on):
        return
    query = join.this.this
    further = (*_FURTHER, "group", "limit", "order")
    if not isinstance(query, exp.Select) or _has(query, further):
        return
    if not query.expressions or not all(_is_total(each) for each in query.expressions):
        return
    alias = alias_of_input(join.this)
    counted = any(each.find(exp.Count, exp.CountIf) for each in query.expressions)
    group = exp.Group(expressions=[exp.Literal.string("all")])
    if on is not None and not counted and _needs_total(on, query, alias):
        query.set("group", group)
        return
    if on is not None and any(adds_rows(each) for each in select.args["joins"]):
        return
    if on is not None:
        join.set("on", None)
        select.where(on, copy=False)
    if not _count_none(select, query, alias):
        return
    query.set("group", group)
    join.set("kind", None)
    join.set("side", "LEFT")
    of_one_row(join)


def _needs_total(on: exp.Expr, query: exp.Select, alias: str) -> bool:
    """Say whether a condition holds nowhere if the totals are NULL."""
    totals = {item.alias_or_name.lower() for item in query.expressions}

    def is_null(side: exp.Expr) -> bool:
        own = [
            found.table.lower() == alias or (not found.table and found.name.lower() in totals)
            for found in side.find_all(exp.Column)
        ]
        strict = (exp.Column, exp.Identifier, *_STRICT)
        return any(own) and all(isinstance(each, strict) for each in side.walk())

    equated = [part for part in map(unwrapped, conjuncts(on)) if isinstance(part, exp.EQ)]
    return any(is_null(part.this) or is_null(part.expression) for part in equated)


def _count_none(select: exp.Select, query: exp.Select, alias: str) -> bool:
    """Let counts of a query be 0 where it gives no row; say whether it has no others in it."""
    counts = set()
    for item in query.expressions:
        value = item.unalias()
        whole = value.this if isinstance(value, exp.Filter) else value
        if isinstance(whole, exp.Count | exp.CountIf):
            counts.add(item.alias.lower())
        elif value.find(exp.Count, exp.CountIf) is not None:
            return False
    inner = {id(found) for found in query.walk()}
    for found in [*select.find_all(exp.Column)]:
        own = found.table.lower() in ("", alias) and found.name.lower() in counts
        if own and id(found) not in inner and _is_read_by(select, found, alias):
            made: exp.Expr = exp.Coalesce(this=found.copy(), expressions=[_NONE.copy()])
            unnamed = found.parent is select and found.arg_key == "expressions"
            found.replace(exp.alias_(made, found.name) if unnamed else made)
    return True


def _is_read_by(select: exp.Select, found: exp.Column, alias: str) -> bool:
    """Say whether a column is one of a query's inputs, also where a query inside of it reads it."""
    around = found.find_ancestor(exp.Select)
    if around is select:
        return True
    while found.table and around is not None and around is not select:
        if alias in aliases_of(around):
            return False  # It is another input of this name.
        around = around.find_ancestor(exp.Select)
    return around is select
