"""Whether a query that was mended gives the rows that a build already has, so that it can go on.

A build stops at a row that its query cannot compute. Slices before that were computed without
failing; they are slices of the mended query too, if that differs only where the first one fails:
`try_divide(a, b)` for `a / b`, `TRY_CAST` for `CAST`, `NULLIF(b, 0)` for a divisor. Anything else
may give other rows, and slices of two queries in one table would be no projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlglot
from sqlglot import exp

from kernel.errors import Conflict
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.aggregate_forms import TryAvg, TrySum
from projections.sql.words.catalog import Column
from replay.book import Replay
from replay.carried_keys import sliceable
from replay.slices import Slicing
from replay.subject import Site, Subject, subject_of

_SAFE: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.Add: exp.SafeAdd,
    exp.Sub: exp.SafeSubtract,
    exp.Mul: exp.SafeMultiply,
    exp.Div: exp.SafeDivide,
}
_TOTALS: dict[type[exp.Expr], type[exp.Expr]] = {exp.Sum: TrySum, exp.Avg: TryAvg}
_BY_NAME = frozenset({"try_mod", "try_to_timestamp", "try_to_number", "try_to_date"})
"""Functions that the parser knows by name alone; without `try_` they fail in place of NULL."""
_OPERATORS = {"try_multiply": exp.Mul, "try_subtract": exp.Sub}
_FORMS = "try_divide, try_add and the like, TRY_CAST, NULLIF(divisor, 0)"


def mended(site: Site, replay: Replay, before: Subject, slicing: Slicing, text: str) -> Subject:
    """Return the projection with a query to go on with, in place of the one that failed.

    Raises `Conflict` where it might give other rows than the slices have that are there.
    """
    after = subject_of(site, replay.name, text)
    same = (
        gives_the_same(before.decl, after.decl)
        and _alike(before.plan.columns, after.plan.columns)
        and before.plan.inputs == after.plan.inputs
        and {*slicing.columns} <= {*sliceable(after.plan)}
    )
    if not same:
        raise Conflict(
            f"generation {replay.generation} of {replay.name} cannot be gone on with by this "
            f"query: its rows may be others than those of the slices that are there",
            remedy=f"Change only what failed, by {_FORMS}; or build anew: penstock replay cancel "
            f"{replay.name}, then penstock replay apply {replay.name} --sql FILE",
        )
    return after


def _alike(before: Sequence[Column], after: Sequence[Column]) -> bool:
    """Compare columns; the type of some expressions is known to Spark alone."""
    return [each.name for each in before] == [each.name for each in after] and all(
        old.type == new.type or not (old.type and new.type)
        for old, new in zip(before, after, strict=True)
    )


def gives_the_same(old: ProjectionDecl, new: ProjectionDecl) -> bool:
    """Say whether a query gives every row that another one gives without failing.

    False where that cannot be seen from the two texts.
    """
    alike = old == new or _options(old) == _options(new)
    return alike and old.matches == new.matches and _mends(old.query, new.query)


def _options(decl: ProjectionDecl) -> tuple[object, ...]:
    return decl.name, decl.key, decl.freshness, decl.emit, decl.sink, decl.functions


def _mends(old: exp.Expr, new: exp.Expr) -> bool:
    """Compare two trees, the second of which may take NULL where the first one fails."""
    old, new = old.unnest(), new.unnest()
    if type(old) is type(new) and _arguments(old, new):
        return True
    if _TOTALS.get(type(old)) is type(new):
        return _arguments(old, new)
    safe = _SAFE.get(type(old))
    if safe is not None and type(new) is safe:
        return _mends(old.this, new.this) and _mends(old.expression, new.expression)
    if isinstance(new, exp.Anonymous) and _OPERATORS.get(new.name.lower()) is type(old):
        return _lists([old.this, old.expression], new.expressions)
    if isinstance(new, exp.Anonymous) and new.name.lower() in _BY_NAME:
        return _mends(old, _failing(new))
    if isinstance(old, exp.Div | exp.Mod):
        return _guarded(old, new)
    return False


def _arguments(old: exp.Expr, new: exp.Expr) -> bool:
    """Compare what two nodes of one kind have; a cast or an access may have become a safe one."""
    names = {*old.args, *new.args}
    if isinstance(old, exp.TryCast | exp.Bracket):
        if old.args.get("safe") and not new.args.get("safe"):
            return False
        names -= {"safe"}
    return all(_values(old.args.get(name), new.args.get(name)) for name in names)


def _values(old: Any, new: Any) -> bool:
    if isinstance(old, exp.Expr) and isinstance(new, exp.Expr):
        return _mends(old, new)
    if isinstance(old, list) and isinstance(new, list):
        return _lists(old, new)
    return bool(old == new) or (not old and not new)


def _lists(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) == len(new) and all(map(_values, old, new))


def _failing(call: exp.Anonymous) -> exp.Expr:
    """Return a call of the function that fails where this one gives NULL."""
    plain = call.copy()
    plain.set("this", call.name.lower().removeprefix("try_"))
    return sqlglot.parse_one(plain.sql(dialect="spark"), dialect="spark")


def _guarded(old: exp.Expr, new: exp.Expr) -> bool:
    """Say whether a division became one whose divisor is NULL in place of zero."""
    if isinstance(new, exp.Case):
        branches = new.args["ifs"]
        alone = new.this is None and len(branches) == 1
        return alone and _otherwise(old, branches[0], new.args.get("default"))
    if isinstance(new, exp.If):
        return _otherwise(old, new, new.args.get("false"))
    divisor = new.expression.unnest() if type(new) is type(old) else None
    return (
        isinstance(divisor, exp.Nullif)
        and _is_zero(divisor.expression)
        and _mends(old.this, new.this)
        and _mends(old.expression, divisor.this)
    )


def _otherwise(old: exp.Expr, zero: exp.If, rest: exp.Expr | None) -> bool:
    """Say whether a division is left alone but for a divisor of zero, for which there is NULL."""
    condition = zero.this.unnest()
    return (
        rest is not None
        and isinstance(zero.args.get("true"), exp.Null)
        and isinstance(condition, exp.EQ)
        and condition.this == old.expression.unnest()
        and _is_zero(condition.expression)
        and _mends(old, rest)
    )


def _is_zero(node: exp.Expr) -> bool:
    return isinstance(node, exp.Literal) and not node.is_string and float(node.name) == 0
