"""DISTINCT, INTERSECT and EXCEPT as groups: of each row it is counted out whether a side has it.

Rows are compared as GROUP BY compares them: NULL is equal to NULL, and each row is there once. Of
the two zeros of a floating column the one without a sign is there, as Spark has it.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.catalog import Column
from projections.sql.decimals import FLOATING
from projections.sql.tree import (
    Call,
    Computed,
    Function,
    Grouped,
    Map,
    Node,
    UnionAll,
    column,
    passed,
)

_FIRST, _SECOND = "__first", "__second"


def distinct(node: Node) -> Grouped:
    """Return each row of a node once."""
    if any(each.type in FLOATING for each in node.columns):
        node = Map(input=node, outputs=_keys(node))
    return Grouped(input=node, keys=tuple(each.name for each in node.columns), calls=())


def in_both(first: Node, second: Node) -> Map:
    """Return the rows that two nodes with equal columns both have, each once."""
    return _compared(first, second, column(f"{_SECOND}_has"))


def in_first_alone(first: Node, second: Node) -> Map:
    """Return the rows that the first of two nodes with equal columns has alone, each once."""
    return _compared(first, second, exp.Not(this=column(f"{_SECOND}_has")))


def _compared(first: Node, second: Node, of_second: exp.Expr) -> Map:
    both = UnionAll(inputs=(_from(first, is_first=True), _from(second, is_first=False)))
    calls = tuple(
        Call(
            name=f"{name}_has",
            function=Function.ANY,
            argument=name,
            kind="BOOLEAN",
            type="BOOLEAN",
        )
        for name in (_FIRST, _SECOND)
    )
    groups = Grouped(input=both, keys=tuple(each.name for each in first.columns), calls=calls)
    has = (column(f"{_FIRST}_has"), of_second)
    return Map(input=groups, outputs=passed(first.columns), where=has)


def _from(node: Node, *, is_first: bool) -> Map:
    sides = ((_FIRST, is_first), (_SECOND, not is_first))
    told = (
        Computed(name=name, expression=exp.Boolean(this=value), type="BOOLEAN")
        for name, value in sides
    )
    return Map(input=node, outputs=(*_keys(node), *told))


def _keys(node: Node) -> tuple[Computed, ...]:
    return tuple(
        Computed(name=each.name, expression=_without_sign(each), type=each.type)
        for each in node.columns
    )


def _without_sign(key: Column) -> exp.Expr:
    """Write a key; of a zero with a sign the other one."""
    if key.type not in FLOATING:
        return column(key.name)
    zero = exp.Cast(this=exp.Literal.number(0), to=exp.DataType.build(key.type, dialect="spark"))
    return exp.Add(this=column(key.name), expression=zero)
