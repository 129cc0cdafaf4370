"""What a semi or an anti join asks of its right side: whether there is a row, and not which."""

from __future__ import annotations

from dataclasses import replace

from projections.sql.operators.tree import (
    Grouped,
    Join,
    JoinKind,
    Map,
    Node,
    UnionAll,
    inputs_of,
    is_stateful,
    passed,
)


def right_rows(join: Join) -> Node:
    """Return a node that has a row wherever the right side has one that matters to a join.

    Of a group of which it is only asked whether it is there these are the rows that are in it: they
    come and go by themselves, where the group would be computed from all of them.
    """
    alone = join.kind in (JoinKind.SEMI, JoinKind.ANTI)
    return _rows_of_groups(join.right) if alone else join.right


def of_several_facts(node: Node) -> bool:
    """Say whether results depend on several facts, by more than on whether one is there."""
    if is_stateful(node):
        return True
    below = (node.left, right_rows(node)) if isinstance(node, Join) else inputs_of(node)
    return any(map(of_several_facts, below))


def _rows_of_groups(node: Node) -> Node:
    match node:
        case Map():
            return replace(node, input=_rows_of_groups(node.input))
        case Grouped() if not node.calls:
            return Map(input=_rows_of_groups(node.input), outputs=passed(node.columns))
        case UnionAll():
            return replace(node, inputs=tuple(map(_rows_of_groups, node.inputs)))
        case _:
            return node
