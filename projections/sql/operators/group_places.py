"""Of which groups somebody asks for the place in time of their newest row.

What came last follows from all rows of a group, and from no number that is kept of them: where
nobody asks, a group of rows that come and go is brought up to date by what came and went.
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from projections.sql.operators.tree import (
    Call,
    Exploded,
    Final,
    Function,
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

_OF_PLACES = (Function.NEWEST, Function.MAX_BY, Function.MIN_BY)


def with_places(node: Node, *, asked: bool = False) -> Node:
    """Return a tree whose groups say whether their place is `asked` for by who reads them."""
    match node:
        case Scan():
            return node
        case UnionAll():
            return replace(node, inputs=tuple(with_places(e, asked=asked) for e in node.inputs))
        case Join():
            # A pair of facts has the place of the later one, any other pair that of its left row.
            alone = node.kind in (JoinKind.SEMI, JoinKind.ANTI)
            later = node.timed and not alone
            left, right = with_places(node.left, asked=asked or later), node.right
            return replace(node, left=left, right=with_places(right, asked=later))
        case Grouped():
            below = asked or any(map(reads_place, node.calls))
            return replace(node, input=with_places(node.input, asked=below), placed=asked)
        case Newest():
            return replace(node, input=with_places(node.input, asked=asked or not node.unique))
        case Sessions() | Over() | Match():
            return replace(node, input=with_places(node.input, asked=True))
        case Map() | Windowed() | Exploded() | Final():
            return replace(node, input=with_places(node.input, asked=asked))
        case _:
            assert_never(node)


def reads_place(call: Call) -> bool:
    """Say whether a result depends on where rows stand in time."""
    return call.function in _OF_PLACES or bool(call.order)
