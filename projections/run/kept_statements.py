"""Statements that come again in every round, and the rows of Arrow that they read.

To plan a statement takes DuckDB some milliseconds, to run it over the rows of a round less than
one. So a text that comes again is prepared, and nothing in a round touches the catalog: a change of
any name has all plans made anew. Rows of Arrow are read where they are, through a view that stays
while its rows are exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa

PLANNED_ANEW = 256
"""A plan follows the sizes that it was made for: it is made anew after 2, 4, 8 … so many uses."""

MOST_KEPT = 1_000
"""So many texts are known; texts with values in them would not come again."""


@dataclass(slots=True)
class _Uses:
    name: str
    count: int = 0


class KeptStatements:
    """Runs statements of one connection, and plans the same text seldom. For one thread.

    The connection's optimizer must not look at statistics of tables: a plan outlives what they say.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._used: dict[str, _Uses] = {}
        self._names = count()

    def execute(self, text: str) -> int:
        """Run a statement that changes rows; return how many it changed."""
        found = self._connection.execute(self._as_planned(text)).fetchone()
        return 0 if found is None else int(found[0])

    def rows(self, text: str) -> pa.Table:
        """Return what a query gives."""
        found: pa.Table = self._connection.sql(self._as_planned(text)).to_arrow_table()
        return found

    def forget(self) -> None:
        """Forget all plans: a name has got another meaning."""
        for each in self._used.values():
            if each.count > 1:
                self._connection.execute(f"DEALLOCATE {each.name}")
        self._used.clear()

    def _as_planned(self, text: str) -> str:
        """Return what to run for a text: itself when it comes first, or its plan."""
        if len(self._used) >= MOST_KEPT:
            self.forget()
        uses = self._used.get(text)
        if uses is None:
            self._used[text] = _Uses(f"kept_{next(self._names)}", 1)
            return text
        uses.count += 1
        if uses.count & (uses.count - 1) == 0 or uses.count % PLANNED_ANEW == 0:
            try:
                self._connection.execute(f"PREPARE {uses.name} AS {text}")
            except duckdb.Error:
                # It would be run next time though there is none, and tell that as its error.
                del self._used[text]
                raise
        return f"EXECUTE {uses.name}"


class _Exchanged:
    """Rows behind a view. Their columns stay the same."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self.rows.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> Any:
        return self.rows.schema.__arrow_c_schema__()


class ArrowViews:
    """Views of rows of Arrow in one connection. For one thread."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, kept: KeptStatements) -> None:
        self._connection = connection
        self._kept = kept
        self._behind: dict[str, _Exchanged] = {}

    def put(self, view: str, rows: pa.Table) -> None:
        """Have a view give these rows from now on."""
        behind = self._behind.get(view)
        if behind is not None and behind.rows.schema.equals(rows.schema):
            behind.rows = rows
            return
        if behind is not None:
            # A plan would go on to read what was behind the view when it was made.
            self._kept.forget()
            self._connection.unregister(view)
        self._behind[view] = _Exchanged(rows)
        self._connection.register(view, self._behind[view])

    def rows_of(self, view: str) -> pa.Table:
        """Return the rows that a view gives."""
        return self._behind[view].rows

    def empty(self, view: str) -> None:
        """Let go of the rows of a view."""
        behind = self._behind[view]
        behind.rows = behind.rows.schema.empty_table()

    def empty_all(self) -> None:
        """Let go of all rows."""
        for view in self._behind:
            self.empty(view)
