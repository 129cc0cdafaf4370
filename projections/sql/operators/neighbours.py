"""Values of rows near a row: the default of LAG and LEAD, and what one row of a partition has."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.operators.resolving import Names
from projections.sql.values.expressions import render, unwrapped
from projections.sql.words.decimals import DECIMAL, INTEGERS, common_type
from projections.sql.words.places import offset_of


def neighbour_default(names: Names, found: exp.Expr) -> tuple[str, exp.Expr | None]:
    """Return the type of a call of LAG or LEAD, and its default as a value of that type.

    Raises `InvalidRequest` for a default that is no literal, or has no type with the value.
    """
    of = names.type_of(found.this)
    written = found.args.get("default")
    default = None if written is None else unwrapped(written)
    if default is None or isinstance(default, exp.Null):
        return of, None
    kind = _common(of, names.type_of(default), default) if _is_literal(default) else ""
    if not kind:
        raise names.script.refusal(
            f"{render(found)}: the default is a literal of the type of the value, "
            f"{of or 'which only Spark derives'}",
            at=offset_of(default, offset_of(found, names.at)),
            fix="Write a literal of that type, as in LAG(x, 1, 0), or leave it out "
            "and write COALESCE(…) around OVER, which replaces NULL of a neighbour too.",
        )
    return kind, converted(names, default, kind)


def of_whole_partition(window: exp.Expr) -> exp.Expr:
    """Write MAX_BY(x, y) OVER (PARTITION BY k) as the value of the last row by y.

    MIN_BY is that of the first one, ANY_VALUE that of the newest. Any other call is left as it is.
    """
    found, only = window.this, None
    if isinstance(found, exp.Filter):
        found, only = found.this, found.expression.this
    kinds = (exp.ArgMax, exp.ArgMin, exp.AnyValue)
    ordered = window.args.get("order") is not None or window.args.get("spec") is not None
    if not isinstance(found, kinds) or ordered or found.args.get("count") is not None:
        return window
    any_of = isinstance(found, exp.AnyValue)
    by = exp.Literal.number(1) if any_of else found.expression.copy()
    if only is not None:
        by = exp.Case(ifs=[exp.If(this=only.copy(), true=by)])
    last = not isinstance(found, exp.ArgMin)
    known = exp.Not(this=exp.Is(this=exp.Paren(this=by.copy()), expression=exp.Null()))
    value = exp.Case(ifs=[exp.If(this=known, true=found.this.copy())])
    made = window.copy()
    made.set("this", (exp.LastValue if last else exp.FirstValue)(this=value))
    by_value = exp.Ordered(this=by, desc=False, nulls_first=last)
    made.set("order", exp.Order(expressions=[by_value]))
    bounds = {"start": "UNBOUNDED", "start_side": "PRECEDING"}
    bounds |= {"end": "UNBOUNDED", "end_side": "FOLLOWING"}
    made.set("spec", exp.WindowSpec(kind="ROWS", **bounds))
    return made


def converted(names: Names, node: exp.Expr, kind: str) -> exp.Expr:
    """Return an expression as a value of a type."""
    if names.type_of(node) == kind:
        return node
    return exp.Cast(this=node.copy(), to=exp.DataType.build(kind, dialect="spark"))


def _is_literal(node: exp.Expr) -> bool:
    inner = node.this if isinstance(node, exp.Neg | exp.Cast) else node
    return isinstance(inner, exp.Literal | exp.Boolean)


def _common(of: str, kind: str, default: exp.Expr) -> str:
    """Return the type that holds values and default; a whole number is as short as it is."""
    digits = str(default.this.name if isinstance(default, exp.Neg) else default.name)
    if of in ("DOUBLE", "FLOAT") and (kind in INTEGERS or DECIMAL.fullmatch(kind)):
        return of
    if DECIMAL.fullmatch(of) and digits.isdigit():
        kind = f"DECIMAL({len(digits)},0)"
    return common_type([of, kind])
