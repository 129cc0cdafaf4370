"""Functions over rows, aggregates and ranks alike: what they are, and the values that they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.operators.resolving import Names
from projections.sql.operators.tree import Call, Function, Ordering
from projections.sql.words.aggregate_forms import (
    Discrete,
    DiscreteFromAbove,
    QuantileFromAbove,
    TryAvg,
    TrySum,
)
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import INTEGERS, digits_of
from projections.sql.words.places import offset_of

_PLAIN: dict[type[exp.Expr], Function] = {
    exp.Sum: Function.SUM,
    exp.Avg: Function.AVG,
    exp.Min: Function.MIN,
    exp.Max: Function.MAX,
    exp.LogicalAnd: Function.ALL,
    exp.LogicalOr: Function.ANY,
    exp.Mode: Function.MODE,
    exp.BitwiseAndAgg: Function.BIT_AND,
    exp.BitwiseOrAgg: Function.BIT_OR,
    exp.BitwiseXorAgg: Function.BIT_XOR,
    TrySum: Function.SUM,
    TryAvg: Function.AVG,
}
_MOST_TOTALLED = 28
"""A total of decimals of no more digits has room for ten more."""
_ADDING = (Function.SUM, Function.TRY_SUM, Function.AVG)
_OF_BITS = (Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR)
_EXTREMES: dict[type[exp.Expr], Function] = {
    exp.ArgMax: Function.MAX_BY,
    exp.ArgMin: Function.MIN_BY,
}
_ORDERED = (exp.GroupConcat, exp.ArrayAgg, exp.ArrayUniqueAgg, exp.Quantile)
_SPREADS: dict[type[exp.Expr], int] = {exp.Variance: 1, exp.VariancePop: 0}
"""Variances of a sample, by how many less than all rows they are divided by, and of all rows."""
_OF_ALL: tuple[type[exp.Expr], ...] = (exp.Quantile, *_SPREADS)
"""What is different of several values that are the same."""
_TOLD_BY_TEXT = ("STRING", "BOOLEAN", "INT", "BIGINT", "DATE", "TIMESTAMP")
"""Types whose values are different where their texts are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """A function as written: `argument` is over the tree's columns; None counts rows."""

    function: Function
    argument: exp.Expr | None
    kind: str
    type: str
    distinct: bool = False
    offset: int = 1
    default: exp.Expr | None = None
    by: exp.Expr | None = None
    order: tuple[exp.Ordered, ...] = ()

    def call(
        self,
        name: str,
        column: str | None,
        by: Column | None = None,
        order: tuple[Ordering, ...] = (),
    ) -> Call:
        """Return the call whose argument is a column, as what it chooses `by`, and its order."""
        return Call(
            name=name,
            function=self.function,
            argument=column,
            kind=self.kind,
            type=self.type,
            distinct=self.distinct,
            offset=self.offset,
            default=self.default,
            by=by,
            order=order,
        )


def aggregate_of(names: Names, found: exp.Expr) -> Called:
    """Read an aggregate over resolved columns, with its FILTER."""
    only = None
    if isinstance(found, exp.Filter):
        only, found = found.expression.this, found.this
    if type(found) in _EXTREMES:
        return _extreme(names, found, only)
    order: list[exp.Ordered] = []
    if isinstance(found.this, exp.Order):
        found, order = found.copy(), found.this.expressions
        found.set("this", found.this.this)
    distinct = isinstance(found.this, exp.Distinct)
    arguments = found.this.expressions if distinct else [found.this, *found.expressions]
    value = arguments[0] if len(arguments) == 1 else _of_several(names, found, arguments, distinct)
    if isinstance(found, exp.Count | exp.CountIf):
        return _count(names, found, value, only, distinct)
    if distinct and isinstance(found, _OF_ALL):
        raise _of_distinct(names, found, _word(found))
    if type(found) in _SPREADS:
        value = _left_by(only, value)
        return Called(
            function=Function.VARIANCE,
            argument=value,
            kind=names.type_of(value),
            type="DOUBLE",
            offset=_SPREADS[type(found)],
        )
    if isinstance(found, _ORDERED):
        made = _of_ascending(names, found, value, only, distinct)
        return replace(made, order=_order(names, order, value, distinct))
    function = _PLAIN[type(found)]
    kind = names.type_of(value)
    function = _fallible(names, found, function, kind)
    _check_added(names, found, value, function, kind, distinct)
    value = _left_by(only, value)
    same = function in (Function.MODE, *_OF_BITS)
    return Called(
        function=function,
        argument=value,
        kind=kind,
        type=kind if same else names.type_of(found),
        # The least and the greatest, all and any are the same of distinct values.
        distinct=distinct and function in _ADDING,
    )


