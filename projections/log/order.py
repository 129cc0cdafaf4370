"""Where a change stands in its source's stream, as two numbers that sort: high and low.

High is `commit_order`: the end of the commit before the change's transaction. Low is the place
within the transaction: the change's LSN, and `total_order` among changes that share one.
`total_order` alone will not do: Debezium, killed amid a transaction, may go on and number the rest
from 1 again. Ours does not (`stack/connect/WholeTransactions.java`), but no order hangs on that.

Within one transaction PostgreSQL decodes changes in the order of their LSNs. Those that share an
LSN (rows of one COPY record, both halves of a changed key, the tables of one TRUNCATE) never
concern the same row, so their order among each other only has to be the same each time.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_BITS = 20
"""Rows of one LSN are a page's, some hundreds; a key that changes wants its two side by side."""
_SPAN = 2**42
"""Bytes of WAL that may lie between a change and the commit before its transaction: 4 TiB."""

_STREAMED = pc.bit_wise_or(
    pc.shift_left(pc.field("lsn") - pc.field("commit_order") + _SPAN, _BITS),
    pc.bit_wise_and(pc.field("total_order"), 2**_BITS - 1),
)
LOW = pc.if_else(pc.field("snapshot"), 0, _STREAMED)
"""The low number of log rows, as an expression over the columns of `NEEDED`. 0 in a snapshot."""
NEEDED = ("commit_order", "lsn", "total_order", "snapshot")


def low_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the low number of log rows, in their order."""
    lsn = pc.subtract(rows["lsn"], rows["commit_order"])
    place = pc.shift_left(pc.add(lsn, _SPAN), _BITS)
    place = pc.bit_wise_or(place, pc.bit_wise_and(rows["total_order"], 2**_BITS - 1))
    return pc.if_else(rows["snapshot"], 0, place)


def places_of(rows: pa.Table) -> list[tuple[int, int]]:
    """Return (high, low) of log rows, in their order."""
    return list(zip(rows["commit_order"].to_pylist(), low_of(rows).to_pylist(), strict=True))
