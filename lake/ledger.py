"""A book that several processes append to: every row is kept, and none overtakes another unseen.

Whoever writes looks at the newest rows first, and the commit fails when somebody else came in
between: then it looks again. What a writer was told is therefore true when its rows are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from kernel.positions import Epoch
from kernel.retry import Backoff, retrying
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard

_RIVALS = Backoff(attempts=20, base_s=0.05, cap_s=0.5)

Row = Mapping[str, object]
Rows = Callable[[int], Sequence[Row]]
"""Returns the rows to write, given the number of their commit. Called anew for every attempt: it
may read the ledger, raise for what is no longer to be written, or return nothing to write."""


class Ledger:
    """Appends to one table; each commit has the number after the last one's."""

    def __init__(self, path: str, tables: Tables, schema: pa.Schema, app_id: str) -> None:
        self._path = path
        self._tables = tables
        self._schema = schema
        self._app_id = app_id
        self._writer = ArrowWriter(tables)

    def put(self, rows: Rows, *, numbers: int = 1) -> int:
        """Append rows in one commit that takes `numbers` numbers; return the first of them.

        Raises `LeaseLost` when others were faster every time.
        """
        return retrying(lambda: self._put(rows, numbers), backoff=_RIVALS)

    def _put(self, rows: Rows, numbers: int) -> int:
        # A handle that lost the race still shows the state before it.
        self._tables.forget(self._path)
        table = self._tables.ensure(self._path, self._schema)
        first = (table.transaction_version(self._app_id) or 0) + 1
        made = pa.Table.from_pylist([dict(row) for row in rows(first)], schema=self._schema)
        if made.num_rows == 0:
            return first
        self._writer.claim(self._path, made, Guard(self._app_id, Epoch(first + numbers - 1)))
        return first
