"""Which expressions the small executor computes with the same bits as Spark.

DuckDB is another engine with rules of its own: where it rounds, overflows, folds case or orders
NULL differently, a table kept by it would differ from its rebuild. Only what is listed here, with
types that are certain, is computed by it. A projection with anything else is kept by Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sqlglot import exp

from kernel.errors import BeyondThisProcess
from projections.sql.operators.tree import (
    Call,
    Function,
    Grouped,
    Join,
    Map,
    Node,
    Over,
    Sessions,
    Stateless,
    expressions_of,
    inputs_of,
    walk,
)
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.values.expressions import render
from projections.sql.values.scalars import scalar_of
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import (
    DECIMAL,
    EXACT_DIGITS,
    INTEGERS,
    MOST_DIGITS,
    common_type,
    digits_of,
    rounded_type,
)
from projections.sql.words.durations import duration_of
from projections.sql.words.functions import function_of
from projections.sql.words.nested_types import leaves
from projections.sql.words.places import Script, offset_of
from projections.sql.words.time_formats import format_parts, moment_formatted

_NARROWER = {"BIGINT": INTEGERS, "DOUBLE": (*INTEGERS, "FLOAT")}
"""Types that a function's parameter takes beside its own."""
_NUMBERS = (*INTEGERS, "DOUBLE")
_SIMPLE = frozenset(("BOOLEAN", "STRING", "TIMESTAMP", "DATE", *_NUMBERS))
_WITHIN_DOUBLE = ("TINYINT", "SMALLINT", "INT")
"""Whole numbers of which every one is a DOUBLE."""
_ALSO_HELD = ("FLOAT", "BINARY")
"""Types of parts that nothing is computed of."""
_MOST_AVERAGED = 28
"""An average of decimals of no more digits has room for their total."""
_OF_BITS = (Function.BIT_AND, Function.BIT_OR, Function.BIT_XOR)
_UNITS = ("SECOND", "MINUTE", "HOUR", "DAY")
_SAME_FAMILY = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_CHOICES = (exp.Coalesce, exp.Greatest, exp.Least)

TypeOf = Callable[[exp.Expr], str]


def uncertified(tree: Node) -> str | None:
    """Name the first part of a plan that the small executor may not compute; None for none."""
    for node in walk(tree):
        for found in _parts(node):
            if found is not None:
                return found
    return None


def uncertified_in(node: exp.Expr, columns: tuple[Column, ...]) -> str | None:
    """Name the first part of an expression that the small executor may not compute."""
    return _uncertified(node, _typing(columns)) or _too_long(node, columns)


def check_arguments(script: Script, tree: Node) -> None:
    """Refuse a call of a workspace's function with an argument of another type."""
    for node in walk(tree):
        if not isinstance(node, Map | Join):
            continue
        sides = inputs_of(node)
        types = _typing(tuple(each for side in sides for each in side.columns))
        for expression in expressions_of(node):
            for part in expression.walk():
                _check_call(script, part, types)


def _check_call(script: Script, node: exp.Expr, types: TypeOf) -> None:
    function = function_of(node)
    if function is None:
        return
    for parameter, given in zip(function.takes, node.expressions, strict=True):
        kind = types(given)
        null = isinstance(given, exp.Null)
        if not null and parameter.type != kind and kind not in _NARROWER.get(parameter.type, ()):
            raise script.refusal(
                f"{function.name} takes {parameter.name} as {parameter.type}, not as "
                f"{kind or 'what only Spark derives'}",
                at=offset_of(given, offset_of(node, 0)),
                fix=f"Convert it: CAST(… AS {parameter.type}).",
            )


def has_simple_type(kind: str) -> bool:
    """Say whether both engines hold, compare and order values of a type alike."""
    return kind in _SIMPLE or DECIMAL.fullmatch(kind) is not None


def is_held(kind: str) -> bool:
    """Say whether both engines hold values of a type with parts alike, to take them apart."""
    parts = leaves(kind) if "<" in kind else None
    return parts is not None and all(has_simple_type(p) or p in _ALSO_HELD for p in parts)


