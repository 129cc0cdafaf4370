"""Which SQL expressions the dialect has. Everything else is refused by name.

A function is here when its value depends on its arguments alone, and when what sqlglot writes for
it means the same to Spark as what the author wrote (a test runs both forms of each).
"""

from __future__ import annotations

import re
from collections.abc import Container
from functools import cache

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.values.time_zones import OF_ZONES, check_zone
from projections.sql.words.collected_refusals import refuse
from projections.sql.words.foreign_names import FORMS
from projections.sql.words.functions import NEAR, function_of
from projections.sql.words.lambdas import check_lambda
from projections.sql.words.places import Script, near_of, offset_of, with_offsets
from projections.sql.words.spark_functions import (
    BEYOND_SIGHT,
    CLASSES,
    OPERATORS,
    PASSED_ON,
    UNSTABLE,
)
from projections.sql.words.tokens import SPARK

AGGREGATES = (
    exp.Count,
    exp.Sum,
    exp.Avg,
    exp.Min,
    exp.Max,
    exp.CountIf,
    exp.LogicalOr,
    exp.LogicalAnd,
    exp.GroupConcat,
    exp.ArrayAgg,
    exp.ArrayUniqueAgg,
    exp.Quantile,
    exp.Variance,
    exp.VariancePop,
    exp.ArgMax,
    exp.ArgMin,
    exp.Mode,
    exp.BitwiseAndAgg,
    exp.BitwiseOrAgg,
    exp.BitwiseXorAgg,
)

_OF_THE_PARSER = re.compile(
    "ts_or_|time_to_|time_str_|safe_|json_extract|at_time|from_time|.*_zone$"
)
"""Names that sqlglot has for functions, and no author writes."""
_REASONS = {
    exp.Window: (
        "OVER (…) stands in SELECT and QUALIFY only",
        "Name it in a subquery: FROM (SELECT …, SUM(x) OVER (…) AS total …) WHERE total > 1.",
    ),
    exp.Subquery: ("a subquery is not compiled here", "Join it: FROM x JOIN (SELECT …) y ON …."),
    exp.Select: ("a subquery is not compiled here", "Join it: FROM x JOIN (SELECT …) y ON …."),
    exp.Exists: ("EXISTS is not compiled here", "Write it in WHERE, joined by AND alone."),
    exp.Placeholder: ("a placeholder has no value here", "Write the value."),
    exp.Order: (
        "ORDER BY in a call that lists no values",
        "It stands in lists: STRING_AGG(x, ', ' ORDER BY y DESC), ARRAY_AGG(x ORDER BY y). The "
        "value of the row with the least y is MIN_BY(x, y).",
    ),
    exp.Struct: (
        "struct(*) does not name its fields",
        "Name the columns: struct(a, b), or named_struct('a', a, 'b', b).",
    ),
}
_OF_WINDOWS = re.compile(
    "(session_)?window|session|window_time|(tumble|hop|cumulate|session)_(start|end|rowtime|proctime)",
    re.IGNORECASE,
)
"""Names by which Flink and Spark know windows and their bounds."""


def check(script: Script, node: exp.Expr, *, at: int, aggregates: bool) -> None:
    """Refuse what `node` contains beyond the dialect; aggregates only where they may stand."""
    refused: set[int] = set()
    for found, begins in with_offsets(node, at):
        if id(found.parent) in refused:
            refused.add(id(found))
            continue
        try:
            if not _orders_list(found) and not _names_argument(found):
                _check_one(script, found, begins, aggregates)
        except InvalidRequest as error:
            refuse(error)
            if not isinstance(found, exp.Func):
                # What is in it, as the clauses of a subquery, would be refused as well.
                refused.add(id(found))


_COMPARISONS = (
    *(exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Like, exp.ILike, exp.RegexpLike, exp.In, exp.Between, exp.Is),
)


def _check_comparison(script: Script, found: exp.Expr, at: int) -> None:
    if isinstance(found, _COMPARISONS) and any(
        isinstance(side, _COMPARISONS) for side in (found.this, found.args.get("expression"))
    ):
        # Spark goes from left to right, whichever they are; others have more levels.
        raise script.refusal(
            "a comparison of a comparison without brackets",
            at=at,
            fix="Say which is compared first: a = (b > c), or (a = b) > c.",
        )


