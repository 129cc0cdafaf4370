"""Types of expressions, as far as they follow from the catalog without asking Spark.

Only what is certain is answered; the empty text means that Spark has to be asked. The compiler
needs it for one decision: whether a sum adds floating-point numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from projections.sql.functions import function_of

FLOATING = ("FLOAT", "DOUBLE", "REAL")
INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
TEMPORAL = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "DATE")

_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TIMESTAMP_LTZ": "TIMESTAMP",
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_MOST_DIGITS = 38
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}
"""What Spark takes whole numbers for beside a decimal. Literals are taken as short as they are."""
_BOOLEANS = (
    exp.Predicate,
    exp.Not,
    exp.And,
    exp.Or,
    exp.Boolean,
    exp.StartsWith,
    exp.EndsWith,
    exp.Contains,
    exp.IsNan,
    exp.LogicalAnd,
    exp.LogicalOr,
)
_STRINGS = (
    exp.Concat,
    exp.ConcatWs,
    exp.Upper,
    exp.Lower,
    exp.Trim,
    exp.DPipe,
    exp.TimeToStr,
    exp.Substring,
    exp.Replace,
    exp.RegexpReplace,
    exp.RegexpExtract,
    exp.SplitPart,
)
_DOUBLES = (exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log, exp.Pow, exp.Sin, exp.Cos, exp.Tan)
_BIGINTS = (exp.IntDiv, exp.Count, exp.CountIf, exp.UnixMicros, exp.UnixMillis, exp.UnixSeconds)
_INTS = (exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear)
_MORE_INTS = (exp.WeekOfYear, exp.Hour, exp.Minute, exp.Second, exp.Length)


def normal(text: str) -> str:
    """Return a plain type's name in upper case without spaces; nested types as they are."""
    if "<" in text:
        return text
    upper = "".join(text.upper().split())
    return _ALIASES.get(upper, upper)


def type_of(node: exp.Expr, column: Callable[[exp.Expr], str]) -> str:
    """Return the Spark type of a resolved expression, or the empty text where it is not certain."""
    match node:
        case exp.Column():
            return normal(column(node))
        case exp.Paren() | exp.Neg() | exp.Abs() | exp.Min() | exp.Max() | exp.Filter():
            return "" if _least_int(node) else type_of(node.this, column)
        case exp.Round() | exp.Nullif():
            kind = type_of(node.this, column)
            return "" if kind.startswith("DECIMAL") else kind
        case exp.Cast():
            return normal(node.to.sql(dialect="spark"))
        case exp.Literal():
            return _literal(node)
        case exp.Sum() | exp.Avg():
            return _total(node, type_of(_argument(node), column))
        case exp.TimestampTrunc():
            return "TIMESTAMP"
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
            left, right = type_of(node.this, column), type_of(node.expression, column)
            return _computed(node, left, right)
        case exp.Div():
            sides = (type_of(node.this, column), type_of(node.expression, column))
            return "DOUBLE" if all(side in INTEGERS + FLOATING for side in sides) else ""
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            return _common([type_of(part, column) for part in (node.this, *node.expressions)])
        case exp.Case() | exp.If():
            return _case(node, column)
        case _:
            return _by_class(node)


def _by_class(node: exp.Expr) -> str:
    function = function_of(node)
    if function is not None:
        return function.gives
    if isinstance(node, _BOOLEANS):
        return "BOOLEAN"
    if isinstance(node, _STRINGS):
        return "STRING"
    if isinstance(node, _DOUBLES):
        return "DOUBLE"
    if isinstance(node, _BIGINTS):
        return "BIGINT"
    return "INT" if isinstance(node, (*_INTS, *_MORE_INTS)) else ""


def _least_int(node: exp.Expr) -> bool:
    """Say whether this is -2147483648, of which Spark reads the sign as part of an INT."""
    number = node.this if isinstance(node, exp.Neg) else None
    return isinstance(number, exp.Literal) and number.name == "2147483648"


