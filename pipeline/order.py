"""Where a change stands in its source's stream, as two numbers that sort: high and low.

High is `commit_order`: the end of the commit before the change's transaction. Low is the place
within the transaction: the change's LSN, and `total_order` among changes that share one.
`total_order` alone will not do: Debezium, killed amid a transaction, may go on and number the rest
from 1 again. Ours does not (`stack/connect/WholeTransactions.java`), but no order hangs on that.

Within one transaction PostgreSQL decodes changes in the order of their LSNs. Those that share one
(rows of one COPY record, the tables of one TRUNCATE) never concern the same row; the two halves of
a changed key, a delete and the insert after it, always have numbers that follow each other.

A logical message has the LSN at which its record ends, which is where the next one begins: a row
that is written right behind DDL may share it, and comes after it. Their numbers do not tell that:
where one of the two was written within a savepoint, PostgreSQL merges both by LSN alone and may
send the row first.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from schemas.records import LOGICAL_MESSAGE, Operation

_BITS = 20
"""Rows of one LSN are a page's, some hundreds."""
_SPAN = 2**42
"""Bytes of WAL that may lie between a change and the commit before its transaction: 4 TiB."""
_MASK = 2**_BITS - 1

BEFORE_ALL = -1
"""Low number of a row that a copy read: before all rows of the next transaction."""
NEEDED = ("commit_order", "lsn", "total_order", "snapshot", "operation")


def _low(commit_order: Any, lsn: Any, total: Any, snapshot: Any, operation: Any) -> Any:
    """Work on columns and on expressions alike.

    Where the counted bits run over, a delete has the last number and the insert after it the next:
    records of the WAL are more than one byte apart, so that no other change has that one.
    """
    place = pc.shift_left(pc.add(pc.subtract(lsn, commit_order), _SPAN), _BITS)
    counted = pc.add(pc.bit_wise_and(pc.subtract(total, 1), _MASK), 1)
    deleted = pc.equal(operation, Operation.DELETE.value)
    counted = pc.if_else(deleted, pc.bit_wise_and(total, _MASK), counted)
    counted = pc.if_else(pc.equal(operation, LOGICAL_MESSAGE), 0, counted)
    return pc.if_else(snapshot, 0, pc.add(place, counted))


LOW: pc.Expression = _low(*map(pc.field, NEEDED))
"""The low number of log rows, as an expression over the columns of `NEEDED`. 0 in a snapshot."""


def low_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the low number of log rows, in their order; they have the columns of `NEEDED`."""
    return _low(*(rows[name] for name in NEEDED))


def high_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the high number of log rows. 0 in a snapshot: it comes before all transactions.

    A transaction that was open while the slot was made may carry an LSN below the snapshot's.
    """
    return pc.if_else(rows["snapshot"], 0, rows["commit_order"])


def lsn_at(place: tuple[int, int]) -> int:
    """Return the LSN of a streamed row at a place (`commit_order`, low), or the byte behind it."""
    commit_order, low = place
    return (low >> _BITS) - _SPAN + commit_order


def places_of(rows: pa.Table) -> list[tuple[int, int]]:
    """Return (`commit_order`, low) of log rows, in their order."""
    return list(zip(rows["commit_order"].to_pylist(), low_of(rows).to_pylist(), strict=True))
