"""Functions of numbers and of NULL that the small executor computes; see `values.scalar`.

How they round, and what they make of NaN, is Spark's.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.values.scalar import (
    TEXT,
    WHOLE,
    Rule,
    Scalar,
    TypeOf,
    form,
    is_null,
    literal_number,
)
from projections.sql.words.decimals import common_type, digits_of

_PLAIN_DOUBLES = {*WHOLE, "DOUBLE"}


def _floor(node: exp.Expr, types: TypeOf) -> Scalar | None:
    kind, word = types(node.this), "floor" if isinstance(node, exp.Floor) else "ceil"
    if node.args.get("decimals") is not None or node.args.get("to") is not None:
        return None
    size = digits_of(kind) if kind.startswith("DECIMAL") else None
    if kind in WHOLE:
        return form("BIGINT", "CAST({0} AS BIGINT)", node.this)
    if kind == "DOUBLE":
        return form("BIGINT", f"spark_{word}({{0}})", node.this)
    if size is None or not size[1]:
        return None
    gives = f"DECIMAL({size[0] - size[1] + 1},0)"
    return form(gives, f"CAST({word}({{0}}) AS {gives})", node.this)


def _round(node: exp.Expr, types: TypeOf) -> Scalar | None:
    kind, decimals = types(node.this), node.args.get("decimals")
    places = 0 if decimals is None else literal_number(decimals)
    if places is None or not 0 <= places <= 18:
        return None
    if kind in WHOLE:
        return form(kind, "{0}", node.this)
    if kind == "DOUBLE":
        return form(kind, f"spark_round({{0}}, {places})", node.this)
    size = digits_of(kind) if kind.startswith("DECIMAL") else None
    if size is None:
        return None
    scale = min(size[1], places)
    digits = size[0] - size[1] + 1 + scale
    if digits > 38:
        return None
    gives = f"DECIMAL({digits},{scale})"
    return form(gives, f"CAST(round({{0}}, {scale}) AS {gives})", node.this)


def _sqrt(node: exp.Expr, types: TypeOf) -> Scalar | None:
    if types(node.this) not in _PLAIN_DOUBLES:
        return None
    value = "CAST({0} AS DOUBLE)"
    words = f"CASE WHEN {value} < 0 THEN CAST('NaN' AS DOUBLE) ELSE sqrt({value}) END"
    return form("DOUBLE", f"({words})", node.this)


def _sign(node: exp.Expr, types: TypeOf) -> Scalar | None:
    if types(node.this) not in _PLAIN_DOUBLES:
        return None
    value = "CAST({0} AS DOUBLE)"
    # To DuckDB NaN is greater than every number.
    words = f"WHEN isnan({value}) THEN {value} WHEN {value} > 0 THEN 1e0 WHEN {value} < 0 THEN -1e0"
    return form("DOUBLE", f"(CASE {words} ELSE {value} END)", node.this)


def _nan(node: exp.Expr, types: TypeOf) -> Scalar | None:
    if types(node.this) != "DOUBLE":
        return None
    if isinstance(node, exp.IsNan):
        return form("BOOLEAN", "coalesce(isnan({0}), false)", node.this)
    if types(node.expression) != "DOUBLE":
        return None
    return form(
        "DOUBLE", "(CASE WHEN isnan({0}) THEN {1} ELSE {0} END)", node.this, node.expression
    )


def _positive_modulo(node: exp.Expr, types: TypeOf) -> Scalar | None:
    kinds = [types(part) for part in node.expressions]
    if len(kinds) != 2 or any(kind not in WHOLE for kind in kinds):
        return None
    gives = common_type(kinds)
    left, right = "CAST({0} AS HUGEINT)", "CAST({1} AS HUGEINT)"
    # The remainder takes the sign of what is divided; it is moved once and divided again.
    once = f"{left} % {right}"
    value = f"CASE WHEN {once} < 0 THEN ({once} + {right}) % {right} ELSE {once} END"
    known = "{0} IS NOT NULL AND {1} = 0"
    words = f"CASE WHEN {known} THEN error('division by zero') ELSE CAST({value} AS {gives}) END"
    return form(gives, f"({words})", *node.expressions)


def _null(node: exp.Expr, types: TypeOf) -> Scalar | None:
    (part,) = node.expressions
    word = "" if node.name.lower() == "isnull" else "NOT "
    words = f"({word}({is_null(part, '{0}')}))"
    return form("BOOLEAN", words, part) if types(part) else None


def _zero_if_null(node: exp.Expr, types: TypeOf) -> Scalar | None:
    (part,) = node.expressions
    kind = types(part)
    known = kind in _PLAIN_DOUBLES
    return form(kind, f"coalesce({{0}}, CAST(0 AS {kind}))", part) if known else None


def _second_if_known(node: exp.Expr, types: TypeOf) -> Scalar | None:
    parts = (node.this, node.args["true"], node.args["false"])
    gives = common_type([types(part) for part in parts[1:]])
    if not gives or not types(parts[0]):
        return None
    kind = "VARCHAR" if gives == TEXT else gives
    words = f"CASE WHEN {is_null(parts[0], '{0}')} THEN {{2}} ELSE {{1}} END"
    return form(gives, f"CAST({words} AS {kind})", *parts)


def _same_choice(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Read COALESCE, GREATEST and LEAST of numbers of several types."""
    parts = (node.this, *node.expressions)
    kinds = {types(part) for part in parts if not isinstance(part, exp.Null)}
    gives = common_type([*kinds])
    if len(kinds) < 2 or not (gives in _PLAIN_DOUBLES or gives.startswith("DECIMAL")):
        return None
    if gives == "DOUBLE" and any(kind.startswith("DECIMAL") for kind in kinds):
        return None
    word = type(node).__name__.lower()
    places = ", ".join(f"CAST({{{number}}} AS {gives})" for number in range(len(parts)))
    return form(gives, f"{word}({places})", *parts)


CLASSES: Mapping[type[exp.Expr], Rule] = {
    exp.Floor: _floor,
    exp.Ceil: _floor,
    exp.Round: _round,
    exp.Sqrt: _sqrt,
    exp.Sign: _sign,
    exp.IsNan: _nan,
    exp.Nanvl: _nan,
    exp.Nvl2: _second_if_known,
    exp.Coalesce: _same_choice,
    exp.Greatest: _same_choice,
    exp.Least: _same_choice,
}
NAMED: Mapping[str, Rule] = {
    "pmod": _positive_modulo,
    "isnull": _null,
    "isnotnull": _null,
    "zeroifnull": _zero_if_null,
}