def _check_one(script: Script, found: exp.Expr, at: int, aggregates: bool) -> None:
    kind = type(found).__name__
    _check_comparison(script, found, at)
    if isinstance(found, exp.Lambda):
        check_lambda(script, found, at)
    elif isinstance(found, AGGREGATES):
        _check_aggregate(script, found, at, aggregates)
    elif function_of(found) is not None or (
        isinstance(found, exp.Anonymous) and _is_named(found, PASSED_ON)
    ):
        if any(isinstance(each, exp.Star) for each in found.expressions):
            raise script.refusal("* does not name columns", at=at, fix="Name the columns.")
    elif isinstance(found, exp.StrToUnix) or _is_named(found, UNSTABLE):
        raise script.refusal(
            f"{_written(found)} gives another value at every run: a rebuild would differ",
            at=at,
            fix="Use a time or an id of the row, as occurred_at or recorded_at.",
        )
    elif isinstance(found, exp.Anonymous) and found.name.upper() in ("TUMBLE", "HOP", "CUMULATE"):
        raise script.refusal(
            f"{found.name.upper()} stands in GROUP BY only",
            at=at,
            fix="Group by it, and select window_start and window_end.",
        )
    elif isinstance(found, exp.AggFunc):
        raise script.refusal(
            f"the aggregate {_written(found)} is not in the dialect (its result may depend on the "
            "order of arrival)",
            at=at,
            fix="Aggregates: COUNT, SUM, AVG, MIN, MAX, COUNT(DISTINCT …), COUNT_IF, BOOL_AND, "
            "BOOL_OR, BIT_AND, BIT_OR, BIT_XOR, MAX_BY, MIN_BY, FIRST, LAST, MODE, MEDIAN, "
            "PERCENTILE, STDDEV, VARIANCE, CORR, COVAR_POP, COVAR_SAMP, STRING_AGG, ARRAY_AGG. A "
            "column beside GROUP BY gives its newest value.",
        )
    elif isinstance(found, exp.Anonymous) or (kind not in OPERATORS and kind not in CLASSES):
        _refuse_other(script, found, at)
    elif isinstance(found, exp.DataType) and found.this == exp.DataType.Type.TIME:
        raise script.refusal(
            "a time of day is no type of Spark's here",
            at=at,
            fix="Keep it as a text, or as seconds since midnight: hour(t) * 3600 + minute(t) * 60.",
        )
    elif isinstance(found, OF_ZONES):
        check_zone(script, found, at)
    elif isinstance(found, exp.In) and (found.args.get("query") or found.args.get("unnest")):
        raise script.refusal(
            "IN (SELECT …) is not compiled here",
            at=at,
            fix="Write it in WHERE, joined by AND alone; or anywhere in SELECT, of rows that the "
            "query around chooses by nothing, or by what it equates.",
        )


def _orders_list(found: exp.Expr) -> bool:
    """Say whether this is the order of a list of values."""
    order = found.parent if isinstance(found, exp.Ordered) else found
    return isinstance(order, exp.Order) and isinstance(order.parent, exp.GroupConcat | exp.ArrayAgg)


def _names_argument(found: exp.Expr) -> bool:
    """Say whether this is an argument behind its name, of a function of Spark's that has names."""
    around = found.parent
    named = isinstance(around, exp.Anonymous) and around.name.lower() == "mask"
    return named and isinstance(found, exp.Kwarg)


@cache
def _functions() -> frozenset[str]:
    """Return the names of the functions that there are, as authors write them."""
    kinds = [*AGGREGATES, *(getattr(exp, name, None) for name in CLASSES)]
    own = {
        name.lower()
        for kind in kinds
        if isinstance(kind, type) and issubclass(kind, exp.Func)
        for name in kind.sql_names()
    }
    return frozenset(PASSED_ON) | {name for name in own if not _OF_THE_PARSER.match(name)}


def _is_named(found: exp.Expr, names: Container[str]) -> bool:
    """Say whether this is a call under one of these names."""
    if isinstance(found, exp.Anonymous):
        return found.name.lower() in names
    return isinstance(found, exp.Func) and found.sql_name().lower() in names


