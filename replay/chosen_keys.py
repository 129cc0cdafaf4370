"""Which keys a build computes again, where it is not all: a condition over columns of the key.

Spark asks it twice, of the rows that the table has, whose others are copied, and of what the query
gives. So it must say the same of a key each time, and reach the inputs as the slices of a build do:
it compares columns that the query carries through from its inputs with values, and nothing else.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from kernel.errors import InvalidRequest
from projections.sql.plans.plan import Plan
from replay.carried_keys import sliceable

_COMPARES = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Neg, exp.Mod),
    *(exp.And, exp.Or, exp.Not, exp.Paren, exp.Tuple, exp.In, exp.Between, exp.Is, exp.Like),
    *(exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE),
    *(exp.Cast, exp.DataType, exp.DataTypeParam),
)
_MOST_CHARACTERS = 100_000


def refuse_condition(plan: Plan, where: str) -> None:
    """Raise `InvalidRequest` for a condition that does not choose keys of a projection."""
    columns = sliceable(plan)
    remedy = f"As --where \"{(columns or plan.key)[0]} IN ('a', 'b')\""
    tree = _parsed(where, remedy)
    for node in tree.walk():
        if not isinstance(node, _COMPARES):
            raise InvalidRequest(
                f"--where compares columns of the key with values; {node.sql('spark')[:80]} is "
                "something else",
                remedy=remedy,
            )
    named = [each.sql("spark").replace("`", "") for each in tree.find_all(exp.Column)]
    if not named:
        raise InvalidRequest(f"--where {where} names no column of the key", remedy=remedy)
    for name in named:
        _refuse_column(plan, columns, name, remedy)


def _refuse_column(plan: Plan, columns: tuple[str, ...], name: str, remedy: str) -> None:
    if name.lower() in {each.lower() for each in columns}:
        return
    if name.lower() in {each.lower() for each in plan.key}:
        raise InvalidRequest(
            f"{name} is not carried through from the inputs, or not by all steps: to know which "
            "rows have it, all would be computed",
            remedy=f"Build all of it: penstock replay apply {plan.name}",
        )
    raise InvalidRequest(
        f"{name} is no column of the key of {plan.name}, which is {', '.join(plan.key)}",
        remedy=remedy,
    )


def _parsed(where: str, remedy: str) -> exp.Expr:
    try:
        if len(where) > _MOST_CHARACTERS:
            raise ValueError(f"it is longer than {_MOST_CHARACTERS:,} characters")
        found = [each for each in sqlglot.parse(where, dialect="spark") if each is not None]
        (tree,) = found
    except (SqlglotError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"--where {where[:200]} is no condition: {str(error)[:200]}", remedy=remedy
        ) from error
    return tree
