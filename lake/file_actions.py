"""What a table's log says of its files, asked once of each version of a handle."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.handle_answers import answer

MOST_FILES = 2_000
"""Of a table with more, nothing is kept: it would take the more memory."""


def actions_of(table: DeltaTable) -> pa.Table:
    """Return one row for each file: path, bytes, rows, bounds and partitions, flattened.

    It is what the log says at the handle's version. Files come in no order.
    """
    return answer(
        table,
        "actions",
        lambda: pa.table(table.get_add_actions(flatten=True)),
        is_kept=lambda actions: actions.num_rows <= MOST_FILES,
    )


def size_of(table: DeltaTable) -> tuple[int, int]:
    """Return how many rows a table has, as its log tells, and how many bytes its files."""
    actions = actions_of(table)
    rows, size = pc.sum(actions["num_records"]).as_py(), pc.sum(actions["size_bytes"]).as_py()
    return int(rows or 0), int(size or 0)
