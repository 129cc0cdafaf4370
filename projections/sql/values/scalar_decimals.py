"""Arithmetic of decimals, alone and beside other numbers; see `projections.sql.values.scalar`.

The type of a result is Spark's: what it has no room for is an error to both engines.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.values.scalar import Rule, Scalar, TypeOf, form
from projections.sql.words.decimals import DECIMAL, EXACT_DIGITS, MOST_DIGITS, digits_of

_SIGNS: Mapping[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_NARROW_DIGITS = 18
"""A product of two decimals of no more digits has no more in DuckDB: it fails on what is larger."""
_LEAST_SCALE = 6
"""Behind the point a quotient has at least so many digits."""

Size = tuple[int, int]


def _computed(node: exp.Expr, types: TypeOf) -> Scalar | None:
    sides = (node.this, node.expression)
    kinds = [types(side) for side in sides]
    if not any(DECIMAL.fullmatch(kind) for kind in kinds):
        return None
    if "DOUBLE" in kinds:
        return _of_doubles(node, sides, kinds)
    sizes = [_size(side, kind) for side, kind in zip(sides, kinds, strict=True)]
    ours, theirs = sizes
    if ours is None or theirs is None:
        return None
    if isinstance(node, exp.Div):
        return _quotient(sides, ours, theirs)
    size, scale = _room(node, ours, theirs)
    # What has no room for all its digits keeps six behind the point: more are rounded away.
    if size > MOST_DIGITS and scale > _LEAST_SCALE:
        return None
    return _exact(node, sides, (ours, theirs), (min(size, MOST_DIGITS), scale))


def _size(side: exp.Expr, kind: str) -> Size | None:
    """Return the digits of a side. Spark takes a literal to have as many as are written.

    Brackets around it are none to Spark.
    """
    side = side.unnest()
    if isinstance(side, exp.Literal) and side.name.isdigit():
        return len(side.name.lstrip("0")) or 1, 0
    # The sign of a number is part of the literal to Spark.
    literal = isinstance(side, exp.Neg) and isinstance(side.this, exp.Literal)
    return None if literal else digits_of(kind)


def _room(node: exp.Expr, ours: Size, theirs: Size) -> Size:
    if isinstance(node, exp.Mul):
        return ours[0] + theirs[0] + 1, ours[1] + theirs[1]
    scale = max(ours[1], theirs[1])
    return max(ours[0] - ours[1], theirs[0] - theirs[1]) + scale + 1, scale


def _exact(
    node: exp.Expr, sides: tuple[exp.Expr, exp.Expr], sizes: tuple[Size, Size], room: Size
) -> Scalar:
    (size, scale), theirs = sizes
    if isinstance(node, exp.Mul) and max(size, theirs[0]) <= _NARROW_DIGITS:
        size = _NARROW_DIGITS + 1
    gives = f"DECIMAL({room[0]},{room[1]})"
    left = f"CAST({{0}} AS DECIMAL({size},{scale}))"
    right = f"CAST({{1}} AS DECIMAL({theirs[0]},{theirs[1]}))"
    return form(gives, f"CAST({left} {_SIGNS[type(node)]} {right} AS {gives})", *sides)


def _quotient(sides: tuple[exp.Expr, exp.Expr], ours: Size, theirs: Size) -> Scalar:
    scale = max(_LEAST_SCALE, ours[1] + theirs[0] + 1)
    whole = ours[0] - ours[1] + theirs[1]
    # Where there is no room for all digits those before the point come first.
    scale = max(min(scale, MOST_DIGITS - whole), _LEAST_SCALE)
    size = min(whole + scale, MOST_DIGITS)
    gives = f"DECIMAL({size},{scale})"
    texts = "CAST({0} AS VARCHAR), CAST({1} AS VARCHAR)"
    return form(gives, f"CAST(spark_divided({texts}, {size}, {scale}) AS {gives})", *sides)


def _of_doubles(
    node: exp.Expr, sides: tuple[exp.Expr, exp.Expr], kinds: list[str]
) -> Scalar | None:
    words = []
    for place, kind in enumerate(kinds):
        size = digits_of(kind)
        if kind == "DOUBLE":
            words.append(f"{{{place}}}")
        elif size is None:
            return None
        elif size[0] <= EXACT_DIGITS:
            words.append(f"CAST({{{place}}} AS DOUBLE)")
        else:
            words.append(f"spark_double(CAST({{{place}}} AS VARCHAR))")
    left, right = words
    if isinstance(node, exp.Div):
        known = f"{left} IS NOT NULL AND {right} = 0"
        value = f"CASE WHEN {known} THEN error('division by zero') ELSE {left} / {right} END"
        return form("DOUBLE", f"({value})", *sides)
    return form("DOUBLE", f"({left} {_SIGNS[type(node)]} {right})", *sides)


CLASSES: Mapping[type[exp.Expr], Rule] = dict.fromkeys((*_SIGNS, exp.Div), _computed)