def _refuse_other(script: Script, found: exp.Expr, at: int) -> None:
    for kind, (reason, fix) in _REASONS.items():
        if isinstance(found, kind):
            raise script.refusal(reason, at=at, fix=fix)
    if isinstance(found, exp.Anonymous) and _OF_WINDOWS.fullmatch(found.name):
        raise script.refusal(
            f"{_written(found)} goes with no window in GROUP BY",
            at=at,
            fix="Group by TUMBLE(t, size), HOP(t, slide, size), CUMULATE(t, step, size) or "
            "SESSION(t, gap), and select window_start and window_end.",
        )
    if _is_named(found, BEYOND_SIGHT):
        raise script.refusal(
            f"{_written(found)} calls what may give another value at every run",
            at=at,
            fix="Write a function in Python, in the folder functions: its text is part of the "
            "statement.",
        )
    called = found.sql_name() if isinstance(found, exp.Func) else ""
    called = found.name if isinstance(found, exp.Anonymous) else called
    form = FORMS.get(called.upper())
    if form is not None:
        raise script.refusal(f"{_written(found)} is not in the dialect", at=at, fix=form)
    near = found.meta.get(NEAR) or near_of(called, _functions()) if called else None
    raise script.refusal(
        f"{_written(found)} is not in the dialect"
        + (f"; did you mean {near}?" if near is not None else ""),
        at=at,
        fix=("" if near is None else f"Write {near}(…). ")
        + "The functions of the dialect are listed in docs/reference/sql.md.",
    )


def _check_aggregate(script: Script, found: exp.Expr, at: int, allowed: bool) -> None:
    name = _written(found)
    if not allowed:
        raise script.refusal(
            f"{name} cannot stand here",
            at=at,
            fix="Aggregates stand in SELECT and HAVING of a query with GROUP BY.",
        )
    for inner in found.walk():
        if inner is not found and isinstance(inner, exp.AggFunc):
            raise script.refusal(
                f"{_written(inner)} inside {name}",
                at=offset_of(inner, at),
                fix="Make the inner aggregate a projection of its own first.",
            )
    if isinstance(found, exp.Max | exp.Min) and found.expressions:
        raise script.refusal(
            f"{name} takes one argument", at=at, fix="Use GREATEST or LEAST for several columns."
        )


def _written(found: exp.Expr) -> str:
    if isinstance(found, exp.Anonymous):
        return f"{found.name.upper()}(…)"
    if isinstance(found, exp.Func):
        return f"{found.sql_name()}(…)"
    return type(found).__name__.upper()


def conjuncts(node: exp.Expr | None) -> tuple[exp.Expr, ...]:
    """Return the parts of a condition that are joined by AND, outermost brackets removed."""
    if node is None:
        return ()
    if isinstance(node, exp.Paren):
        inner = conjuncts(node.this)
        return inner if len(inner) > 1 else (node.this,)
    if isinstance(node, exp.And):
        return (*conjuncts(node.this), *conjuncts(node.expression))
    return (node,)


def has_aggregate(node: exp.Expr) -> bool:
    """Whether an aggregate function stands anywhere in `node`."""
    return any(isinstance(found, exp.AggFunc) for found in node.walk())


def unwrapped(node: exp.Expr) -> exp.Expr:
    """Return the expression inside any number of brackets."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def same_text(node: exp.Expr) -> str:
    """Return a text by which resolved expressions are compared."""
    return render(unwrapped(node))


def render(node: exp.Expr) -> str:
    """Write a resolved expression as Spark SQL."""
    return str(node.sql(dialect=SPARK, comments=False))


_NEVER_FAIL = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Var),
    *(exp.Predicate, exp.And, exp.Or, exp.Not, exp.Coalesce, exp.Nullif, exp.DataType),
    *(exp.Upper, exp.Lower, exp.Trim, exp.Length, exp.Concat, exp.DPipe),
)
"""What has a value for all rows. Comparisons are certified between types that compare."""


def never_fails(node: exp.Expr) -> bool:
    """Say whether an expression has a value for all rows, so that its place is of no matter."""
    return all(isinstance(part, _NEVER_FAIL) or _is_moment(part) for part in node.walk())


def _is_moment(node: exp.Expr) -> bool:
    """Say whether this is a day or moment that is written out, as TIMESTAMP '2024-01-01'."""
    moment = isinstance(node, exp.Cast) and node.to.this in exp.DataType.TEMPORAL_TYPES
    return moment and isinstance(node.this, exp.Literal)
