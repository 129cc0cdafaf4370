"""Rows around copied ones: what an update left alone is what its row was at that place.

rows before a copy -> last known before them all
rows behind it     -> as it was read, over what the rows before it made of their keys
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import pyarrow as pa

from lake.layers import whole
from lake.writer import OP
from pipeline.ddl.unchanged_values import Stored, rows_of_keys
from pipeline.order import high_of
from pipeline.typed.facts import newest_facts

Images = Callable[[pa.Table, Stored], tuple[pa.Table, tuple[str, ...]]]
"""Makes facts of log rows, given what finds last known rows; returns the key columns, too."""
CopiedAt = Callable[[int, Stored], Stored]
"""Returns what finds rows as a copy read them at a place, and those that it lacks elsewhere."""


def facts_around(
    rows: pa.Table, places: Sequence[int], stored: Stored, made: Images, copied: CopiedAt
) -> pa.Table:
    """Return the facts of log rows, with rows between them that were read at some places."""
    parts: list[pa.Table] = []
    high = high_of(rows).to_numpy()
    bounds = [-1, *sorted(set(places)), 2**63 - 1]
    for number, (low, end) in enumerate(pairwise(bounds)):
        if number:
            stored = copied(low, stored)
        own = rows.filter(pa.array((high >= low) & (high < end)))
        if own.num_rows:
            images, keys = made(own, stored)
            parts.append(images)
            if keys:
                stored = partial(_over, stored, newest_facts(images, keys), keys)
    return pa.concat_tables(parts, promote_options="permissive")


def _over(
    stored: Stored, newest: pa.Table, keys: tuple[str, ...], wanted: pa.Table
) -> pa.Table | None:
    """Find last known rows among the newest facts of some rows, else where `stored` finds them."""
    known = stored(wanted)
    if known is None:
        known = newest.drop_columns([OP]).schema.empty_table()
    return rows_of_keys(whole(known, newest, keys), wanted)
