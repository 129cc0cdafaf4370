"""Changes laid out as the rows of one source transaction, which is all that a log has."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tests.support.lake.folding import Done, changes


def one_transaction(
    done: Sequence[Done], *, epoch: int = 1, rows_per_epoch: int | None = None
) -> pa.Table:
    """Return log rows of transaction 1. `epoch` is the first; each takes so many rows."""
    rows = changes(done, first=1)
    n = rows.num_rows
    per_epoch = rows_per_epoch or max(n, 1)
    own = {
        "commit_order": pa.array([500] * n),
        "transaction_id": pa.array(["1"] * n),
        "lsn": pa.array([1_000 + 10 * i for i in range(n)]),
        "total_order": pa.array(range(1, n + 1), pa.int64()),
        "epoch": pa.array([epoch + i // per_epoch for i in range(n)]),
    }
    columns = [own.get(name, rows[name]) for name in rows.schema.names]
    return pa.table(columns, schema=rows.schema)
