"""Which rows are the only ones of their keys in their place in time."""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import Exploded, Join, Map, Node, Scan, Windowed


def in_places(node: Node, keys: Collection[str]) -> bool:
    """Say whether each row is the only one of its keys in its place, as facts of a stream are."""
    under = node
    while isinstance(under, Map):
        under = under.input
    return isinstance(under, Scan) and under.kind is InputKind.STREAM and apart(node, keys)


def apart(node: Node, keys: Collection[str]) -> bool:
    """Say whether facts that share a place have different keys; see `Relation.copied`."""
    match node:
        case Scan():
            copied = node.relation.copied
            if node.kind is not InputKind.STREAM or copied is None:
                return True
            return bool(copied) and {*copied} <= {*keys}
        case Map():
            return apart(node.input, _passed(node, keys))
        case Join():
            return apart(node.left, keys)
        case Windowed():
            return apart(node.input, keys)
        case Exploded():
            # Elements are told apart by where they stand, entries by their key.
            told = {node.place, *(e.name for e in node.elements if e.path == ("key",))}
            return bool(told & {*keys}) and apart(node.input, {*keys} & {*node.kept})
        case _:
            return False


def _passed(node: Map, names: Collection[str]) -> list[str]:
    """Return the columns of its input that a `Map` passes on under some of its names."""
    named = [each.expression for each in node.outputs if each.name in names]
    return [each.name for each in named if isinstance(each, exp.Column)]
