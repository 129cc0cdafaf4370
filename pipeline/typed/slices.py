"""Rows of one epoch that a typed table takes in several commits: memory holds one slice of them.

Each commit but the last carries a mark of its own; the table's guard goes with the last. A crash
between two of them leaves rows behind the guard: they are taken away before the next try.
"""

from __future__ import annotations

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from kernel import failpoints
from kernel.positions import Epoch
from lake.guarded_commits import write_error
from lake.tables import Tables
from pipeline.ddl.table_rewrites import fit
from pipeline.typed.columns import EPOCH, SEQ_LO


def append_part(tables: Tables, path: str, name: str, rows: pa.Table, epoch: Epoch) -> None:
    """Append one slice of the table `name`, which is not the last, without its guard."""
    tables.ensure(path, rows.schema)
    rows = fit(tables, path, rows)
    # `fit` may have rewritten the table.
    table = tables.ensure(path, rows.schema)
    mark = Transaction(_parts(name), int(epoch))
    try:
        write_deltalake(
            table,
            rows,
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[mark]),
        )
    except (DeltaError, OSError) as error:
        raise write_error(f"writing to {path}", error) from error
    failpoints.hit(failpoints.TYPED_AFTER_PART)


def whole(tables: Tables, path: str, name: str) -> DeltaTable:
    """Open a table; take away the slices of an append that a crash cut short."""
    table = tables.open(path)
    assert table is not None, "it was made before"
    done = table.transaction_version(name) or 0
    if (table.transaction_version(_parts(name)) or 0) <= done:
        return table
    try:
        # Rows of installs stand before all rows of a transaction: they are whole.
        table.delete(f"{EPOCH} > {done} AND {SEQ_LO} >= 0")
    except (DeltaError, OSError) as error:
        raise write_error(f"writing to {path}", error) from error
    return table


def _parts(name: str) -> str:
    return f"{name}/parts"
