"""The columns of a projection's key by which its rows are computed apart from each other."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.plan import Plan
from projections.sql.tree import (
    Exploded,
    Final,
    Grouped,
    Join,
    JoinKind,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
)


def sliceable(plan: Plan) -> tuple[str, ...]:
    """Return the columns of the key that a filter on the result reaches the inputs by."""
    return tuple(name for name in plan.key if _carried(plan.tree, name))


def _carried(node: Node, name: str) -> bool:
    """Say whether a column's values come from the inputs, for rows that are computed together."""
    match node:
        case Scan():
            return True
        case Map():
            made = next(each.expression for each in node.outputs if each.name == name)
            return all(_carried(node.input, c.name) for c in made.find_all(exp.Column))
        case Final():
            return _carried(node.input, name)
        case Windowed():
            known = {each.name for each in node.input.columns}
            return _carried(node.input, name if name in known else node.time)
        case Exploded():
            return name in node.kept and _carried(node.input, name)
        case UnionAll():
            return all(_carried(each, name) for each in node.inputs)
        case Grouped() | Sessions() | Newest():
            return name in node.keys and _carried(node.input, name)
        case Over() | Match():
            return name in node.partition and _carried(node.input, name)
        case Join():
            return _joined(node, name)


def _joined(node: Join, name: str) -> bool:
    if name in {each.name for each in node.left.columns}:
        return _carried(node.left, name)
    return node.kind is JoinKind.INNER and _carried(node.right, name)
