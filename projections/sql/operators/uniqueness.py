"""Which results have one row of each key by themselves.

Groups and sessions with their own key have, and tables, also where rows are looked up for them by
a key. The newest of one row needs no state. Any other result is a bag, of which the newest is kept.
"""

from __future__ import annotations

from collections.abc import Set

from sqlglot import exp

from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Exploded,
    Final,
    Grouped,
    Join,
    JoinKind,
    Map,
    Newest,
    Node,
    Scan,
    Sessions,
    Windowed,
)
from projections.sql.operators.windows import WindowKind


def one_row_of_each_key(tree: Newest) -> bool:
    """Say whether the key names the groups, so that no two rows have the same."""
    return _identified(tree.input, frozenset(tree.keys))


def meets_one_at_most(node: Join) -> bool:
    """Say whether no left row is paired with two rows of the right side."""
    equated = frozenset(theirs for _, theirs in node.pairs)
    return bool(node.as_of) or _identified(node.right, equated)


def _identified(node: Node, named: Set[str]) -> bool:
    """Say whether no two rows of a node have the same values in the columns that are named."""
    match node:
        case Map():
            passed = (
                each.expression.name
                for each in node.outputs
                if each.name in named and isinstance(each.expression, exp.Column)
            )
            return _identified(node.input, frozenset(passed))
        case Sessions():
            return {*node.keys} <= named and bool(named & {WINDOW_START, WINDOW_END})
        case Final():
            return _identified(node.input, named)
        case Newest():
            return {*node.keys} <= named
        case Grouped():
            return {*node.keys} <= {*named, *_implied(node.input, named)}
        case Scan():
            table = node.kind in (InputKind.LATEST, InputKind.PROJECTION)
            return table and {*node.relation.key} <= {*named}
        case Join():
            # Of a right side that is identified by what is equated a left row meets one at most.
            met = {*named, *(theirs for _, theirs in node.pairs)}
            alone = node.kind in (JoinKind.SEMI, JoinKind.ANTI)
            return _identified(node.left, named) and (alone or _identified(node.right, met))
        case Exploded():
            keys = (each.name for each in node.elements if node.entries and each.path == ("key",))
            return bool({node.place, *keys} & named) and _identified(node.input, named)
        case _:
            return False


def _implied(rows: Node, named: Set[str]) -> Set[str]:
    """Return the bounds of windows that follow from those that are named."""
    bounds = {WINDOW_START, WINDOW_END}
    while isinstance(rows, Map) and bounds <= {
        each.name
        for each in rows.outputs
        if isinstance(each.expression, exp.Column) and each.expression.name == each.name
    }:
        # Beside them is where rows end.
        rows = rows.input
    if not isinstance(rows, Windowed):
        return frozenset()
    enough = {WINDOW_END} if rows.kind is WindowKind.CUMULATE else bounds
    return bounds if named & enough else frozenset()
