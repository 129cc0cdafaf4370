"""Elements are read as rows where the arrays come from, below the joins of their rows.

A join keeps the rows of both sides: with the elements in place of the array it keeps what is read
of them alone, and each engine holds, compares and orders that.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from projections.sql.operators.resolving import used
from projections.sql.operators.tree import (
    Computed,
    Exploded,
    Join,
    JoinKind,
    Map,
    Node,
    Scan,
    UnionAll,
    column,
    passed,
)


def sunk(node: Node) -> Node:
    """Return a tree of the same rows in which no array goes through a join to be read as rows.

    Where the array is of a side whose rows may be missing, a row without elements is none either,
    or is one for both.
    """
    match node:
        case Scan():
            return node
        case UnionAll():
            return replace(node, inputs=tuple(map(sunk, node.inputs)))
        case Join():
            return replace(node, left=sunk(node.left), right=sunk(node.right))
        case Exploded():
            return _placed(replace(node, input=sunk(node.input)))
        case _:
            return replace(node, input=sunk(node.input))


def _placed(node: Exploded) -> Node:
    """Return an explosion of joined rows as a join of exploded rows, where these are of one side.

    The columns are the same, in another order.
    """
    join, values = node.input, column(node.values)
    if isinstance(join, Map) and not join.where and node.values not in node.kept:
        # What is exploded is computed beside the columns of the join.
        values = next(each.expression for each in join.outputs if each.name == node.values)
        join = join.input
    if not isinstance(join, Join):
        return node
    ours = {each.name for each in join.left.columns}
    if used(values) <= ours:
        return replace(join, left=_placed(_of_side(node, join.left, values)))
    if used(values) & ours or join.as_of or join.kind not in (JoinKind.INNER, JoinKind.LEFT):
        # Of versions there is one for each row: elements would be chosen among.
        return node
    kind = join.kind if node.outer else JoinKind.INNER
    return replace(join, right=_placed(_of_side(node, join.right, values)), kind=kind)


def _of_side(node: Exploded, side: Node, values: exp.Expr) -> Exploded:
    kept = tuple(each.name for each in side.columns)
    made = Computed(name=node.values, expression=values, type=_type_of(node))
    below = side if node.values in kept else Map(input=side, outputs=(*passed(side.columns), made))
    return replace(node, input=below, kept=kept)


def _type_of(node: Exploded) -> str:
    return next(each.type for each in node.input.columns if each.name == node.values)
