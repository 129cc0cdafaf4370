"""A book that several processes append to: every row is kept, and none overtakes another unseen.

Whoever writes looks at the newest rows first, and the commit fails when somebody else came in
between: then it looks again. What a writer was told is therefore true when its rows are there.

Rows are few and flat, so arro3 makes them, which deltalake brings along: a command that appends one
row need not load pyarrow for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from arro3.core import Array, DataType, Schema, Table
from arro3.core.types import ArrayInput, ArrowSchemaExportable, ArrowStreamExportable
from deltalake import DeltaTable, write_deltalake

from kernel.clock import micros
from kernel.errors import LeaseLost, StorageFull
from kernel.positions import Epoch
from kernel.retry import Backoff, retrying
from lake.guarded_commits import committing, guarded

_RIVALS = Backoff(attempts=20, base_s=0.05, cap_s=0.5)

Row = Mapping[str, object]
Rows = Callable[[int], Sequence[Row]]
"""Returns the rows to write, given the number of their commit. Called anew for every attempt: it
may read the ledger, raise for what is no longer to be written, or return nothing to write."""


class Handles(Protocol):
    """Keeps the handles of tables."""

    def forget(self, path: str) -> None:
        """Drop a handle: the table is opened anew."""
        ...

    def ensure(self, path: str, schema: ArrowSchemaExportable) -> DeltaTable:
        """Return the table at its newest version, created empty when it is not there."""
        ...


class Ledger:
    """Appends to one table; each commit has the number after the last one's.

    `schema` is in whichever library's form: numbers, texts, bytes, booleans and times.
    """

    def __init__(
        self, path: str, tables: Handles, schema: ArrowSchemaExportable, app_id: str
    ) -> None:
        self._path = path
        self._tables = tables
        self._schema = Schema.from_arrow(schema)
        self._app_id = app_id

    def put(self, rows: Rows, *, numbers: int = 1) -> int:
        """Append rows in one commit that takes `numbers` numbers; return the first of them.

        Raises `LeaseLost` when others were faster every time, and `StorageFull`.
        """
        # Rivals are done in a moment; a disk that is full stays so.
        return retrying(lambda: self._put(rows, numbers), backoff=_RIVALS, final=(StorageFull,))

    def _put(self, rows: Rows, numbers: int) -> int:
        # A handle that lost the race still shows the state before it.
        self._tables.forget(self._path)
        table = self._tables.ensure(self._path, self._schema)
        first = (table.transaction_version(self._app_id) or 0) + 1
        made = rows(first)
        if not made:
            return first
        last = Epoch(first + numbers - 1)
        # Whoever decides on rows may have refreshed this handle: Delta then sees no conflict.
        if (table.transaction_version(self._app_id) or 0) >= first:
            raise LeaseLost(f"{first} of {self._app_id} was written by somebody else")
        what = f"writing {len(made)} rows to {self._path}"
        with committing(table, self._app_id, last, what):
            write_deltalake(
                table,
                _columns(made, self._schema),
                mode="append",
                # A table that an older version made has the newer columns from now on.
                schema_mode="merge",
                commit_properties=guarded(self._app_id, last),
            )
        return first


def _columns(rows: Sequence[Row], schema: Schema) -> Table:
    """Lay rows out as columns; what a row does not name is null."""
    columns: dict[str, ArrayInput | ArrowStreamExportable] = {
        name: _array([row.get(name) for row in rows], schema.field(name).type)
        for name in schema.names
    }
    return Table.from_pydict(columns, schema=schema)


def _array(values: Sequence[object], kind: DataType) -> Array:
    # Within their class, arro3's stubs take `bool` for a type of Arrow.
    if not bool(DataType.is_timestamp(kind)):
        return Array(values, kind)
    # arro3 makes no times of Python's: they go by way of their microseconds.
    return Array([_micros(value) for value in values], DataType.int64()).cast(kind)


def _micros(value: object) -> int | None:
    if value is None:
        return None
    assert isinstance(value, datetime), f"{value!r} is no time"
    return micros(value)
