"""The columns of a projection's key by which its rows are computed apart from each other.

And what is computed whole for each part all the same: sides of joins that these do not reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from projections.sql.operators.tree import (
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
    walk,
)
from projections.sql.plans.plan import Plan
from projections.sql.words.catalog import Column

_Names = tuple[str, ...]

_COSTLY = (Grouped, Sessions, Over, Match, Join)
"""What is computed from many rows at once: reading its rows is cheaper than computing them."""


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


def parted(tree: Node, names: Sequence[str]) -> Iterator[tuple[Node, tuple[Column, ...]]]:
    """Yield the nodes nearest to the inputs whose rows a condition on columns of the result parts.

    With each the columns that have the values of `names`, and their types. The condition on all of
    these nodes is that on the result, where equal values alone are on its same side.
    """
    types = {each.name: each.type for each in tree.columns}
    parts = _Parts(tuple(types[name] for name in names), Counter(walk(tree)))
    yield from parts.of(tree, tuple(names))


@dataclass(frozen=True, slots=True)
class _Parts:
    """`types` are those of the columns, `times` says how often a node stands in the tree."""

    types: tuple[str, ...]
    times: Mapping[Node, int]

    def of(self, node: Node, names: _Names) -> Iterator[tuple[Node, tuple[Column, ...]]]:
        below = _below(node, names)
        if not below or not all(self._can_be_parted(*each) for each in below):
            pairs = zip(names, self.types, strict=True)
            yield node, tuple(Column(name=name, type=kind) for name, kind in pairs)
            return
        for each in below:
            yield from self.of(*each)
        # Whoever has other values there meets no row of the side that is parted.
        other = _other_side(node, names)
        if other is not None and self._can_be_parted(*other):
            yield from self.of(*other)

    def _can_be_parted(self, node: Node, names: _Names) -> bool:
        """Say whether a node's rows are read in one place, and columns have the result's types."""
        kinds = {each.name: each.type for each in node.columns}
        return self.times[node] == 1 and tuple(kinds[name] for name in names) == self.types


def _below(node: Node, names: _Names) -> list[tuple[Node, _Names]]:
    """Return the inputs that are all to be parted in place of a node; none where that cannot be.

    With each the columns that have the values of `names` there.
    """
    match node:
        case Map():
            made = {each.name: each.expression for each in node.outputs}
            columns = [made[name] for name in names]
            plain = all(isinstance(each, exp.Column) for each in columns)
            return [(node.input, tuple(each.name for each in columns))] if plain else []
        case UnionAll():
            return [(each, names) for each in node.inputs]
        case Join():
            side = _own_side(node, names)
            return [] if side is None else [(side, names)]
        case Exploded():
            known: Collection[str] = node.kept
        case Grouped() | Sessions() | Newest():
            known = node.keys
        case Over() | Match():
            known = node.partition
        case Windowed() | Final():
            known = {each.name for each in node.input.columns}
        case Scan():
            return []
    return [(node.input, names)] if {*names} <= {*known} else []


def _own_side(node: Join, names: Collection[str]) -> Node | None:
    """Return the side of a join that all of some columns are of, and no row is without."""
    sides = (node.left, node.right) if node.kind is JoinKind.INNER else (node.left,)
    return next((s for s in sides if {*names} <= {each.name for each in s.columns}), None)


def _other_side(node: Node, names: _Names) -> tuple[Node, _Names] | None:
    """Return the other side of a join, if all of some columns equal some there."""
    if not isinstance(node, Join):
        return None
    own = _own_side(node, names)
    if own is None:
        return None
    there = node.right if own is node.left else node.left
    equal = _equal(node, own)
    return (there, tuple(equal[n] for n in names)) if {*names} <= equal.keys() else None


def computed_whole(plan: Plan, names: Collection[str]) -> tuple[Node, ...]:
    """Return the sides of joins that a filter on columns of the result does not reach.

    Only those that cost more to compute than to read.
    """
    return tuple(_whole(plan.tree, frozenset(names))) if names else ()


def _whole(node: Node, names: frozenset[str]) -> Iterator[Node]:
    match node:
        case Scan():
            return
        case Map():
            made = (each.expression for each in node.outputs if each.name in names)
            below = {column.name for each in made for column in each.find_all(exp.Column)}
            yield from _whole(node.input, frozenset(below))
        case Windowed():
            known = {each.name for each in node.input.columns}
            below = {name if name in known else node.time for name in names}
            yield from _whole(node.input, frozenset(below))
        case UnionAll():
            for each in node.inputs:
                yield from _whole(each, names)
        case Join():
            yield from _beside(node, names)
        case _:
            yield from _whole(node.input, names)


def _beside(node: Join, names: frozenset[str]) -> Iterator[Node]:
    """Go on in the side that the columns are of; the other one is reached through equal ones."""
    here, there = node.left, node.right
    if names <= {each.name for each in node.right.columns}:
        here, there = there, here
    elif not names <= {each.name for each in node.left.columns}:
        yield from (each for each in (node.left, node.right) if _is_costly(each))
        return
    yield from _whole(here, names)
    equal = _equal(node, here)
    if names <= equal.keys():
        yield from _whole(there, frozenset(equal[name] for name in names))
    elif _is_costly(there):
        yield there


def _equal(node: Join, side: Node) -> dict[str, str]:
    """Return columns of a side of a join, each with the one of the other side that it equals."""
    pairs = node.pairs if side is node.left else [(right, left) for left, right in node.pairs]
    return {name: other for own, other in pairs for name in _alike(side, own)}


def _alike(node: Node, name: str) -> set[str]:
    """Return the columns that have the values of one: a join has its own names for its pairs."""
    if not isinstance(node, Map):
        return {name}
    own = next(each.expression for each in node.outputs if each.name == name)
    return {each.name for each in node.outputs if each.expression == own}


def _is_costly(node: Node) -> bool:
    return any(isinstance(each, _COSTLY) for each in walk(node))
