"""Whether a query is one step, or several."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.forms.element_forms import explodes
from projections.sql.forms.grouping_sets import has_sets
from projections.sql.forms.outer_joins import adds_rows
from projections.sql.operators.windows import is_session

STEPS = ("with_", "qualify", "distinct")
"""Clauses of a query of several steps that a query of one step does not have."""


def several_steps(query: exp.Expr) -> bool:
    """Say whether a query needs a plan tree, because it is more than one SELECT with lookups."""
    further = (*STEPS, "limit", "offset")
    if not isinstance(query, exp.Select) or any(query.args.get(each) for each in further):
        return True
    joined = [join.this for join in query.args.get("joins") or []]
    kinds = [join.text("kind").upper() for join in query.args.get("joins") or []]
    first = query.args["from_"].this if query.args.get("from_") is not None else None
    return (
        any(map(adds_rows, query.args.get("joins") or []))
        or has_sets(query)
        or explodes(query)
        or any(isinstance(each, exp.Stream | exp.Values) for each in joined)
        or any(
            isinstance(each, exp.Table) and not each.args.get("version")
            for each in (first, *joined)
        )
        or any(kind in ("SEMI", "ANTI") for kind in kinds)
        or query.find(exp.Window, exp.Subquery, exp.Exists) is not None
        or any(map(is_session, query.find_all(exp.Anonymous)))
    )
