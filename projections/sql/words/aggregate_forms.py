"""Aggregates of other systems, or by other names, as those that the dialect has.

An exact answer stands for one that may be approximate, and the row's time for the order of arrival
of a first or a last value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

Form = Callable[[exp.Expr], exp.Expr | None]


class TrySum(exp.Sum):
    """A total, or NULL where it leaves its type."""

    _sql_names = ["TRY_SUM"]  # noqa: RUF012


class TryAvg(exp.Avg):
    """An average, or NULL where the total of its values leaves its type."""

    _sql_names = ["TRY_AVG"]  # noqa: RUF012


class Discrete(exp.ApproxQuantile):
    """One of some values: of numbers as a DOUBLE, which Spark's own is."""

    _sql_names = ["PERCENTILE_DISC"]  # noqa: RUF012


class DiscreteFromAbove(Discrete):
    """The same of values in descending order."""

    _sql_names = ["PERCENTILE_DISC_FROM_ABOVE"]  # noqa: RUF012


class QuantileFromAbove(exp.Quantile):
    """A percentile of values in descending order."""

    _sql_names = ["PERCENTILE_FROM_ABOVE"]  # noqa: RUF012


def _counted(node: exp.Expr) -> exp.Expr | None:
    """A number of different values that may be wrong by some is one that is right."""
    return exp.Count(this=exp.Distinct(expressions=[node.this]))


def _of_one(kind: type[exp.Expr]) -> Form:
    return lambda node: kind(this=node.expressions[0]) if len(node.expressions) == 1 else None


def _is_grouped(node: exp.Expr) -> bool:
    """Say whether a call is an aggregate: not one before OVER."""
    select, parent = node.find_ancestor(exp.Select), node.parent
    while isinstance(parent, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        parent = parent.parent
    grouped = select is not None and select.args.get("group") is not None
    return grouped and not isinstance(parent, exp.Window)


def _newest(node: exp.Expr) -> exp.Expr | None:
    """Any value, and the last one, is the newest one, which a column beside GROUP BY is."""
    if not _is_grouped(node) or isinstance(node.parent, exp.IgnoreNulls | exp.RespectNulls):
        return None
    plain = isinstance(node.this, exp.Column) and not isinstance(node.parent, exp.Filter)
    return exp.Paren(this=node.this) if plain else _at_end(node.this, exp.ArgMax)


def _oldest(node: exp.Expr) -> exp.Expr | None:
    if not _is_grouped(node) or isinstance(node.parent, exp.IgnoreNulls | exp.RespectNulls):
        return None
    return _at_end(node.this, exp.ArgMin)


def _at_end(value: exp.Expr, kind: type[exp.Expr]) -> exp.Expr:
    """Choose by what is the same for all rows: by their time."""
    return kind(this=value, expression=exp.Literal.number(1))


def _known(node: exp.Expr) -> exp.Expr | None:
    """Write FIRST(x) IGNORE NULLS and its like: a row in which x is NULL is not chosen."""
    kind = _ENDS.get(type(node.this))
    if kind is None or not _is_grouped(node):
        return None
    return _of_known(node.this.this, kind)


def _of_known(value: exp.Expr, kind: type[exp.Expr]) -> exp.Expr:
    known = exp.Not(this=exp.Is(this=exp.Paren(this=value.copy()), expression=exp.Null()))
    by = exp.Case(ifs=[exp.If(this=known, true=exp.Literal.number(1))])
    return kind(this=value, expression=by)


def _respecting(node: exp.Expr) -> exp.Expr | None:
    """Leave out what says what is so without it."""
    kind = _ENDS.get(type(node.this))
    return None if kind is None or not _is_grouped(node) else _at_end(node.this.this, kind)


def _by_offset(kind: type[exp.Expr]) -> Form:
    """Read LATEST_BY_OFFSET(x) and its like, which pass over NULL."""
    return lambda node: _of_known(node.expressions[0], kind) if len(node.expressions) == 1 else None


_ENDS: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.First: exp.ArgMin,
    exp.FirstValue: exp.ArgMin,
    exp.Last: exp.ArgMax,
    exp.LastValue: exp.ArgMax,
    exp.AnyValue: exp.ArgMax,
}


def _part_of(node: exp.Expr) -> exp.Expr | None:
    """Write PERCENTILE_CONT(p) WITHIN GROUP (ORDER BY x) as PERCENTILE(x, p), and its like.

    PERCENTILE_DISC is one of the values, which PERCENTILE_APPROX is, too.
    """
    order = node.expression
    parts = order.expressions if isinstance(order, exp.Order) else []
    if isinstance(node.this, exp.GroupConcat | exp.ArrayAgg) and parts:
        listed = node.this.copy()
        listed.set("this", exp.Order(this=listed.this, expressions=[each.copy() for each in parts]))
        return _ascending(listed) or listed
    if len(parts) != 1:
        return None
    if parts[0].args.get("desc"):
        return _from_above(node.this, parts[0].this)
    match node.this:
        case exp.PercentileCont():
            made: exp.Expr = exp.Quantile(this=parts[0].this, quantile=node.this.this)
            return made if _is_wrapped(node) else _of_several(made) or made
        case exp.PercentileDisc():
            made = Discrete(this=parts[0].this, quantile=node.this.this)
            return made if _is_wrapped(node) else _of_several(made) or made
        case exp.Mode() if node.this.this is None:
            return exp.Mode(this=parts[0].this)
        case _:
            return None


