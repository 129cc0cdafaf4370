"""Rows of small tables, read by deltalake alone.

It loads in a tenth of a second. Arrow's datasets, which `Tables` reads by, load pandas too: that
takes longer than most commands take to answer. `Ledger` appends through these handles, too.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from arro3.core import RecordBatchReader
from arro3.core.types import ArrowSchemaExportable
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from lake.guarded_commits import read_error
from lake.table_settings import make_table


@dataclass(slots=True)
class SmallTables:
    """Opens tables once and keeps their handles, for who asks again and again."""

    _handles: dict[str, DeltaTable] = field(default_factory=dict)

    def select(self, path: str, sql: str) -> list[dict[str, object]]:
        """Answer a query of one table, called `rows` in it; no rows where there is no table.

        Raises `Unavailable` when storage fails, `Incompatible` for a table that cannot be read.
        """
        table = self._opened(path)
        if table is None:
            return []
        found = _read_all(QueryBuilder().register("rows", table).execute(sql))
        columns = {name: found[name].to_pylist() for name in found.schema.names}
        return [{name: columns[name][i] for name in columns} for i in range(found.num_rows)]

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return all rows of a table; none where there is no table."""
        return self.select(path, "SELECT * FROM rows")

    def version(self, path: str) -> int:
        """Return a table's version; -1 where there is no table."""
        table = self._opened(path)
        return -1 if table is None else table.version()

    def _opened(self, path: str) -> DeltaTable | None:
        table = self._handles.get(path)
        try:
            if table is None:
                table = self._handles[path] = DeltaTable(path)
            else:
                table.update_incremental()
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise read_error(path, error) from error
        return table

    def forget(self, path: str) -> None:
        """Drop a handle: the table is opened anew."""
        self._handles.pop(path, None)

    def ensure(self, path: str, schema: ArrowSchemaExportable) -> DeltaTable:
        """Return the table at its newest version, created empty when it is not there."""
        try:
            table = DeltaTable(path)
        except TableNotFoundError:
            table = make_table(path, schema)
        self._handles[path] = table
        return table


def _read_all(found: RecordBatchReader) -> Any:
    """Return all rows as a table, of Arrow's where it is loaded, which lets others work meanwhile.

    deltalake's own reader keeps the interpreter to itself while threads of deltalake compute. Where
    these wait for the interpreter, to read rows or to free them, all would stand still for ever.
    """
    arrow = sys.modules.get("pyarrow")
    return (
        found.read_all() if arrow is None else arrow.RecordBatchReader.from_stream(found).read_all()
    )
