"""What a change touches, and what has to be read to compute that again.

Every operator with state says three things: the region of a change, the rows that the region is
computed from (its need), and its batch query. What it gives on is the query's result over the need,
minus what it gave out for the region before, as it is remembered: computed again, a sum of floating
point numbers might differ in its last bits, and the difference would stay in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from projections.run.database import TEXT
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Grouped,
    Match,
    Newest,
    Over,
    Recomputed,
    Sessions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """The region of a round's changes, as SQL for DuckDB.

    `rows` gives one row `r` for each part of the region. `need` says whether a row `x` of the input
    is read for it, `touched` whether a result `y` belongs to it.
    """

    rows: str
    need: str
    touched: str


def region_of(node: Recomputed, changes: str, given: str) -> Region:
    """Return the region of the rows in the table `changes`; `given` holds the results before."""
    match node:
        case Grouped() | Newest():
            return _by_keys(node.keys, changes)
        case Over() if node.reach is not None:
            return _by_range(node, node.reach, changes)
        case Over():
            return _by_keys(node.partition, changes)
        case Sessions():
            return _by_sessions(node, changes, given)
        case Match() if node.within_us is not None:
            return _by_matches(node, node.within_us, changes, given)
        case Match():
            return _by_keys(node.partition, changes)
        case _:
            assert_never(node)


def keys_of(node: Recomputed) -> tuple[str, ...]:
    """Return the columns of which rows of other values change nothing of a row's results."""
    return node.partition if isinstance(node, Over | Match) else node.keys


def same(names: Sequence[str], one: str, other: str) -> str:
    """Write that two relations have the same values, NULL included, in some columns."""
    parts = (
        f"{one}.{TEXT.name(name)} IS NOT DISTINCT FROM {other}.{TEXT.name(name)}" for name in names
    )
    return " AND ".join(parts) or "true"


def _by_keys(keys: Sequence[str], changes: str) -> Region:
    columns = ", ".join(map(TEXT.name, keys)) or "true AS __all"
    return Region(
        rows=f"SELECT DISTINCT {columns} FROM {changes}",
        need=same(keys, "x", "r"),
        touched=same(keys, "y", "r"),
    )


def _by_range(node: Over, reach: tuple[int, int], changes: str) -> Region:
    """A row changes its own result, those behind it that look so far back, and the mirror of that.

    With a row at t, and rows that look `before` and `after` themselves, these are the results in
    [t - after, t + before]. They are computed from what they look at in turn.
    """
    before, after = reach
    (order,) = node.order

    def place(of: str) -> str:
        name = f"{of}{TEXT.name(order.column)}"
        return TEXT.micros(name) if node.timed else name

    keys = "".join(f"{TEXT.name(name)}, " for name in node.partition)

    def within(of: str, less: int, more: int) -> str:
        own = place(f"{of}.")
        near = f"{own} BETWEEN r.__at - {less} AND r.__at + {more}"
        without = f"({own} IS NULL AND r.__at IS NULL)"
        return f"{same(node.partition, of, 'r')} AND ({near} OR {without})"

    return Region(
        rows=f"SELECT DISTINCT {keys}{place('')} AS __at FROM {changes}",
        need=within("x", before + after, before + after),
        touched=within("y", after, before),
    )


def _by_sessions(node: Sessions, changes: str, given: str) -> Region:
    """Stored sessions less than the gap from a row, and the stretch in which it is one itself."""
    keys = ", ".join(map(TEXT.name, node.keys))
    at = TEXT.micros(f"i.{TEXT.name(node.time)}")
    start, end = TEXT.micros(f"g.{WINDOW_START}"), TEXT.micros(f"g.{WINDOW_END}")
    met = f"{same(node.keys, 'g', 'i')} AND {start} < {at} + {node.gap_us} AND {end} > {at}"
    own = ", ".join(f"i.{TEXT.name(name)}" for name in node.keys)
    stored = (
        f"SELECT {keys}, {start} AS __from, {end} AS __to FROM {given} AS g "
        f"SEMI JOIN {changes} AS i ON {met} "
        f"GROUP BY {keys}, {start}, {end} HAVING sum(g._w) > 0"
    )
    fresh = f"SELECT {own}, {at} AS __from, {at} + {node.gap_us} AS __to FROM {changes} AS i"

    def within(of: str, column: str) -> str:
        moment = TEXT.micros(f"{of}.{TEXT.name(column)}")
        return f"{same(node.keys, of, 'r')} AND {moment} >= r.__from AND {moment} < r.__to"

    return Region(
        rows=f"{stored} UNION {fresh}",
        need=within("x", node.time),
        touched=within("y", WINDOW_START),
    )


def _by_matches(node: Match, within_us: int, changes: str, given: str) -> Region:
    """The rest of a partition, from where the search for matches stood afresh.

    An attempt that began more than the bound before a changed row never looked at it. If a match
    of such an attempt reaches into the rest, the search stood afresh before that match.
    """
    keys = "".join(f"{TEXT.name(name)}, " for name in node.partition)
    own = "".join(f"r.{TEXT.name(name)}, " for name in node.partition)
    at = TEXT.micros(TEXT.name(node.time))
    start, end = TEXT.micros(f"g.{WINDOW_START}"), TEXT.micros(f"g.{WINDOW_END}")
    grouped = f"GROUP BY {keys.removesuffix(', ')}" if keys else ""
    covered = f"{same(node.partition, 'g', 'r')} AND {start} < r.__from AND {end} >= r.__from"
    rows = (
        f"WITH RECURSIVE reached AS (SELECT {keys}min({at}) - {within_us} AS __from "
        f"FROM {changes} {grouped} UNION SELECT {own}{start} FROM reached r "
        f"JOIN {given} g ON {covered}) "
        f"SELECT {keys}min(__from) AS __from FROM reached {grouped}"
    )

    def within(of: str, column: str) -> str:
        moment = TEXT.micros(f"{of}.{TEXT.name(column)}")
        return f"{same(node.partition, of, 'r')} AND {moment} >= r.__from"

    return Region(rows=rows, need=within("x", node.time), touched=within("y", WINDOW_START))
