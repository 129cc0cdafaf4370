"""Types of expressions, as far as they follow from the catalog without asking Spark.

Only what is certain is answered; the empty text means that Spark has to be asked. The compiler
needs it for one decision: whether a sum adds floating-point numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from projections.sql.values.scalars import scalar_of
from projections.sql.words.decimals import (
    DECIMAL,
    FLOATING,
    INTEGERS,
    MOST_DIGITS,
    common_type,
)
from projections.sql.words.functions import function_of
from projections.sql.words.nested_types import ArrayOf, MapOf, StructOf, nested_of
from projections.sql.words.spark_functions import PASSED_ON
from projections.sql.words.type_names import normal

TEMPORAL = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "DATE")

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
    exp.JSONExtractScalar,
)
_OF_TEXTS_OR_BYTES = (exp.Concat, exp.DPipe, exp.Substring, exp.Trim, exp.Reverse)
"""What gives bytes of bytes, and an array of arrays."""
_DOUBLES = (
    *(exp.Sqrt, exp.Cbrt, exp.Exp, exp.Ln, exp.Log, exp.Pow, exp.Sin, exp.Cos, exp.Tan, exp.Asin),
    *(exp.Acos, exp.Atan, exp.Atan2, exp.Radians, exp.Degrees, exp.MonthsBetween),
)
_BIGINTS = (exp.IntDiv, exp.Count, exp.CountIf, exp.UnixMicros, exp.UnixMillis, exp.UnixSeconds)
_INTS = (exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek, exp.DayOfYear)
_MORE_INTS = (
    *(exp.WeekOfYear, exp.Hour, exp.Minute, exp.Second, exp.Length, exp.ArraySize),
    *(exp.Levenshtein, exp.Ascii),
)
_OF_BITS = (exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor)
_OF_ELEMENTS = ("get", "array_min", "try_element_at")
_OF_ARGUMENT = ("negative", "positive", "nullifzero", "try_mod")
_OF_ARITHMETIC = ("try_subtract", "try_multiply")


def type_of(node: exp.Expr, column: Callable[[exp.Expr], str]) -> str:
    """Return the Spark type of a resolved expression, or the empty text where it is not certain."""
    return _Typing(column).of(node)


class _Typing:
    """Types of one expression's parts, each found out once: several rules ask for the same."""

    def __init__(self, column: Callable[[exp.Expr], str]) -> None:
        self._column = column
        # With the parts themselves: the id of one that is gone may be another's.
        self._known: dict[int, tuple[exp.Expr, str]] = {}

    def of(self, node: exp.Expr) -> str:
        """Return the type of a part."""
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._found(node)
        return known[1]

    def _found(self, node: exp.Expr) -> str:
        match node:
            case exp.Column():
                return normal(self._column(node))
            case exp.Paren() | exp.Neg() | exp.Abs() | exp.Min() | exp.Max() | exp.Filter():
                return "" if _least_int(node) else self.of(node.this)
            case exp.Nullif():
                return self.of(node.this)
            case exp.Cast():
                return normal(node.to.sql(dialect="spark"))
            case exp.Literal():
                return _literal(node)
            case exp.Sum() | exp.Avg():
                return _total(node, self.of(_argument(node)))
            case exp.TimestampTrunc() | exp.AtTimeZone() | exp.FromTimeZone():
                return "TIMESTAMP"
            case exp.Add() | exp.Sub() | exp.Mul() | exp.Mod():
                left, right = self.of(node.this), self.of(node.expression)
                return _computed(node, left, right) or self._of_scalar(node)
            case exp.Div():
                sides = self.of(node.this), self.of(node.expression)
                plain = all(side in INTEGERS + FLOATING for side in sides)
                return "DOUBLE" if plain else self._of_scalar(node)
            case exp.Coalesce() | exp.Greatest() | exp.Least():
                return common_type([self.of(part) for part in (node.this, *node.expressions)])
            case exp.Case() | exp.If():
                return self._of_case(node)
            case _:
                return self._of_others(node)

    def _of_scalar(self, node: exp.Expr) -> str:
        scalar = scalar_of(node, self.of)
        return scalar.gives if scalar is not None else ""

    def _of_others(self, node: exp.Expr) -> str:
        if isinstance(node, _OF_TEXTS_OR_BYTES):
            joined = isinstance(node, exp.Concat | exp.DPipe)
            parts = [*node.iter_expressions()] if joined else [node.this]
            kinds = {self.of(part) for part in parts}
            if any(kind == "BINARY" or kind.startswith("ARRAY<") for kind in kinds):
                return kinds.pop() if len(kinds) == 1 else ""
        if isinstance(node, exp.Array):
            elements = {self.of(part) for part in node.expressions}
            one = elements.pop() if len(elements) == 1 else ""
            return f"ARRAY<{one}>" if one else ""
        if isinstance(node, exp.Bracket | exp.ArrayMax):
            return self._of_element(node.this)
        if isinstance(node, (*_OF_BITS, exp.SafeAdd, exp.SafeDivide, exp.Nanvl)):
            return _of_two(node, self.of(node.this), self.of(node.expression))
        if isinstance(node, exp.Anonymous):
            return self._of_call(node)
        return self._of_scalar(node) or self._of_field(node) or _by_class(node)

    def _of_call(self, node: exp.Expr) -> str:
        """Return the type of a call whose name says how it follows from its arguments' types."""
        name, parts = node.name.lower(), node.expressions
        kinds = [self.of(part) for part in parts]
        known = self._of_scalar(node) or _by_class(node)
        if known or not parts:
            return known
        if name in _OF_ELEMENTS:
            return self._of_element(parts[0])
        if name in _OF_ARGUMENT:
            plain = all(kind in INTEGERS + FLOATING for kind in kinds)
            return common_type(kinds) if plain and name == "try_mod" else kinds[0] if plain else ""
        if name in _OF_ARITHMETIC and len(kinds) == 2:
            return _arithmetic(*kinds)
        # What a fold begins with has the type of what it gives.
        return kinds[1] if name in ("aggregate", "reduce") and len(parts) == 3 else ""

    def _of_element(self, values: exp.Expr) -> str:
        """Return the type of an array's element or of a map's value."""
        match nested_of(self.of(values)):
            case ArrayOf(element=element):
                return element
            case MapOf(value=value):
                return value
            case _:
                return ""

    def _of_field(self, node: exp.Expr) -> str:
        struct = nested_of(self.of(node.this)) if isinstance(node, exp.Dot) else None
        field = struct.field(node.name) if isinstance(struct, StructOf) else None
        return "" if field is None else field[1]

    def _of_case(self, node: exp.Expr) -> str:
        branches = [branch.args["true"] for branch in node.args.get("ifs") or [node]]
        default = node.args.get("default") or node.args.get("false")
        if default is not None:
            branches.append(default)
        known = [branch for branch in branches if not isinstance(branch, exp.Null)]
        return common_type([self.of(branch) for branch in known]) if known else ""