def _parts(node: Node) -> Iterator[str | None]:
    # What has parts is passed on, up to where it is taken apart; no operator keeps it.
    passes = isinstance(node, Stateless)
    below = () if passes else (each for side in inputs_of(node) for each in side.columns)
    if isinstance(node, Map):
        for expression in (*(each.expression for each in node.outputs), *node.where):
            if not _is_passed(expression, _typing(node.input.columns)):
                yield uncertified_in(expression, node.input.columns)
    for each in (*node.columns, *below):
        if not (has_simple_type(each.type) or (passes and is_held(each.type))):
            yield f"column {each.name.lstrip('_')} has the type {each.type or '(as Spark derives)'}"
    if isinstance(node, Join):
        columns = (*node.left.columns, *node.right.columns)
        for part in node.rest:
            yield uncertified_in(part, columns)
        known = {each.name: each.type for each in columns}
        for ours, theirs in node.pairs:
            if not _comparable(known[ours], known[theirs]):
                yield f"a comparison of {known[ours]} with {known[theirs]}"
    if isinstance(node, Grouped | Sessions | Over):
        for call in node.calls:
            yield _uncertified_call(call)


def _is_passed(node: exp.Expr, types: TypeOf) -> bool:
    """Say whether an expression is a column, or a field of one, as it is."""
    if isinstance(node, exp.Dot | exp.Paren):
        return bool(types(node)) and _is_passed(node.this, types)
    return isinstance(node, exp.Column) and is_held(types(node))


def _too_long(node: exp.Expr, columns: tuple[Column, ...]) -> str | None:
    """Return a certified expression that repeats its parts too often in the words of DuckDB."""
    try:
        DuckText().expression(node, columns)
    except BeyondThisProcess as error:
        return error.message
    return None


def _typing(columns: tuple[Column, ...]) -> TypeOf:
    known = {each.name: each.type for each in columns}
    return lambda node: type_of(node, lambda found: known.get(found.name, ""))


def _uncertified_call(call: Call) -> str | None:
    if call.argument is None:
        return None
    if not has_simple_type(call.kind):
        return f"{call.function.upper()} of {call.kind or 'a type that only Spark derives'}"
    if call.function in _OF_BITS:
        return None if call.kind in INTEGERS else f"{call.function.upper()} of {call.kind}"
    if call.function in (Function.PERCENTILE, Function.VARIANCE):
        digits = digits_of(call.kind)
        exact = call.kind in _NUMBERS or (digits is not None and digits[0] <= EXACT_DIGITS)
        return None if exact else f"{call.function.upper()} of {call.kind}"
    if call.default is not None:
        return uncertified_in(call.default, ())
    if call.function in (Function.SUM, Function.AVG):
        size = DECIMAL.fullmatch(call.kind)
        summed = size is not None and call.function is Function.SUM
        small = size is not None and int(size[1]) <= _MOST_AVERAGED
        if call.kind not in _NUMBERS and not (summed or small):
            return f"{call.function.upper()} of {call.kind}"
    return None


def _uncertified(node: exp.Expr, types: TypeOf) -> str | None:
    """Return the first part of an expression that is not certified, as it is written."""
    if isinstance(node, exp.Dot) and _is_passed(node, types) and has_simple_type(types(node)):
        return None
    scalar = scalar_of(node, types)
    if scalar is None and not _known(node, types):
        return render(node)
    for child in scalar.parts if scalar is not None else node.iter_expressions():
        if isinstance(child, exp.DataType | exp.Var | exp.Interval | exp.Identifier):
            continue
        found = _uncertified(child, types)
        if found is not None:
            return found
    return None


def _known(node: exp.Expr, types: TypeOf) -> bool:
    """Say whether an expression is certified, supposed that its parts are."""
    match node:
        case exp.Column() | exp.Literal():
            return has_simple_type(types(node))
        case exp.Paren() | exp.Boolean() | exp.Null() | exp.Is():
            return True
        case exp.If() | exp.Case() | exp.Array():
            return bool(types(node) or _branch(node)) and _decides(node, types)
        case exp.And() | exp.Or() | exp.Not():
            return all(_is_boolean(side, types) for side in node.iter_expressions())
        case exp.Between():
            bounds = (node.args["low"], node.args["high"])
            return _comparable_with_all(types(node.this), [types(each) for each in bounds])
        case exp.In():
            plain = not node.args.get("query")
            others = [types(each) for each in node.expressions]
            return plain and _comparable_with_all(types(node.this), others)
        case exp.Nullif():
            return _comparable(types(node.this), types(node.expression))
        case exp.Add() | exp.Sub() if isinstance(node.expression, exp.Interval):
            length = duration_of(node.expression)
            return types(node.this) == "TIMESTAMP" and length is not None
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
            return {types(node.this), types(node.expression)} <= {*_NUMBERS}
        case exp.Mod() | exp.IntDiv():
            return types(node.this) in INTEGERS and types(node.expression) in INTEGERS
        case exp.TimestampTrunc():
            return types(node.this) == "TIMESTAMP" and node.text("unit").upper() in _UNITS
        case _:
            return _known_by_class(node, types)


