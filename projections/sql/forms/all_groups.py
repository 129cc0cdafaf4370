"""GROUP BY ALL, written out: by all results that are no aggregates."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.values.expressions import has_aggregate


def with_all_groups(query: exp.Expr) -> exp.Expr:
    """Write GROUP BY ALL out, in all SELECTs of a query that have anything to group by."""
    for select in [*query.find_all(exp.Select)]:
        group = select.args.get("group")
        if group is not None and group.args.get("all"):
            results = [item.unalias() for item in select.expressions]
            groups = [result.copy() for result in results if _is_of_rows(result)]
            if groups:
                select.set("group", exp.Group(expressions=groups))
    return query


def _is_of_rows(result: exp.Expr) -> bool:
    """Say whether a result is one of each row, and not the same of all."""
    over = result.find(exp.Window) is not None
    return result.find(exp.Column) is not None and not over and not has_aggregate(result)
