"""Lineage by column: from which columns of which inputs a column of a projection is computed.

Values alone are followed: conditions, keys of joins and the order by which a row is chosen say
which rows there are, not what is in them.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
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
)

Origins = Mapping[str, frozenset[str]]
"""Columns of a node, each with the input columns that it is computed from, as `input.column`."""


def column_origins(node: Node) -> Origins:
    """Return what each column of a node is computed from; nothing for a constant and a count."""
    match node:
        case Scan():
            return {each.name: frozenset({f"{node.name}.{each.name}"}) for each in node.columns}
        case Map():
            below = column_origins(node.input)
            return {each.name: _of(below, _read(each.expression)) for each in node.outputs}
        case UnionAll():
            sides = [column_origins(each) for each in node.inputs]
            names = [each.name for each in node.columns]
            return {name: frozenset().union(*(side[name] for side in sides)) for name in names}
        case Join():
            return {**column_origins(node.left), **column_origins(node.right)}
        case Newest() | Final():
            return column_origins(node.input)
        case Windowed() | Sessions():
            below = column_origins(node.input)
            bounds = dict.fromkeys((WINDOW_START, WINDOW_END), below.get(node.time, frozenset()))
            calls = node.calls if isinstance(node, Sessions) else ()
            return {**below, **bounds, **{each.name: _of(below, each.reads) for each in calls}}
        case Grouped() | Over():
            below = column_origins(node.input)
            return {**below, **{each.name: _of(below, each.reads) for each in node.calls}}
        case Exploded():
            below = column_origins(node.input)
            values = below.get(node.values, frozenset())
            return {**below, **{each.name: values for each in node.own}}
        case Match():
            below = column_origins(node.input)
            bounds = dict.fromkeys((WINDOW_START, WINDOW_END), below.get(node.time, frozenset()))
            picks = {each.name: _of(below, {each.taken.column or ""}) for each in node.picks}
            return {**below, **bounds, **picks}


def _read(node: exp.Expr) -> set[str]:
    return {found.name for found in node.find_all(exp.Column)}


def _of(below: Origins, names: set[str]) -> frozenset[str]:
    return frozenset().union(*(below.get(name, frozenset()) for name in names))
