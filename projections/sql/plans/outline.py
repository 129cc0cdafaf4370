"""A plan tree as people read it: each operator with its region, its need and its state."""

from __future__ import annotations

from projections.sql.operators.presence import right_rows
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import (
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
    Recomputed,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
    inputs_of,
)
from projections.sql.plans.adding import known_of_facts
from projections.sql.plans.changing_groups import changing_of
from projections.sql.words.catalog import Column
from projections.sql.words.durations import in_words_us

_OF_FINAL = (
    "final rows | region: the rows whose end the watermark passes; needs these rows | state: the "
    "rows that wait for that"
)


def outline(tree: Node, depth: int = 0) -> list[str]:
    """Return a line for each node, what it reads indented below it."""
    own = _described(tree)
    if own is None:
        return [line for each in inputs_of(tree) for line in outline(each, depth)]
    lines = ["  " * depth + own]
    below = (tree.left, right_rows(tree)) if isinstance(tree, Join) else inputs_of(tree)
    for each in below:
        lines += outline(each, depth + 1)
    return lines


def _described(node: Node) -> str | None:
    """Describe a node; None for one that only passes columns on."""
    match node:
        case Scan():
            kind = "stream" if node.kind is InputKind.STREAM else node.kind.value
            return f"{kind} {node.name} ({_columns(node.columns)})"
        case Map():
            return f"filter by {len(node.where)} conditions" if node.where else None
        case Windowed():
            size = in_words_us(node.size_us)
            moved = f", {in_words_us(node.offset_us)} later" if node.offset_us else ""
            return f"{node.kind} of {size}{moved}: each row once for each window"
        case Exploded():
            outer = ", or once without any" if node.outer else ""
            what = "entry" if node.entries else "element"
            return f"elements of {node.values.lstrip('_')}: each row once for each {what}{outer}"
        case UnionAll():
            return "union of all rows"
        case Join():
            kind = node.kind.value.lower()
            return (
                f"{kind} join | region: the left rows that a changed right row is paired with; "
                "needs the right rows of their keys | state: the rows of both sides"
            )
        case Final():
            return _OF_FINAL
        case Grouped() | Newest() | Sessions() | Match() | Over():
            return _described_with_region(node)


def _described_with_region(node: Recomputed) -> str:
    """Describe a node that is computed again, region by region."""
    match node:
        case Grouped():
            where = ", by window" if WINDOW_START in node.keys else ""
            return f"groups{where} | region: {_region(node)} | {_state(node)}"
        case Newest():
            keys = ", ".join(node.keys)
            if node.unique:
                return f"one row of each {keys}, by itself"
            return f"newest row of each {keys} | region: {_region(node)} | {_state(node)}"
        case Sessions():
            gap = in_words_us(node.gap_us)
            return f"sessions with a gap of {gap} | region: {_region(node)} | {_state(node)}"
        case Match():
            bound = "" if node.within_us is None else f" within {in_words_us(node.within_us)}"
            return f"matches of a pattern{bound} | region: {_region(node)} | {_state(node)}"
        case Over():
            functions = ", ".join(call.function.upper() for call in node.calls)
            return f"{functions} over rows | region: {_region(node)} | {_state(node)}"


def _state(node: Recomputed) -> str:
    if isinstance(node, Grouped) and known_of_facts(node) is not None:
        return "state: what it gave out, and totals and counts beside it"
    changing = changing_of(node) if isinstance(node, Grouped) else None
    if changing is not None:
        of = ", ".join(call.function.upper() for each in changing.asked for call in each.calls)
        values = f", and the values that {of} are made of, with how often each is there"
        return f"state: what it gave out, and totals and counts beside it{values if of else ''}"
    columns = len(node.input.columns)
    return f"state: its input ({columns} columns) and what it gave out"


def _columns(columns: tuple[Column, ...]) -> str:
    return ", ".join(each.name for each in columns) or "no columns"


def _ranged(node: Over, before: int, after: int) -> str:
    def length(distance: int) -> str:
        return in_words_us(distance) if node.timed else str(distance)

    if not after:
        span = length(before)
        return f"{span} of the partition after a row; needs {span} before that too"
    need = length(before + after)
    return (
        f"{length(after)} of the partition before a row and {length(before)} after it; needs "
        f"{need} on either side"
    )


def _region(node: Recomputed) -> str:
    match node:
        case Grouped() if known_of_facts(node) is not None:
            return "the groups that a row is in; rows are added to what they gave out"
        case Grouped() if (changing := changing_of(node)) is not None:
            needs = "; needs their values" if changing.asked else ""
            return (
                "the groups that a row is in; what comes is added to what they gave out, what goes "
                f"is taken off{needs}"
            )
        case Grouped() if WINDOW_START in node.keys:
            return "the groups and windows that a row is in; needs their rows"
        case Grouped():
            return "the groups that a row is in; needs their rows"
        case Newest():
            return "the keys of the rows; needs the rows of these keys"
        case Over() if node.reach is not None:
            return _ranged(node, *node.reach)
        case Over():
            return "the partition of a row; needs its rows"
        case Match() if node.within_us is not None:
            length = in_words_us(node.within_us)
            return (
                f"the rest of the partition from {length} before a row, or from the match that "
                "reaches there; needs its rows"
            )
        case Match():
            return "the partition of a row, for want of WITHIN; needs its rows"
        case Sessions():
            return "the sessions that a row joins, extends or splits; needs their rows"
