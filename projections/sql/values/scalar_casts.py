"""Casts that the small executor computes; see `projections.sql.values.scalar`.

As in ANSI mode, a value that does not fit is an error.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from kernel.errors import BeyondThisProcess
from projections.sql.values.scalar import TEXT, WHOLE, Rule, Scalar, TypeOf, form, literal_text
from projections.sql.values.scalar_times import whole_units
from projections.sql.words.decimals import EXACT_DIGITS, digits_of
from projections.sql.words.spark_times import cast_day, cast_moment
from projections.sql.words.type_names import normal

_SMALL = ("TINYINT", "SMALLINT")
_NARROW = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}


def _cast(node: exp.Expr, types: TypeOf) -> Scalar | None:
    inner, source = node.this, types(node.this)
    target = normal(node.args["to"].sql(dialect="spark"))
    if isinstance(inner, exp.Null):
        return _null(target)
    if not source:
        return None
    if source == target:
        return form(target, "{0}", inner)
    if source == TEXT and target in ("DATE", "TIMESTAMP") and literal_text(inner) is not None:
        return _of_literal(inner.name, target)
    tries = bool(node.args.get("safe"))
    if source == TEXT:
        return _of_text(inner, target, tries=tries)
    words = _tried_words(source, target) if tries else _words(source, target)
    return form(target, words, inner) if words is not None else None


def _null(target: str) -> Scalar | None:
    plain = target in (*_NARROW, "DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP")
    if target == TEXT:
        return form(target, "CAST(NULL AS VARCHAR)")
    return form(target, f"CAST(NULL AS {target})") if plain or digits_of(target) else None


def _words(source: str, target: str) -> str | None:
    """Return a cast of other types than text; None where Spark alone does it."""
    if target in _NARROW:
        return _to_whole(source, target)
    if target == TEXT:
        return _to_text(source)
    if target.startswith("DECIMAL"):
        exact = source in (*WHOLE, *_SMALL) or source.startswith("DECIMAL")
        return f"CAST({{0}} AS {target})" if exact else None
    match source, target:
        case "BOOLEAN", "DOUBLE":
            return "CAST(CAST({0} AS INTEGER) AS DOUBLE)"
        case "TINYINT" | "SMALLINT" | "INT" | "BIGINT", "DOUBLE":
            return "CAST({0} AS DOUBLE)"
        case "TIMESTAMP", "DATE":
            return "CAST({0} AS DATE)"
        case "DATE", "TIMESTAMP":
            return "CAST({0} AS TIMESTAMP)"
        case "TIMESTAMP", "DOUBLE":
            return "(CAST(epoch_us({0}) AS DOUBLE) / 1e6)"
        case _, "DOUBLE" if source.startswith("DECIMAL"):
            size = digits_of(source)
            small = size is not None and size[0] <= EXACT_DIGITS
            text = "CAST({0} AS VARCHAR)"
            return "CAST({0} AS DOUBLE)" if small else f"spark_double({text})"
        case _:
            return None


def _tried_words(source: str, target: str) -> str | None:
    """Return a cast that gives NULL for a number that does not fit."""
    exact = source in _NARROW or source.startswith("DECIMAL")
    fits = target in _NARROW or target.startswith("DECIMAL")
    words = _words(source, target) if exact and fits else None
    return None if words is None else f"TRY_{words}"


def _to_whole(source: str, target: str) -> str | None:
    if source in _NARROW or source == "BOOLEAN":
        return f"CAST({{0}} AS {target})"
    if source == "DOUBLE":
        return f"CAST(spark_whole({{0}}, {_NARROW[target]}) AS {target})"
    if source.startswith("DECIMAL"):
        return f"CAST(trunc({{0}}) AS {target})"
    if source == "TIMESTAMP" and target == "BIGINT":
        return whole_units("epoch_us({0})", 1_000_000)
    return None


def _to_text(source: str) -> str | None:
    if source in (*_SMALL, *WHOLE, "BOOLEAN") or source.startswith("DECIMAL"):
        return "CAST({0} AS VARCHAR)"
    if source == "DATE":
        return "spark_day_text(datediff('day', DATE '1970-01-01', {0}))"
    return "spark_moment_text(epoch_us({0}))" if source == "TIMESTAMP" else None


def _of_literal(text: str, target: str) -> Scalar | None:
    """Return a day or a moment that is written out; None where only Spark reads it."""
    try:
        number = cast_day(text) if target == "DATE" else cast_moment(text)
    except (ValueError, BeyondThisProcess):
        return None
    if target == "DATE":
        return Scalar(target, (), lambda _: f"CAST(DATE '1970-01-01' + {number} AS DATE)")
    return Scalar(target, (), lambda _: f"make_timestamp(CAST({number} AS BIGINT))")


def _of_text(inner: exp.Expr, target: str, *, tries: bool) -> Scalar | None:
    word = "try" if tries else "cast"
    if target in _NARROW:
        words = f"CAST(spark_{word}_whole({{0}}, {_NARROW[target]}) AS {target})"
    elif target in ("DOUBLE", "BOOLEAN"):
        words = f"spark_{word}_{target.lower()}({{0}})"
    elif target == "DATE":
        words = f"CAST(DATE '1970-01-01' + spark_{word}_day({{0}}) AS DATE)"
    elif target == "TIMESTAMP":
        words = f"make_timestamp(spark_{word}_moment({{0}}))"
    elif (size := digits_of(target)) is not None and target.startswith("DECIMAL"):
        words = f"CAST(spark_{word}_decimal({{0}}, {size[0]}, {size[1]}) AS {target})"
    else:
        return None
    return form(target, words, inner)


def _to_day(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Read to_date without a format, which is a cast of whatever it is given."""
    source = types(node.this)
    if node.args.get("format") is not None:
        return None
    if source == TEXT:
        literal = literal_text(node.this)
        if literal is not None:
            return _of_literal(literal, "DATE")
        return _of_text(node.this, "DATE", tries=False)
    return form("DATE", "CAST({0} AS DATE)", node.this) if source in ("DATE", "TIMESTAMP") else None


CLASSES: Mapping[type[exp.Expr], Rule] = {
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.TsOrDsToDate: _to_day,
}