def _of_two(node: exp.Expr, left: str, right: str) -> str:
    if isinstance(node, _OF_BITS):
        return common_type([left, right]) if {left, right} <= {*INTEGERS} else ""
    if isinstance(node, exp.SafeAdd):
        return _arithmetic(left, right)
    plain = {left, right} <= {*INTEGERS, *FLOATING}
    if isinstance(node, exp.SafeDivide):
        return "DOUBLE" if plain else ""
    return "DOUBLE" if plain and "DOUBLE" in (left, right) else ""


def _by_class(node: exp.Expr) -> str:
    function = function_of(node)
    if function is not None:
        return function.gives
    if isinstance(node, exp.Anonymous):
        return PASSED_ON.get(node.name.lower(), "")
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
    return _arithmetic(left, right)


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
    return f"DECIMAL({size},{len(fraction)})" if size <= MOST_DIGITS else ""


def _total(node: exp.Expr, argument: str) -> str:
    if argument in FLOATING:
        return "DOUBLE"
    if argument in INTEGERS:
        return "BIGINT" if isinstance(node, exp.Sum) else "DOUBLE"
    size = DECIMAL.fullmatch(argument)
    if size is None:
        return ""
    digits, scale = int(size[1]), int(size[2])
    if isinstance(node, exp.Sum):
        return f"DECIMAL({min(MOST_DIGITS, digits + 10)},{scale})"
    return f"DECIMAL({min(MOST_DIGITS, digits + 4)},{min(MOST_DIGITS, scale + 4)})"


def _arithmetic(left: str, right: str) -> str:
    sides = {left, right}
    if not all(side in INTEGERS + FLOATING for side in sides):
        # A double and a decimal make a double; anything with an interval is left to Spark.
        mixed = "DOUBLE" in sides and all(s == "DOUBLE" or s.startswith("DECIMAL") for s in sides)
        return "DOUBLE" if mixed else ""
    return common_type([left, right])
