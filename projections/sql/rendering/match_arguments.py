"""What a pattern asks of one row, where that is an error in some rows.

Which rows are a variable's the matcher alone knows, and columns are computed of all rows. So what
fails is NULL in them, and a column beside it tells the matcher, which raises the error for a row
that it asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.operators.tree import column
from projections.sql.values.expressions import never_fails
from projections.sql.values.scalar import TEXT, TypeOf
from projections.sql.words.decimals import FLOATING, INTEGERS, digits_of

_DIVISIONS = (exp.Div, exp.Mod, exp.IntDiv)
_WITHIN_RANGE = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Abs)
_WIDER = {"TINYINT": "INT", "SMALLINT": "INT", "INT": "BIGINT", "BIGINT": "DECIMAL(19,0)"}
"""Types that hold what is computed of two numbers of these; decimals have more digits with it."""
_BOUNDS = {"TINYINT": 2.0**7, "SMALLINT": 2.0**15, "INT": 2.0**31, "BIGINT": 2.0**63}
_NO_VALUES = (exp.DataType, exp.DataTypeParam, exp.Interval, exp.Var, exp.Identifier, exp.Literal)

Tried = tuple[exp.Expr, exp.Expr | None]


def tried(node: exp.Expr, types: TypeOf, failing: Mapping[str, str]) -> Tried:
    """Return an expression that is NULL where it would be an error, and one that says where.

    None where it never is. Errors are divisions by zero, whole numbers that are too large, and
    values that a cast cannot read. `failing` are columns that are NULL where another one says so.
    """
    return _Trial(types, failing).of(node)


class _Trial:
    """Goes through an expression from the inside to the outside, in the order of SQL."""

    def __init__(self, types: TypeOf, failing: Mapping[str, str]) -> None:
        self._types = types
        self._failing = failing

    def of(self, node: exp.Expr) -> Tried:
        """Return a part as it is tried, and where it fails."""
        match node:
            case exp.Column():
                beside = self._failing.get(node.name)
                return node.copy(), None if beside is None else column(beside)
            case exp.And() | exp.Or():
                return self._connected(node)
            case exp.Coalesce():
                return self._first_known(node)
            case exp.Case() | exp.If():
                return self._chosen(node)
            case exp.Nvl2():
                known, value = _is_known(node.this), node.args["true"]
                return self._chosen(exp.If(this=known, true=value, false=node.args.get("false")))
            case exp.Between():
                return self._between(node)
            case exp.In() if node.expressions:
                return self._among(node)
            case _ if isinstance(node, _NO_VALUES):
                return node.copy(), None
            case _:
                return self._computed(node)

    def _connected(self, node: exp.Expr) -> Tried:
        """Try AND and OR, which ask no further once they know."""
        (left, first), (right, second) = self.of(node.this), self.of(node.expression)
        made = type(node)(this=left, expression=right)
        if second is None:
            return made, first
        if isinstance(node, exp.And):
            asked = _or_else(left, exp.true())
        else:
            asked = exp.Not(this=_or_else(left, exp.false()))
        return made, _any(first, exp.and_(asked, second))

    def _first_known(self, node: exp.Expr) -> Tried:
        parts = [self.of(part) for part in (node.this, *node.expressions)]
        failed: exp.Expr | None = None
        for value, own in reversed(parts):
            behind = None if failed is None else exp.and_(_is_null(value), failed)
            failed = _any(own, behind)
        first, *others = [value for value, _ in parts]
        made = node.copy()
        made.set("this", first)
        made.set("expressions", others)
        return made, failed

    def _chosen(self, node: exp.Expr) -> Tried:
        """Try CASE and IF, which ask one branch, and conditions up to the one that holds."""
        whole = isinstance(node, exp.Case)
        branches = node.args["ifs"] if whole else [node]
        otherwise = node.args.get("default" if whole else "false")
        subject, failed = (None, None) if not whole or node.this is None else self.of(node.this)
        asked: list[exp.Expr] = []
        made: list[exp.Expr] = []
        for each in branches:
            (condition, first), (value, second) = self.of(each.this), self.of(each.args["true"])
            made.append(exp.If(this=condition, true=value))
            if subject is not None:
                condition = exp.EQ(this=_bracketed(subject), expression=_bracketed(condition))
            if first is not None:
                asked.append(exp.If(this=first, true=exp.true()))
            asked.append(exp.If(this=condition.copy(), true=_or_false(second)))
        last, third = (None, None) if otherwise is None else self.of(otherwise)
        if third is not None or any(not _is_false(each.args["true"]) for each in asked):
            failed = _any(failed, exp.Case(ifs=asked, default=_or_false(third)))
        if whole:
            return exp.Case(this=subject, ifs=made, default=last), failed
        made[0].set("false", last)
        return made[0], failed

    def _between(self, node: exp.Expr) -> Tried:
        made, failed = self._computed(node)
        if failed is None:
            return made, None
        low = exp.GTE(this=_bracketed(node.this), expression=_bracketed(node.args["low"]))
        high = exp.LTE(this=_bracketed(node.this), expression=_bracketed(node.args["high"]))
        both, failed = self._connected(exp.And(this=low, expression=high))
        return exp.Paren(this=both), failed

    def _among(self, node: exp.Expr) -> Tried:
        """Try IN, which asks one value after the other, up to the one that is equal."""
        value, first = self.of(node.this)
        parts = [self.of(part) for part in node.expressions]
        failed: exp.Expr | None = None
        for part, own in reversed(parts):
            equal = exp.EQ(this=_bracketed(value), expression=_bracketed(part))
            differs = exp.Not(this=_or_else(equal, exp.false()))
            failed = _any(own, None if failed is None else exp.and_(differs, failed))
        made = node.copy()
        made.set("this", value)
        made.set("expressions", [part for part, _ in parts])
        return made, _any(first, failed)

    def _computed(self, node: exp.Expr) -> Tried:
        """Try an expression all of whose parts are asked."""
        made = node.copy()
        failures: list[exp.Expr | None] = []
        for name, value in node.args.items():
            if isinstance(value, exp.Expr):
                part, failed = self.of(value)
                made.set(name, part)
                failures.append(failed)
            elif isinstance(value, list) and all(isinstance(each, exp.Expr) for each in value):
                parts = [self.of(each) for each in value]
                made.set(name, [part for part, _ in parts])
                failures += [failed for _, failed in parts]
        made, own = self._alone(made)
        return made, _any(*failures, own)

    def _alone(self, node: exp.Expr) -> Tried:
        """Try what is computed of parts that were tried."""
        if isinstance(node, _DIVISIONS):
            return _divided(node)
        if isinstance(node, exp.Cast) and not (node.args.get("safe") or never_fails(node)):
            return self._cast(node)
        is_day = isinstance(node, exp.TsOrDsToDate) and node.args.get("format") is None
        if is_day and self._types(node.this) == TEXT:
            return _read(node.this, exp.DataType.build("DATE", dialect="spark"))
        kind = self._types(node)
        if isinstance(node, _WITHIN_RANGE) and kind in _WIDER:
            return _within_range(node, kind)
        return node, None

    def _cast(self, node: exp.Expr) -> Tried:
        source, target = self._types(node.this), self._types(node)
        if source == target or (source != TEXT and not _is_narrower(source, target)):
            return node, None
        if source in FLOATING and target in _BOUNDS:
            return _cut(node, _BOUNDS[target])
        return _read(node.this, node.args["to"])


def _is_narrower(source: str, target: str) -> bool:
    """Say whether a number may be too large for another type of numbers."""
    if source in INTEGERS and target in INTEGERS:
        return INTEGERS.index(target) < INTEGERS.index(source)
    ours, theirs = digits_of(source), digits_of(target)
    if ours is not None and theirs is not None and target not in INTEGERS:
        # Rounding may carry a digit to the left.
        room = theirs[0] - theirs[1] - (theirs[1] < ours[1])
        return room < ours[0] - ours[1]
    return theirs is not None and (ours is not None or source in FLOATING)


def _divided(node: exp.Expr) -> Tried:
    divisor = node.expression
    if _is_number(divisor) and any(sign in divisor.unnest().name for sign in "123456789"):
        return node, None
    is_zero = exp.EQ(this=_bracketed(divisor), expression=_zero())
    failed = exp.and_(_is_known(node.this), is_zero)
    node.set("expression", exp.Nullif(this=divisor.copy(), expression=_zero()))
    return node, failed


def _read(value: exp.Expr, to: exp.Expr) -> Tried:
    """Try a cast, which gives NULL for what it cannot read."""
    read = exp.TryCast(this=value.copy(), to=to.copy(), safe=True)
    return read, exp.and_(_is_known(value), _is_null(read))


def _cut(node: exp.Expr, bound: float) -> Tried:
    """Try a cast of a floating-point number, which cuts digits behind the point off."""
    # The greatest BIGINT is taken for the double that it is nearest to; others are cut to theirs.
    whole = bound == _BOUNDS["BIGINT"]
    low, high = (exp.GTE, exp.LTE) if whole else (exp.GT, exp.LT)
    least = -bound if whole else -bound - 1
    fits = exp.and_(
        low(this=_bracketed(node.this), expression=_double(least)),
        high(this=_bracketed(node.this), expression=_double(bound)),
    )
    made = exp.Case(ifs=[exp.If(this=fits, true=node)])
    return made, exp.and_(_is_known(node.this), exp.Not(this=exp.Paren(this=fits.copy())))


def _within_range(node: exp.Expr, kind: str) -> Tried:
    """Try arithmetic of whole numbers in a type that has room for it."""
    sides = [side for side in (node.this, node.args.get("expression")) if side is not None]
    if all(map(_is_number, sides)):
        return node, None
    for name, side in zip(("this", "expression"), sides, strict=False):
        wide = exp.DataType.build(_WIDER[kind], dialect="spark")
        node.set(name, exp.Cast(this=side.copy(), to=wide))
    read, _ = _read(node, exp.DataType.build(kind, dialect="spark"))
    return read, exp.and_(*map(_is_known, sides), _is_null(read))


def _any(*failures: exp.Expr | None) -> exp.Expr | None:
    known = [each for each in failures if each is not None]
    return exp.or_(*known) if known else None


def _or_else(value: exp.Expr, otherwise: exp.Expr) -> exp.Expr:
    return exp.Coalesce(this=_bracketed(value), expressions=[otherwise])


def _is_null(node: exp.Expr) -> exp.Expr:
    return exp.Is(this=_bracketed(node), expression=exp.Null())


def _is_known(node: exp.Expr) -> exp.Expr:
    return exp.Not(this=_is_null(node))


def _or_false(failed: exp.Expr | None) -> exp.Expr:
    return exp.false() if failed is None else failed


def _is_false(node: exp.Expr) -> bool:
    return isinstance(node, exp.Boolean) and not node.this


def _is_number(node: exp.Expr) -> bool:
    inner = node.unnest()
    return isinstance(inner, exp.Literal) and not inner.is_string


def _bracketed(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node.copy())


def _zero() -> exp.Expr:
    return exp.Literal.number(0)


def _double(value: float) -> exp.Expr:
    made: exp.Expr = exp.Literal.number(f"{abs(value):.0f}e0")
    return exp.Neg(this=made) if value < 0 else made
