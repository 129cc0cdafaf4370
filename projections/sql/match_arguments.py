"""What an aggregate of a pattern is over, where that is an error in some rows.

Which rows are a variable's the matcher alone knows, and columns are computed of all rows. So what
fails is NULL in them, and a column beside it tells the matcher, which raises the error for a row
that it takes.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.scalar import TEXT, TypeOf

_DIVISIONS = (exp.Div, exp.Mod, exp.IntDiv)
_CHOICES = (exp.Case, exp.If, exp.Coalesce, exp.Nvl2, exp.And, exp.Or)
"""Their parts are asked where they say so: whoever writes one guards them by it."""


def tried(node: exp.Expr, types: TypeOf) -> tuple[exp.Expr, exp.Expr | None]:
    """Return an expression that is NULL where it would be an error, and one that says where.

    None where it never is. Errors are divisions by zero, and texts that a cast cannot read.
    """
    whole = exp.Paren(this=node.copy())
    failures: list[exp.Expr] = []
    # From the inside to the outside, since each is asked of what was tried inside it.
    for found in reversed([*whole.walk()]):
        if found.find_ancestor(*_CHOICES) is not None:
            continue
        if isinstance(found, _DIVISIONS) and not isinstance(found.expression.unnest(), exp.Literal):
            divisor = found.expression
            is_zero = exp.EQ(this=_bracketed(divisor), expression=_zero())
            failures.append(exp.and_(_known(found.this), is_zero))
            found.set("expression", exp.Nullif(this=divisor.copy(), expression=_zero()))
        elif _reads_text(found, types):
            read = exp.TryCast(this=found.this.copy(), to=found.args["to"].copy(), safe=True)
            unread = exp.Is(this=read.copy(), expression=exp.Null())
            failures.append(exp.and_(_known(found.this), unread))
            found.replace(read)
    return whole.this, exp.or_(*failures) if failures else None


def _reads_text(node: exp.Expr, types: TypeOf) -> bool:
    if not isinstance(node, exp.Cast) or node.args.get("safe"):
        return False
    return types(node.this) == TEXT != types(node)


def _known(node: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Is(this=_bracketed(node), expression=exp.Null()))


def _bracketed(node: exp.Expr) -> exp.Expr:
    return exp.Paren(this=node.copy())


def _zero() -> exp.Expr:
    return exp.Literal.number(0)