def _order(
    names: Names, order: list[exp.Ordered], value: exp.Expr, distinct: bool
) -> tuple[exp.Ordered, ...]:
    """Return the order of a list. Raises `InvalidRequest` for distinct values by others."""
    if distinct and any(each.this != value for each in order):
        raise names.script.refusal(
            "a list of distinct values in the order of others",
            at=offset_of(order[0], names.at),
            fix="Order them by themselves: STRING_AGG(DISTINCT x, ', ' ORDER BY x DESC), or leave "
            "DISTINCT out.",
        )
    return tuple(order)


def _fallible(names: Names, found: exp.Expr, function: Function, kind: str) -> Function:
    """Return what computes TRY_SUM or TRY_AVG: of most types no total of theirs is out of range."""
    if not isinstance(found, TrySum | TryAvg):
        return function
    digits = digits_of(kind)
    if kind.startswith("DECIMAL") and digits is not None and digits[0] > _MOST_TOTALLED:
        raise names.script.refusal(
            f"{_word_of(found)} of {kind}: on the way to a total its digits may be too many, or "
            "not, by the order of rows",
            at=offset_of(found, names.at),
            fix=f"Convert what is added: CAST(x AS DECIMAL({_MOST_TOTALLED}, {digits[1]})).",
        )
    return Function.TRY_SUM if kind == "BIGINT" and isinstance(found, TrySum) else function


def _check_added(
    names: Names, found: exp.Expr, value: exp.Expr, function: Function, kind: str, distinct: bool
) -> None:
    """Refuse what would depend on the order of rows, or is not computed of distinct values."""
    if not kind and not isinstance(value, exp.Null) and function in _ADDING:
        raise names.script.refusal(
            f"{_word_of(found)} of a value whose type only Spark derives: sums of floating-point "
            "numbers depend on the order, unless they are known to be such",
            at=offset_of(found, names.at),
            fix=f"Say what is added: {_word_of(found)}(CAST(… AS DOUBLE)), or AS BIGINT, or AS "
            "DECIMAL(18, 2).",
        )
    if function in _OF_BITS and kind and kind not in INTEGERS:
        raise names.script.refusal(
            f"{function.name} is of whole numbers, and this is {kind}",
            at=offset_of(found, names.at),
            fix="Convert what is combined: CAST(x AS BIGINT).",
        )
    if distinct and function in (Function.MODE, Function.BIT_XOR):
        raise _of_distinct(names, found, function.name)


def _of_distinct(names: Names, found: exp.Expr, what: str) -> InvalidRequest:
    return names.script.refusal(
        f"{what} of distinct values is not compiled",
        at=offset_of(found, names.at),
        fix="Read each value once: FROM (SELECT DISTINCT key, x FROM t) q GROUP BY key.",
    )


def _left_by(only: exp.Expr | None, value: exp.Expr) -> exp.Expr:
    """Return a value as FILTER leaves it: NULL in rows for which it does not hold."""
    if only is None:
        return value
    return exp.Case(ifs=[exp.If(this=only.copy(), true=value.copy())])


def _extreme(names: Names, found: exp.Expr, only: exp.Expr | None) -> Called:
    """Read MAX_BY or MIN_BY; of a row that FILTER leaves out there is nothing to choose it by."""
    if found.args.get("count") is not None or isinstance(found.this, exp.Distinct):
        raise names.script.refusal(
            f"{_word_of(found)} of several rows is not compiled",
            at=offset_of(found, names.at),
            fix="Rank them: QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY y DESC) <= 3.",
        )
    by, kind = _left_by(only, found.expression), names.type_of(found.this)
    return Called(function=_EXTREMES[type(found)], argument=found.this, kind=kind, type=kind, by=by)


def _word_of(found: exp.Expr) -> str:
    return found.sql_name() if isinstance(found, exp.Func) else found.key.upper()


def _word(found: exp.Expr) -> str:
    return "a percentile" if isinstance(found, exp.Quantile) else "a deviation or a variance"