def _known_by_class(node: exp.Expr, types: TypeOf) -> bool:
    if isinstance(node, _SAME_FAMILY):
        both = types(node.this), types(node.expression)
        return _comparable(*both) or bool(rounded_type(*both))
    if function_of(node) is not None:
        return True
    if isinstance(node, _CHOICES):
        kinds = {types(each) for each in (node.this, *node.expressions)} - {""}
        return len(kinds) == 1 and all(has_simple_type(kind) for kind in kinds)
    if isinstance(node, exp.Abs | exp.Neg):
        return types(node) in _NUMBERS or DECIMAL.fullmatch(types(node)) is not None
    if isinstance(node, exp.Concat | exp.DPipe):
        return all(types(each) == "STRING" for each in node.iter_expressions())
    if isinstance(node, exp.TimeStrToTime):
        return isinstance(node.parent, exp.TimeToStr)
    if isinstance(node, exp.TimeToStr):
        known = format_parts(node) is not None
        return known and types(moment_formatted(node)) == "TIMESTAMP"
    if isinstance(node, exp.SplitPart | exp.Replace):
        return _by_fixed_text(node, types)
    if isinstance(node, exp.StartsWith | exp.EndsWith | exp.Contains):
        return types(node.this) == types(node.expression) == "STRING"
    if isinstance(node, exp.Length):
        return types(node.this) == "STRING"
    return isinstance(node, exp.UnixMicros) and types(node.this) == "TIMESTAMP"


def _by_fixed_text(node: exp.Expr, types: TypeOf) -> bool:
    """Say whether a text is divided or replaced by a literal that is not empty."""
    if isinstance(node, exp.SplitPart):
        by, number = node.args.get("delimiter"), node.args.get("part_index")
        fixed = isinstance(number, exp.Literal) and types(number) == "INT" and number.name != "0"
    else:
        by = node.expression
        given = node.args.get("replacement")
        fixed = given is None or types(given) == "STRING"
    literal = isinstance(by, exp.Literal) and by.is_string and by.name != ""
    return fixed and literal and types(node.this) == "STRING"


def _branch(node: exp.Expr) -> bool:
    """Say whether this is one WHEN of a CASE, whose type is asked of the whole."""
    return isinstance(node, exp.If) and isinstance(node.parent, exp.Case)


def _decides(node: exp.Expr, types: TypeOf) -> bool:
    """Say whether both engines take the same branch by the condition of an IF, or of a WHEN.

    Each has rules of its own for a condition that is no BOOLEAN, and for `CASE x WHEN y` where x
    and y are of two types.
    """
    if isinstance(node, exp.Case | exp.Array):
        return True
    subject = node.parent.this if _branch(node) and node.parent is not None else None
    if subject is None:
        return _is_boolean(node.this, types)
    return _comparable(types(subject), types(node.this))


def _is_boolean(node: exp.Expr, types: TypeOf) -> bool:
    return isinstance(node, exp.Null) or types(node) == "BOOLEAN"


def _comparable(left: str, right: str) -> bool:
    both = {left, right}
    return (
        (left == right and has_simple_type(left))
        or both <= {*INTEGERS}
        or both in ({kind, "DOUBLE"} for kind in _WITHIN_DOUBLE)
        or _comparable_by_value(left, right)
        or _comparable_decimals(left, right)
    )


def _comparable_with_all(value: str, others: Sequence[str]) -> bool:
    """Say whether comparisons with several values are alike: DuckDB gives all of them one type."""
    if not all(_comparable(value, each) for each in others):
        return False
    decimals = [int(size[1]) for each in (value, *others) if (size := DECIMAL.fullmatch(each))]
    if "DOUBLE" in (value, *others):
        return all(digits <= EXACT_DIGITS for digits in decimals)
    return not decimals or bool(common_type([value, *others]))


def _comparable_by_value(left: str, right: str) -> bool:
    """Say whether one side is a DOUBLE and the other a decimal that each engine turns into one.

    A whole number below 2^53 divided by a power of ten is rounded once, so that it is the nearest.
    """
    sizes = [digits_of(kind) for kind in (left, right) if DECIMAL.fullmatch(kind)]
    small = [size for size in sizes if size is not None and size[0] <= EXACT_DIGITS]
    return "DOUBLE" in (left, right) and len(small) == 1


def _comparable_decimals(left: str, right: str) -> bool:
    """Say whether one decimal holds the values of both sides."""
    ours, theirs = digits_of(left), digits_of(right)
    if ours is None or theirs is None:
        return False
    return max(ours[0] - ours[1], theirs[0] - theirs[1]) + max(ours[1], theirs[1]) <= MOST_DIGITS