def _computed(node: exp.Expr, left: str, right: str) -> str:
    if _moved(node, left):
        return left
    return _arithmetic(left, right) or _of_decimals(node, left, right)


def _moved(node: exp.Expr, left: str) -> bool:
    """Say whether a length of time is added to a timestamp."""
    moves = isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval)
    return moves and left == "TIMESTAMP"


def _argument(node: exp.Expr) -> exp.Expr:
    inner: exp.Expr = node.this
    return inner.expressions[0] if isinstance(inner, exp.Distinct) else inner


def _literal(node: exp.Expr) -> str:
    if node.is_string:
        return "STRING"
    text = node.name
    if text.isdigit():
        if int(text) >= 2**63:
            return ""
        return "INT" if int(text) < 2**31 else "BIGINT"
    if "e" in text.lower():
        return "DOUBLE"
    whole, point, fraction = text.partition(".")
    if not point or not (whole + fraction).isdigit():
        return ""
    size = max(len((whole + fraction).lstrip("0")), len(fraction), 1)
    return f"DECIMAL({size},{len(fraction)})" if size <= _MOST_DIGITS else ""


def digits_of(kind: str) -> tuple[int, int] | None:
    """Return how many digits a decimal or a whole number has, and how many behind the point."""
    size = _DECIMAL.fullmatch(kind)
    if size is not None:
        return int(size[1]), int(size[2])
    return (_DIGITS[kind], 0) if kind in _DIGITS else None


def _of_decimals(node: exp.Expr, left: str, right: str) -> str:
    """Return the type of sums and products with a decimal, where it holds every result."""
    ours, theirs = digits_of(left), digits_of(right)
    literal = any(
        isinstance(side, exp.Literal) and digits is not None and not digits[1]
        for side, digits in ((node.this, ours), (node.expression, theirs))
    )
    if ours is None or theirs is None or literal or isinstance(node, exp.Mod):
        return ""
    scale = max(ours[1], theirs[1])
    size = max(ours[0] - ours[1], theirs[0] - theirs[1]) + scale + 1
    if isinstance(node, exp.Mul):
        size, scale = ours[0] + theirs[0] + 1, ours[1] + theirs[1]
    return f"DECIMAL({size},{scale})" if size <= _MOST_DIGITS else ""


def _total(node: exp.Expr, argument: str) -> str:
    if argument in FLOATING:
        return "DOUBLE"
    if argument in INTEGERS:
        return "BIGINT" if isinstance(node, exp.Sum) else "DOUBLE"
    size = _DECIMAL.fullmatch(argument)
    if size is not None and isinstance(node, exp.Sum):
        return f"DECIMAL({min(38, int(size[1]) + 10)},{size[2]})"
    return ""


def _arithmetic(left: str, right: str) -> str:
    sides = {left, right}
    if not all(side in INTEGERS + FLOATING for side in sides):
        # A double and a decimal make a double; anything with an interval is left to Spark.
        mixed = "DOUBLE" in sides and all(s == "DOUBLE" or s.startswith("DECIMAL") for s in sides)
        return "DOUBLE" if mixed else ""
    return _common([left, right])


def _common(kinds: list[str]) -> str:
    known = set(kinds)
    if len(known) == 1:
        return known.pop()
    if all(kind in INTEGERS for kind in known):
        return max(known, key=INTEGERS.index)
    if all(kind in INTEGERS + FLOATING for kind in known):
        return "DOUBLE"
    return ""


def _case(node: exp.Expr, column: Callable[[exp.Expr], str]) -> str:
    branches = [branch.args["true"] for branch in node.args.get("ifs") or [node]]
    default = node.args.get("default") or node.args.get("false")
    if default is not None:
        branches.append(default)
    known = [branch for branch in branches if not isinstance(branch, exp.Null)]
    return _common([type_of(branch, column) for branch in known]) if known else ""