def _of_ascending(
    names: Names, found: exp.Expr, value: exp.Expr, only: exp.Expr | None, distinct: bool
) -> Called:
    """Read an aggregate of values in ascending order."""
    kind, at = names.type_of(value), offset_of(found, names.at)
    value = _left_by(only, value)
    if isinstance(found, exp.Quantile):
        part = found.args.get("quantile")
        if not isinstance(part, exp.Literal) or part.is_string or not 0 <= float(part.name) <= 1:
            raise names.script.refusal(
                "a percentile is of a part between 0 and 1",
                at=at,
                fix="Write it out: PERCENTILE(x, 0.95), or PERCENTILE_CONT(0.95) WITHIN GROUP "
                "(ORDER BY x). Each of several has a call of its own.",
            )
        side = -1 if isinstance(found, DiscreteFromAbove | QuantileFromAbove) else 1
        if isinstance(found, exp.ApproxQuantile):
            if isinstance(found, Discrete) and (kind in INTEGERS or kind.startswith("DECIMAL")):
                value, kind = _as_double(value), "DOUBLE"
            return Called(
                function=Function.ELEMENT,
                argument=value,
                kind=kind,
                type=kind,
                default=part,
                offset=side,
            )
        return Called(
            function=Function.PERCENTILE,
            argument=value,
            kind=kind,
            type="DOUBLE",
            default=part,
            offset=side,
        )
    if not isinstance(found, exp.GroupConcat):
        several = distinct or isinstance(found, exp.ArrayUniqueAgg)
        of = f"ARRAY<{kind}>" if kind else ""
        return Called(
            function=Function.VALUES, argument=value, kind=kind, type=of, distinct=several
        )
    # To Spark there is nothing between them where nothing is said, to others a comma.
    between = found.args.get("separator")
    if kind != "STRING" or not isinstance(between, exp.Literal) or not between.is_string:
        raise names.script.refusal(
            "a list of texts has texts, and one that is written out between them",
            at=at,
            fix="Convert what is listed, and say what stands between: "
            "STRING_AGG(CAST(x AS STRING), ', ').",
        )
    return Called(
        function=Function.LIST,
        argument=value,
        kind=kind,
        type="STRING",
        distinct=distinct,
        default=between,
    )


def _of_several(
    names: Names, found: exp.Expr, arguments: list[exp.Expr], distinct: bool
) -> exp.Expr:
    """Return one value of several that COUNT counts: NULL where one of them is."""
    if isinstance(found, exp.Count) and not distinct:
        bracketed = [exp.Paren(this=each.copy()) for each in arguments]
        known = [exp.Not(this=exp.Is(this=each, expression=exp.Null())) for each in bracketed]
        return exp.Case(ifs=[exp.If(this=exp.and_(*known), true=exp.Literal.number(1))])
    kinds = [names.type_of(each) for each in arguments]
    if not isinstance(found, exp.Count) or any(kind not in _TOLD_BY_TEXT for kind in kinds):
        raise names.script.refusal(
            f"{type(found).__name__.upper()} of several columns is not compiled",
            at=offset_of(found, names.at),
            fix="Use one value that tells them apart, as concat(CAST(length(a) AS STRING), '|', a, "
            "'|', b), which is NULL where one of them is.",
        )
    parts: list[exp.Expr] = []
    for each, kind in zip(arguments, kinds, strict=True):
        text = each.copy() if kind == "STRING" else _as_text(each.copy())
        # With their lengths in front, different texts are different together.
        parts += [_as_text(exp.Length(this=text.copy())), exp.Literal.string(":"), text]
    return exp.Concat(expressions=parts, safe=True, coalesce=False)


def _as_text(node: exp.Expr) -> exp.Expr:
    return exp.Cast(this=node, to=exp.DataType.build("STRING", dialect="spark"))


def _as_double(node: exp.Expr) -> exp.Expr:
    return exp.Cast(this=node, to=exp.DataType.build("DOUBLE", dialect="spark"))


def _count(
    names: Names, found: exp.Expr, value: exp.Expr, only: exp.Expr | None, distinct: bool
) -> Called:
    parts = [only] if only is not None else []
    if isinstance(found, exp.CountIf):
        parts.append(value)
        value = exp.Literal.number(1)
    if isinstance(value, exp.Star):
        value = exp.Literal.number(1)
    if parts:
        condition = exp.and_(*parts, copy=True)
        value = exp.Case(ifs=[exp.If(this=condition, true=value.copy())])
    rows = isinstance(value, exp.Literal) and not distinct
    return Called(
        function=Function.COUNT,
        argument=None if rows else value,
        kind=names.type_of(value),
        type="BIGINT",
        distinct=distinct,
    )
