"""Whether a key tells the elements of one array apart, which would be one row of it otherwise."""

from __future__ import annotations

from collections.abc import Set

from projections.sql.operators.resolving import used
from projections.sql.operators.tree import (
    Exploded,
    Final,
    Join,
    JoinKind,
    Map,
    Newest,
    Node,
    Over,
    UnionAll,
    Windowed,
)
from projections.sql.statements.declarations import ProjectionDecl


def check_elements(decl: ProjectionDecl, tree: Newest) -> None:
    """Refuse a key in which nothing is of the elements that are the rows, if all of them are."""
    found = _untold(tree.input, frozenset(tree.keys), by_place=False)
    if found is not None:
        raise decl.script.refusal(
            f"key = '{', '.join(decl.key)}' names nothing of the elements of {_called(found)}: of "
            "all of them one row would be left",
            at=decl.key_at,
            fix="Take the place of each element into the key: LATERAL VIEW posexplode(x.lines) t "
            "AS pos, line, with key = 'id, pos'; or group by what they have.",
        )


def notes_of_elements(tree: Newest) -> list[str]:
    """Say of a key that knows elements by what they have, and not by their place, what it does."""
    found = _untold(tree.input, frozenset(tree.keys), by_place=True)
    if found is None:
        return []
    return [
        f"elements of {_called(found)} in one array that have the same key are one row, the one "
        "with the greatest values; posexplode and UNNEST … WITH ORDINALITY give the place of each"
    ]


def _called(node: Exploded) -> str:
    return node.values.lstrip("_")


def _untold(node: Node, names: Set[str], *, by_place: bool) -> Exploded | None:
    """Return elements that become rows of which columns with these names tell nothing.

    `by_place`: nor where an element stands, or the key of an entry.
    """
    match node:
        case Map():
            read = [each.expression for each in node.outputs if each.name in names]
            # A condition may leave one element of each row, as WHERE pos = 0.
            read += [] if by_place else node.where
            return _untold(node.input, set().union(*map(used, read)), by_place=by_place)
        case Exploded():
            place = {node.place} | {e.name for e in node.elements if e.path == ("key",)}
            own = place if by_place else {each.name for each in node.own}
            return _untold(node.input, names, by_place=by_place) if own & names else node
        case Over():
            known = {each.name for each in node.input.columns}
            told = not names <= known
            return None if told else _untold(node.input, names, by_place=by_place)
        case Join():
            met = _with_met(node, names)
            left = _untold(node.left, met, by_place=by_place)
            alone = left is not None or node.kind in (JoinKind.SEMI, JoinKind.ANTI)
            return left if alone else _untold(node.right, met, by_place=by_place)
        case UnionAll():
            parts = [_untold(each, names, by_place=by_place) for each in node.inputs]
            return next(filter(None, parts), None)
        case Windowed() | Final():
            return _untold(node.input, names, by_place=by_place)
        case _:
            return None


def _with_met(node: Join, names: Set[str]) -> Set[str]:
    """Return columns with those that either side is joined by, where there are some of the other.

    What a row is joined with tells something of what it is joined by.
    """
    sides = ({each.name for each in side.columns} for side in (node.left, node.right))
    by = zip(*node.pairs, strict=True)
    told = (own for own, other in zip(by, reversed([*sides]), strict=True) if names & other)
    return frozenset(names).union(*told)
