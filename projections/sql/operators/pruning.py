"""A plan tree without what nobody reads, and with conditions where they leave most rows out.

State is kept of the rows that reach an operator: each column and row that does not reach it is one
that need not be held.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import assert_never

from sqlglot import exp

from projections.sql.operators.explosion_places import sunk
from projections.sql.operators.formulas import columns_of
from projections.sql.operators.group_places import with_places
from projections.sql.operators.resolving import used
from projections.sql.operators.shape import END
from projections.sql.operators.tree import (
    Computed,
    Exploded,
    Final,
    Grouped,
    Join,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
    column,
)
from projections.sql.operators.uniqueness import one_row_of_each_key


def pruned(tree: Newest) -> Newest:
    """Return the tree that gives the same rows from fewer columns and rows."""
    made = with_places(_with(sunk(tree), frozenset(each.name for each in tree.columns)))
    assert isinstance(made, Newest)
    return made


def _with(node: Node, needed: Set[str]) -> Node:
    """Return a node that gives at least the columns that are needed, and few others."""
    match node:
        case Scan():
            return replace(node, columns=tuple(c for c in node.columns if c.name in needed))
        case Map():
            return _map(node, needed)
        case UnionAll():
            parts = tuple(_exactly(each, needed) for each in node.inputs)
            return replace(node, inputs=parts)
        case Windowed():
            return replace(node, input=_with(node.input, {*needed, node.time}))
        case Exploded():
            return _exploded(node, needed)
        case Grouped() | Sessions():
            calls = tuple(call for call in node.calls if call.name in needed)
            wanted = {*node.keys, *(name for call in calls for name in call.reads)}
            wanted |= {node.time} if isinstance(node, Sessions) else set()
            return replace(node, input=_with(node.input, wanted), calls=calls)
        case Over():
            own = {*node.partition, *(each.column for each in node.order)}
            own |= {name for call in node.calls for name in call.reads}
            below = {each.name for each in node.input.columns}
            return replace(node, input=_exactly(node.input, (needed & below) | own))
        case Match():
            return _match(node, needed)
        case Join():
            return _join(node, needed)
        case Final():
            return replace(node, input=_exactly(node.input, {*needed, END}))
        case Newest():
            newest = replace(node, input=_exactly(node.input, needed))
            return replace(newest, unique=one_row_of_each_key(newest))
        case _:
            assert_never(node)


def _exactly(node: Node, needed: Set[str]) -> Node:
    """Return a node that gives the needed columns and no others, in its own order."""
    made = _with(node, needed)
    if all(each.name in needed for each in made.columns):
        return made
    wanted = tuple(
        Computed(name=each.name, expression=column(each.name), type=each.type)
        for each in made.columns
        if each.name in needed
    )
    return Map(input=made, outputs=wanted)


def _map(node: Map, needed: Set[str]) -> Node:
    outputs = tuple(each for each in node.outputs if each.name in needed)
    below = node.input
    if isinstance(below, Map):
        return _with(_merged(outputs, node.where, below), needed)
    where = node.where
    if isinstance(below, Join):
        below, where = _pushed(below, where)
    wanted = set().union(*(used(each.expression) for each in outputs), *map(used, where))
    return replace(node, input=_with(below, wanted), outputs=outputs, where=where)


def _merged(outputs: tuple[Computed, ...], where: tuple[exp.Expr, ...], below: Map) -> Map:
    """Make one `Map` of two: the expressions above read those below in place of their names."""
    inside = {each.name: each.expression for each in below.outputs}

    def inlined(node: exp.Expr) -> exp.Expr:
        def replaced(found: exp.Expr) -> exp.Expr:
            if not isinstance(found, exp.Column):
                return found
            value = inside[found.name]
            plain = isinstance(value, exp.Column | exp.Literal)
            return value.copy() if plain else exp.Paren(this=value.copy())

        return node.copy().transform(replaced)

    return Map(
        input=below.input,
        outputs=tuple(replace(each, expression=inlined(each.expression)) for each in outputs),
        where=(*below.where, *map(inlined, where)),
    )


def _pushed(join: Join, where: tuple[exp.Expr, ...]) -> tuple[Join, tuple[exp.Expr, ...]]:
    """Move the conditions on the left side's columns below a join, which leaves those as they are.

    Every kind of join gives rows of its left side, each with its own values.
    """
    ours = {each.name for each in join.left.columns}
    moved = tuple(part for part in where if used(part) <= ours)
    if not moved:
        return join, where
    rest = tuple(part for part in where if part not in moved)
    outputs = tuple(
        Computed(name=each.name, expression=column(each.name), type=each.type)
        for each in join.left.columns
    )
    return replace(join, left=Map(input=join.left, outputs=outputs, where=moved)), rest


def _exploded(node: Exploded, needed: Set[str]) -> Exploded:
    kept = tuple(name for name in node.kept if name in needed)
    return replace(
        node,
        input=_with(node.input, {*kept, node.values}),
        kept=kept,
        place=node.place if node.place in needed else None,
        elements=tuple(each for each in node.elements if each.name in needed),
    )


def _match(node: Match, needed: Set[str]) -> Match:
    picks = tuple(each for each in node.picks if each.name in needed)
    wanted = {*node.partition, node.time}.union(*(columns_of(f) for _, f in node.conditions))
    wanted = wanted.union(*(columns_of(each.taken) for each in picks))
    return replace(node, input=_exactly(node.input, wanted), picks=picks)


def _join(node: Join, needed: Set[str]) -> Join:
    wanted = {*needed}.union(*map(used, node.rest))
    left = {name for name, _ in node.pairs}
    right = {name for _, name in node.pairs}
    ours = {each.name for each in node.left.columns}
    theirs = {each.name for each in node.right.columns}
    return replace(
        node,
        left=_with(node.left, (wanted & ours) | left),
        right=_with(node.right, (wanted & theirs) | right),
    )
