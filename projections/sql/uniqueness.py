"""Which results have one row of each key by themselves: groups and sessions with their own key.

The newest of one row needs no state. Any other result is a bag, of which the newest is kept.
"""

from __future__ import annotations

from collections.abc import Set

from sqlglot import exp

from projections.sql.tree import (
    WINDOW_END,
    WINDOW_START,
    Grouped,
    Map,
    Newest,
    Node,
    Sessions,
    Windowed,
)
from projections.sql.windows import WindowKind


def one_row_of_each_key(tree: Newest) -> bool:
    """Say whether the key names the groups, so that no two rows have the same."""
    node, named = tree.input, frozenset(tree.keys)
    while isinstance(node, Map):
        named = frozenset(
            each.expression.name
            for each in node.outputs
            if each.name in named and isinstance(each.expression, exp.Column)
        )
        node = node.input
    return _identified(node, named)


def _identified(node: Node, named: Set[str]) -> bool:
    match node:
        case Sessions():
            return {*node.keys} <= named and bool(named & {WINDOW_START, WINDOW_END})
        case Newest():
            return {*node.keys} <= named
        case Grouped():
            return {*node.keys} <= {*named, *_implied(node.input, named)}
        case _:
            return False


def _implied(rows: Node, named: Set[str]) -> Set[str]:
    """Return the bounds of windows that follow from those that are named."""
    if not isinstance(rows, Windowed):
        return frozenset()
    enough = {WINDOW_END} if rows.kind is WindowKind.CUMULATE else {WINDOW_START, WINDOW_END}
    return {WINDOW_START, WINDOW_END} if named & enough else frozenset()
