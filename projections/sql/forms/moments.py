"""CORR, COVAR_POP, REGR_SLOPE, SKEWNESS and their like, the same in whatever order rows come.

Each is made of the list of a group's values, which is in ascending order: of their means first, and
then of the products of what is left without these. Spark alone computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

_OF_PAIRS: Mapping[type[exp.Expr], str] = {
    exp.Corr: "s.xy / nullif(sqrt(s.xx * s.yy), 0D)",
    exp.CovarPop: "s.xy / s.n",
    exp.CovarSamp: "s.xy / nullif(s.n - 1D, 0D)",
    exp.RegrSlope: "s.xy / nullif(s.yy, 0D)",
    exp.RegrIntercept: "s.mx - s.xy / nullif(s.yy, 0D) * s.my",
    exp.RegrR2: "CASE WHEN s.yy = 0D THEN NULL WHEN s.xx = 0D THEN 1D ELSE "
    "s.xy * s.xy / (s.xx * s.yy) END",
    exp.RegrSxx: "s.yy",
    exp.RegrSyy: "s.xx",
    exp.RegrSxy: "s.xy",
    exp.RegrAvgx: "s.my",
    exp.RegrAvgy: "s.mx",
}
"""By the sums of products of `x`, which is written first, and `y`. In REGR_… that is y and x."""
_OF_VALUES: Mapping[type[exp.Expr], str] = {
    exp.Skewness: "sqrt(s.n) * s.xxx / nullif(sqrt(s.xx * s.xx * s.xx), 0D)",
    exp.Kurtosis: "s.n * s.xxxx / nullif(s.xx * s.xx, 0D) - 3D",
}
MOMENTS = (*_OF_PAIRS, *_OF_VALUES, exp.RegrCount)


def moment_of(
    node: exp.Expr, text: Callable[[exp.Expr], str], parsed: Callable[[str], exp.Expr]
) -> exp.Expr | None:
    """Write such an aggregate, with its FILTER, as an expression over a list of values."""
    if isinstance(node.parent, exp.Filter | exp.Window) and node.arg_key == "this":
        return None
    only, inner = "true", node
    if isinstance(inner, exp.Filter):
        only, inner = text(inner.expression.this), inner.this
    if not isinstance(inner, MOMENTS) or isinstance(inner.this, exp.Distinct):
        return None
    x = text(inner.this)
    y = text(inner.expression) if inner.args.get("expression") is not None else x
    known = f"({only}) AND ({x}) IS NOT NULL AND ({y}) IS NOT NULL"
    if isinstance(inner, exp.RegrCount):
        return parsed(f"count_if({known})")
    pair = f"named_struct('x', CAST({x} AS DOUBLE), 'y', CAST({y} AS DOUBLE))"
    values = f"collect_list(CASE WHEN {known} THEN {pair} END)"
    number = f"CAST(size({values}) AS DOUBLE)"
    summed = _summed(values, number, {**_OF_PAIRS, **_OF_VALUES}[type(inner)])
    return parsed(f"CAST(CASE WHEN size({values}) > 0 THEN {summed} END AS DOUBLE)")


def _summed(values: str, number: str, finish: str) -> str:
    means = {
        f"m{side}": f"aggregate({values}, 0D, (total, one) -> total + one.{side}) / {number}"
        for side in "xy"
    }
    sums = ("xx", "yy", "xy", "xxx", "xxxx")
    begun = [f"'n', {number}", *(f"'{name}', {mean}" for name, mean in means.items())]
    begun += [f"'{name}', 0D" for name in sums]
    further = [f"'{name}', s.{name}" for name in ("n", *means)]
    for name in sums:
        product = " * ".join(f"(one.{side} - s.m{side})" for side in name)
        further.append(f"'{name}', s.{name} + {product}")
    step = f"(s, one) -> named_struct({', '.join(further)})"
    return f"aggregate({values}, named_struct({', '.join(begun)}), {step}, s -> {finish})"
