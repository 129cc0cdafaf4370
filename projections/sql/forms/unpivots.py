"""UNPIVOT as what it is: each row once for each of its columns in a list.

The names and values of the list are rows that are written out beside each row.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.forms.constant_queries import rows_beside

_ROWS = "penstock_rows"
_LISTED = "penstock_listed"
"""The names of the rows, and of those beside them: a query has no such names."""


def with_unpivots(query: exp.Expr) -> exp.Expr:
    """Return a query with SELECTs in the place of UNPIVOT; one that is no such list is left."""
    for pivot in [*query.find_all(exp.Pivot)]:
        if pivot.args.get("unpivot"):
            _replace(pivot)
    return query


def _replace(pivot: exp.Expr) -> None:
    holder = pivot.parent
    fields = pivot.args.get("fields") or []
    listed = fields[0] if len(fields) == 1 and isinstance(fields[0], exp.In) else None
    if holder is None or listed is None or len(holder.args.get("pivots") or []) != 1:
        return
    values = [each.name for each in _parts(pivot.expressions[0])]
    columns = [_columns(each) for each in listed.expressions]
    if len(pivot.expressions) != 1 or not all(len(each) == len(values) for each in columns):
        return
    names = [_name(each) for each in listed.expressions]
    item = holder.parent if isinstance(holder.parent, exp.Stream) else holder
    alias = str(pivot.alias or holder.alias or holder.name or _ROWS)
    rows = item.copy()
    table = rows.this if isinstance(rows, exp.Stream) else rows
    table.set("pivots", None)
    own = str(table.alias or _ROWS)
    table.set("alias", exp.TableAlias(this=exp.to_identifier(own, quoted=True)))
    made = _select(rows, own, columns)
    given = [listed.this.name, *values]
    beside = [[exp.Literal.string(name), *each] for name, each in zip(names, columns, strict=True)]
    made.append("joins", exp.Join(this=rows_beside(beside, given, _LISTED), kind="CROSS"))
    results = [exp.column(name, table=_LISTED, quoted=True) for name in given]
    for result in results:
        result.meta["start"] = listed.this.meta.get("start", 0)
        made.append("expressions", result)
    if not pivot.args.get("include_nulls"):
        known = [
            exp.Not(this=exp.Is(this=each.copy(), expression=exp.Null())) for each in results[1:]
        ]
        made.set("where", exp.Where(this=exp.or_(*known)))
    named = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
    item.replace(exp.Subquery(this=made, alias=named))


def _select(rows: exp.Expr, own: str, columns: list[list[exp.Expr]]) -> exp.Select:
    """Return the SELECT of all other columns of some rows."""
    for part in (part for each in columns for part in each):
        part.set("table", exp.to_identifier(own, quoted=True))
    left_out = {part.name.lower(): part.this.copy() for each in columns for part in each}
    star = exp.Star(except_=[*left_out.values()])
    return exp.Select(
        expressions=[exp.Column(this=star, table=exp.to_identifier(own, quoted=True))],
        from_=exp.From(this=rows),
    )


def _parts(node: exp.Expr) -> list[exp.Expr]:
    return node.expressions if isinstance(node, exp.Tuple) else [node]


def _columns(listed: exp.Expr) -> list[exp.Expr]:
    parts = _parts(listed.this if isinstance(listed, exp.PivotAlias) else listed)
    return parts if all(isinstance(each, exp.Column) for each in parts) else []


def _name(listed: exp.Expr) -> str:
    """Return the name that is given to a part of the list, or the names of its columns."""
    if isinstance(listed, exp.PivotAlias):
        return str(listed.args["alias"].name)
    return "_".join(each.name for each in _parts(listed))