def _is_wrapped(node: exp.Expr) -> bool:
    """Say whether FILTER or OVER stands behind a call: it is read with them."""
    return isinstance(node.parent, exp.Filter | exp.Window) and node.arg_key == "this"


def _of_several(node: exp.Expr) -> exp.Expr | None:
    """Write PERCENTILE(x, array(0.5, 0.9)) as an array of percentiles, with its FILTER and OVER.

    Of no values it is NULL.
    """
    if _is_wrapped(node):
        return None
    inner = node
    while isinstance(inner, exp.Filter | exp.Window):
        inner = inner.this
    parts = inner.args.get("quantile")
    if not isinstance(inner, exp.Quantile | exp.ApproxQuantile) or not isinstance(parts, exp.Array):
        return None
    calls: list[exp.Expr] = []
    for part in parts.expressions:
        inner.set("quantile", part.copy())
        calls.append(node.copy())
    if not calls:
        return None
    known = exp.Not(this=exp.Is(this=exp.Paren(this=calls[0].copy()), expression=exp.Null()))
    return exp.Case(ifs=[exp.If(this=known, true=exp.Array(expressions=calls))])


def _from_above(call: exp.Expr, value: exp.Expr) -> exp.Expr | None:
    """Read PERCENTILE_CONT or PERCENTILE_DISC in descending order.

    That of the rest of the part in ascending order may differ in its last bit.
    """
    part = call.this
    if not isinstance(part, exp.Literal) or part.is_string:
        return None
    match call:
        case exp.PercentileCont():
            return QuantileFromAbove(this=value, quantile=part)
        case exp.PercentileDisc():
            return DiscreteFromAbove(this=value, quantile=part)
        case _:
            return None


def _grouping_number(node: exp.Expr) -> exp.Expr | None:
    """Write GROUPING_ID(a, b) as the bits that GROUPING(a) and GROUPING(b) are."""
    # Without arguments it is of all that is grouped by, which is read later.
    return grouping_number(node.expressions) if node.expressions else None


def grouping_number(parts: Sequence[exp.Expr]) -> exp.Expr:
    """Write the number whose bits are GROUPING of some expressions, that of the last one is 1."""
    made: exp.Expr = exp.Literal.number(0)
    for place, each in enumerate(reversed(parts)):
        bit = exp.Grouping(expressions=[each.copy()])
        part = exp.Mul(this=bit, expression=exp.Literal.number(2**place)) if place else bit
        made = part if not place else exp.Add(this=part, expression=made)
    return exp.Cast(this=exp.Paren(this=made), to=exp.DataType.build("BIGINT", dialect="spark"))


def _half(node: exp.Expr) -> exp.Expr | None:
    return exp.Quantile(this=node.this, quantile=exp.Literal.number("0.5"))


_VARIANCES: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.Stddev: exp.Variance,
    exp.StddevSamp: exp.Variance,
    exp.StddevPop: exp.VariancePop,
}


def _deviation(node: exp.Expr) -> exp.Expr | None:
    """Write a standard deviation as the root of a variance, with its FILTER and OVER."""
    if _is_wrapped(node):
        return None
    made = node.copy()
    inner = made
    while isinstance(inner, exp.Filter | exp.Window):
        inner = inner.this
    variance = _VARIANCES.get(type(inner))
    if variance is None:
        return None
    if inner is made:
        return exp.Sqrt(this=variance(this=inner.this))
    inner.replace(variance(this=inner.this))
    return exp.Sqrt(this=made)


def _ascending(node: exp.Expr) -> exp.Expr | None:
    """Leave out the order of a list that is that of its values, as it is without."""
    order = node.this
    if not isinstance(order, exp.Order) or len(order.expressions) != 1:
        return None
    by = order.expressions[0]
    value = order.this.expressions[0] if isinstance(order.this, exp.Distinct) else order.this
    if by.args.get("desc") or by.this != value:
        return None
    made = node.copy()
    made.set("this", order.this.copy())
    return made


def _spread(node: exp.Expr) -> exp.Expr | None:
    """Read STD, of which sqlglot knows nothing, as STDDEV."""
    if len(node.expressions) != 1:
        return None
    made = exp.Stddev(this=node.expressions[0])
    return made if isinstance(node.parent, exp.Filter | exp.Window) else _deviation(made)


CLASSES: Mapping[type[exp.Expr], Form] = {
    exp.ApproxDistinct: _counted,
    exp.AnyValue: _newest,
    exp.Last: _newest,
    exp.LastValue: _newest,
    exp.First: _oldest,
    exp.FirstValue: _oldest,
    exp.IgnoreNulls: _known,
    exp.RespectNulls: _respecting,
    exp.WithinGroup: _part_of,
    exp.Median: _half,
    exp.GroupingId: _grouping_number,
    **dict.fromkeys((exp.Quantile, exp.ApproxQuantile), _of_several),
    **dict.fromkeys(_VARIANCES, _deviation),
    **dict.fromkeys((exp.Filter, exp.Window), lambda node: _of_several(node) or _deviation(node)),
    exp.GroupConcat: _ascending,
    exp.ArrayAgg: _ascending,
}
NAMED: Mapping[str, Form] = {
    "EVERY": _of_one(exp.LogicalAnd),
    "SOME": _of_one(exp.LogicalOr),
    "MEAN": _of_one(exp.Avg),
    "STD": _spread,
    "TRY_SUM": _of_one(TrySum),
    "TRY_AVG": _of_one(TryAvg),
    "LATEST_BY_OFFSET": _by_offset(exp.ArgMax),
    "EARLIEST_BY_OFFSET": _by_offset(exp.ArgMin),
}
