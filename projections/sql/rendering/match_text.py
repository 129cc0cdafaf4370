"""The query of a `Match`: the rows of each partition go through the matcher, as one list.

The matcher is a function that both engines call (`projections.run.matcher`). Moments are whole
microseconds in it, since engines hand times to functions in zones of their own.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from projections.sql.operators.tree import WINDOW_END, WINDOW_START, Match
from projections.sql.words.catalog import Column

if TYPE_CHECKING:
    from projections.sql.rendering.dialect import Dialect

_MOMENT = Column(name="", type="TIMESTAMP")
_PLACE = Column(name="", type="BIGINT")
_ORDER = {"_time": _MOMENT, "_seq_hi": _PLACE, "_seq_lo": _PLACE}


def matcher_name(node: Match) -> str:
    """Return the name under which an engine finds the matcher of a node."""
    search = node.pattern, node.conditions, node.within_us, node.skip, node.skip_to
    said = repr((*search, node.each_row, node.picks, node.time))
    known = repr([(each.name, each.type) for each in node.input.columns])
    return f"penstock_match_{hashlib.sha256((said + known).encode()).hexdigest()[:16]}"


def physical(kind: str) -> str:
    """Return the type of a column as the matcher has it."""
    return "BIGINT" if kind == "TIMESTAMP" else kind


def taken_columns(node: Match) -> tuple[Column, ...]:
    """Return the columns of the rows that the matcher takes, under the names of the input."""
    order = (Column(name=name, type=each.type) for name, each in _ORDER.items())
    return (*order, *(each for each in node.input.columns if each.name not in node.partition))


def given_columns(node: Match) -> tuple[Column, ...]:
    """Return the columns of the matches that the matcher gives."""
    order = (Column(name=name, type=each.type) for name, each in _ORDER.items())
    bounds = (Column(name=name, type="TIMESTAMP") for name in (WINDOW_START, WINDOW_END))
    return (*order, *bounds, *(Column(name=p.name, type=p.type) for p in node.picks))


def matches(node: Match, rows: str, dialect: Dialect) -> str:
    """Write the query that gives the matches in some rows."""
    keys = [dialect.name(name) for name in node.partition]
    fields = []
    for i, taken in enumerate(taken_columns(node)):
        value = dialect.name(taken.name)
        fields.append((f"f{i}", dialect.micros(value) if taken.type == "TIMESTAMP" else value))
    results = {
        column.name: dialect.moment(f"__m.g{i}") if column.type == "TIMESTAMP" else f"__m.g{i}"
        for i, column in enumerate(given_columns(node))
    }
    outputs = [*keys, *(f"{value} AS {dialect.name(n)}" for n, value in results.items())]
    beside = "".join(f"{key}, " for key in keys)
    grouped = f"GROUP BY {', '.join(keys)}" if keys else ""
    lists = f"SELECT {beside}{dialect.gathered(fields)} AS __taken FROM ({rows}) AS x {grouped}"
    found = f"SELECT {beside}{matcher_name(node)}(__taken) AS __found FROM ({lists}) AS l"
    each = f"SELECT {beside}{dialect.each('__found')} AS __m FROM ({found}) AS f"
    return f"SELECT {', '.join(outputs)} FROM ({each}) AS e"
