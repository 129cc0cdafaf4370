"""Rows that a query gave, as a projection's table takes them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch


def keyed(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Leave out rows without a complete key: they identify nothing and could not be corrected."""
    for name in key:
        rows = rows.filter(pc.is_valid(rows[name]))
    return rows


def stamped(rows: pa.Table, epoch: Epoch) -> pa.Table:
    """Return rows with the epoch in which they were written."""
    if "_epoch" in rows.schema.names:
        rows = rows.drop_columns(["_epoch"])
    return rows.append_column("_epoch", pa.array([epoch] * rows.num_rows, pa.int64()))
