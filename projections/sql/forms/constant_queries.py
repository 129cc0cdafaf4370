"""Rows that a query writes out, in whatever form, as VALUES behind JOIN.

`WITH v AS (VALUES …)`, `(SELECT 'a' AS k UNION ALL SELECT 'b') v` and `FROM (VALUES …) v JOIN t`
say the same. `LATERAL (VALUES (…), (…)) t`, `LATERAL VIEW stack(2, …) t` and `json_tuple(…)` are
rows whose values are computed of the row that they stand beside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from projections.sql.forms.outer_joins import side_of
from projections.sql.values.expressions import unwrapped

_BESIDE = "beside"
_NAMED = re.compile(r"(?!\*\Z)[^'?]+")
"""Fields of documents that a path names; of others it has none, and `*` is all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    rows: list[list[exp.Expr]]
    names: list[str]


def is_beside(item: exp.Expr) -> bool:
    """Say whether the values of rows are computed of the row that they stand beside."""
    return bool(item.meta.get(_BESIDE))


def gives_written_rows(node: exp.Expr) -> bool:
    """Say whether a call gives rows that are written out as its arguments."""
    named = isinstance(node, exp.Anonymous) and node.name.lower() == "json_tuple"
    return named or isinstance(node, exp.Stack)


def rows_of_call(view: exp.Expr) -> exp.Values | None:
    """Return a view of such a call as VALUES under its alias; None where they are no rows."""
    call, alias = view.this, view.args["alias"]
    if isinstance(call, exp.Stack):
        count, given = call.this, call.expressions
        if not isinstance(count, exp.Literal) or not count.is_int or int(count.name) < 1:
            return None
        width = -(-len(given) // int(count.name))
        padded = [*given, *(exp.Null() for _ in range(width * int(count.name) - len(given)))]
        rows = [padded[at : at + width] for at in range(0, len(padded), width)] if width else []
        named = [f"col{place}" for place in range(width)]
    else:
        document, *names = call.expressions or [exp.Null()]
        if not all(isinstance(each, exp.Literal) and _NAMED.fullmatch(each.name) for each in names):
            return None
        rows = [[_field(document, each.name) for each in names]] if names else []
        named = [f"c{place}" for place in range(len(names))]
    if not rows:
        return None
    named = [each.name for each in alias.args.get("columns") or []] or named
    return _values(_Rows(rows=rows, names=named), alias.this, beside=True)


def rows_beside(rows: Sequence[Sequence[exp.Expr]], names: Sequence[str], alias: str) -> exp.Values:
    """Return rows of which each row that they stand beside gives the values."""
    written = _Rows(rows=[[*row] for row in rows], names=[*names])
    return _values(written, exp.to_identifier(alias, quoted=True), beside=True)


def with_written_rows(query: exp.Expr) -> exp.Expr:
    """Return a query whose written rows are VALUES, behind a join wherever there is one."""
    for lateral in [*query.find_all(exp.Lateral)]:
        _stand_beside(lateral)
    for clause in [*query.find_all(exp.With)]:
        if not clause.args.get("recursive"):
            _put_in_place(query, clause)
    for found in [*query.find_all(exp.Subquery)]:
        _in_brackets(found)
    for select in [*query.find_all(exp.Select)]:
        _behind_join(select)
    return query


def _stand_beside(lateral: exp.Lateral) -> None:
    """Read LATERAL (VALUES (a.x), (a.y)) AS t(v)."""
    inner = lateral.this
    query = inner.this if isinstance(inner, exp.Subquery) else inner
    rows = _rows_of(query) if isinstance(query, exp.Values) else None
    alias = lateral.args.get("alias") or query.args.get("alias")
    if rows is not None and alias is not None and alias.this is not None:
        named = [each.name for each in alias.args.get("columns") or []]
        made = _Rows(rows=rows.rows, names=named or rows.names)
        lateral.replace(_values(made, alias.this, beside=True))


def _put_in_place(query: exp.Expr, clause: exp.With) -> None:
    """Put the written rows of a WITH where its query reads them."""
    ctes = [*query.find_all(exp.CTE)]
    for item in [*clause.expressions]:
        name = item.alias.lower()
        rows = _rows_of(item.this)
        if rows is None or sum(each.alias.lower() == name for each in ctes) > 1:
            continue
        given = [each.name for each in item.args["alias"].args.get("columns") or []]
        names = given or rows.names
        for table in [*query.find_all(exp.Table)]:
            if len(table.parts) == 1 and table.name.lower() == name and _is_plain(table):
                alias = table.args.get("alias")
                own = [each.name for each in (alias.args.get("columns") or [])] if alias else []
                called = table.this if alias is None or alias.this is None else alias.this
                made = _values(_Rows(rows=rows.rows, names=own or names), called)
                made.meta["start"] = table.this.meta.get("start", 0)
                table.replace(made)
        item.pop()
    if not clause.expressions:
        clause.pop()


def _is_plain(table: exp.Table) -> bool:
    further = [name for name, content in table.args.items() if content]
    return not {*further} - {"this", "alias"} and not isinstance(table.parent, exp.Stream)


def _in_brackets(found: exp.Subquery) -> None:
    """Read (SELECT 'a' AS k UNION ALL SELECT 'b') v, and of IN the values that it gives."""
    around, alias = found.parent, found.args.get("alias")
    rows = _rows_of(found.this)
    if rows is None or any(found.args.get(each) for each in ("pivots", "with_")):
        return
    if isinstance(around, exp.In) and found.arg_key == "query" and len(rows.names) == 1:
        around.set("query", None)
        around.set("expressions", [row[0].copy() for row in rows.rows])
    elif isinstance(around, exp.From | exp.Join) and alias is not None and alias.this is not None:
        own = [each.name for each in alias.args.get("columns") or []]
        found.replace(_values(_Rows(rows=rows.rows, names=own or rows.names), alias.this))


def _behind_join(select: exp.Expr) -> None:
    """Let rows that come with an event or a table be in front, and written ones join them."""
    first, joins = select.args.get("from_"), select.args.get("joins") or []
    if first is None or not isinstance(first.this, exp.Values) or not joins or select.is_star:
        return
    kind, item = joins[0].text("kind").upper(), joins[0].this
    plain = isinstance(item, exp.Table | exp.Stream | exp.Subquery) and not side_of(joins[0])
    if plain and kind in ("", "INNER", "CROSS"):
        values = first.this
        first.set("this", item.copy())
        item.replace(values)


def _rows_of(query: exp.Expr) -> _Rows | None:
    """Return the rows that a query writes out; None for one that reads any."""
    query = query.this if isinstance(query, exp.Subquery) and not query.alias else query
    if query.args.get("with_") is not None:
        return None
    match query:
        case exp.Values():
            return _of_values(query)
        case exp.Union() if not query.args.get("distinct"):
            sides = _rows_of(query.this), _rows_of(query.expression)
            bare = _is_bare(query, ("this", "expression", "by_name"))
            return _united(*sides, by_name=bool(query.args.get("by_name"))) if bare else None
        case exp.Select() if _is_bare(query, ("expressions", "from_", "kind")):
            return _of_select(query)
        case _:
            return None


def _is_bare(query: exp.Expr, known: Sequence[str]) -> bool:
    return not any(content for clause, content in query.args.items() if clause not in known)


def _united(first: _Rows | None, second: _Rows | None, *, by_name: bool) -> _Rows | None:
    if first is None or second is None or len(first.names) != len(second.names):
        return None
    if by_name:
        places = {name.lower(): place for place, name in enumerate(second.names)}
        if {*places} != {*map(str.lower, first.names)}:
            return None
        order = [places[name.lower()] for name in first.names]
        rows = [[row[place] for place in order] for row in second.rows]
        second = _Rows(rows=rows, names=first.names)
    return _Rows(rows=[*first.rows, *second.rows], names=first.names)


def _of_values(values: exp.Values) -> _Rows | None:
    if not _is_bare(values, ("expressions", "alias")):
        return None
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    alias = values.args.get("alias")
    named = [each.name for each in (alias.args.get("columns") or [])] if alias else []
    return _Rows(rows=rows, names=named or [f"col{n}" for n in range(1, len(rows[0]) + 1)])


def _of_select(select: exp.Select) -> _Rows | None:
    """Read a SELECT of values, and one of columns of written rows."""
    first = select.args.get("from_")
    if first is None:
        values = [each.unalias() for each in select.expressions]
        if any(each.find(exp.Column, exp.Star, exp.Query, exp.AggFunc) for each in values):
            return None
        names = [each.alias or f"col{n}" for n, each in enumerate(select.expressions, start=1)]
        return _Rows(rows=[values], names=names)
    rows = _rows_of(first.this.unnest() if isinstance(first.this, exp.Subquery) else first.this)
    if rows is None:
        return None
    if [type(each) for each in select.expressions] == [exp.Star]:
        return rows if _is_bare(select.expressions[0], ()) else None
    known = {name.lower(): place for place, name in enumerate(rows.names)}
    items = [unwrapped(each.unalias()) for each in select.expressions]
    if not all(isinstance(each, exp.Column) and each.name.lower() in known for each in items):
        return None
    places = [known[each.name.lower()] for each in items]
    return _Rows(
        rows=[[row[place] for place in places] for row in rows.rows if len(row) == len(known)],
        names=[each.alias_or_name for each in select.expressions],
    )


def _values(rows: _Rows, alias: exp.Expr, *, beside: bool = False) -> exp.Values:
    made = exp.Values(
        expressions=[exp.Tuple(expressions=[each.copy() for each in row]) for row in rows.rows],
        alias=exp.TableAlias(
            this=alias.copy(),
            columns=[exp.to_identifier(name, quoted=True) for name in rows.names],
        ),
    )
    made.meta[_BESIDE] = beside
    return made


def _field(document: exp.Expr, name: str) -> exp.Expr:
    """Return a field of a document by its name, as json_tuple gives it."""
    path = exp.Literal.string(f"$['{name}']")
    return exp.JSONExtractScalar(this=document.copy(), expression=path, only_json_types=False)
