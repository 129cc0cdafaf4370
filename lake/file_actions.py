"""What a table's log says of its files, asked once of each version of a handle.

deltalake puts it together anew for every question, a millisecond for some dozen files; in a round
of projections each asks it several times of the table that all of them read.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

MOST_FILES = 2_000
"""Of a table with more, nothing is kept: it would take the more memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    handle: weakref.ref[DeltaTable]
    version: int
    actions: pa.Table


_known: dict[int, _Known] = {}


def actions_of(table: DeltaTable) -> pa.Table:
    """Return one row for each file: path, bytes, rows, bounds and partitions, flattened.

    It is what the log says at the handle's version. Files come in no order.
    """
    place, version = id(table), int(table.version())
    known = _known.get(place)
    if known is not None and known.handle() is table and known.version == version:
        return known.actions
    actions = pa.table(table.get_add_actions(flatten=True))
    _known.pop(place, None)
    if actions.num_rows <= MOST_FILES:
        gone = weakref.ref(table, lambda _: _known.pop(place, None))
        _known[place] = _Known(handle=gone, version=version, actions=actions)
    return actions
