"""Literal bounds of keys in a MERGE's condition, so that files are skipped by their statistics.

`t.id = s.id` says nothing about files before the source is read: all are scanned. Bounds that are
written out let deltalake skip files without opening them. Keys are seldom alike everywhere: many
are recent, a few are old. Up to eight ranges, cut at the widest gaps, follow that. A row outside
every range has no key of the source, so that the bounds change no result.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from schemas.identifiers import datafusion_name, text_literal

RANGES = 8


def within(rows: pa.Table, keys: list[str], alias: str) -> str | None:
    """Return a condition on the first key column that has bounds, for the table called `alias`.

    None where no key column has a type whose literals are plain.
    """
    for key in keys:
        column = rows[key].drop_null()
        quoted = datafusion_name(key, of=alias)
        if len(column) == 0:
            continue
        # Nulls are keys, too, and in no range.
        or_null = f" OR {quoted} IS NULL" if rows[key].null_count else ""
        if pa.types.is_integer(column.type):
            ranges = (f"({quoted} >= {a} AND {quoted} <= {b})" for a, b in _ranges(column))
            return " OR ".join(ranges) + or_null
        if pa.types.is_string(column.type):
            seen = pc.min_max(column)
            low, high = text_literal(seen["min"].as_py()), text_literal(seen["max"].as_py())
            return f"({quoted} >= {low} AND {quoted} <= {high})" + or_null
    return None


def _ranges(column: pa.ChunkedArray) -> list[tuple[int, int]]:
    ordered = pc.sort_indices(column)
    values = column.take(ordered).cast(pa.int64()).to_numpy()
    gaps = values[1:] - values[:-1]
    cuts = sorted(int(place) + 1 for place in gaps.argsort()[::-1][: RANGES - 1] if gaps[place] > 1)
    edges = [0, *cuts, len(values)]
    return [(int(values[a]), int(values[b - 1])) for a, b in pairwise(edges)]
