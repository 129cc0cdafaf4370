"""Plans the fold of a source's tables over the DDL among their rows.

Upstream: log rows that became foldable. Downstream: `CurrentTables.fold`, and what is held.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from projections.log.frames import MESSAGES_TABLE, SCHEMA_TABLE
from projections.log.layout import Lake, changes_log
from projections.log.tables import Tables
from projections.state.evolution import Planned, Told, plan
from projections.state.telling import tell
from schemas.registry import SchemaLookup

Columns = Callable[[str], pa.Schema | None]
"""Returns the columns that a captured table has in the lake, None for one that is not there yet.

The answer must be the same when an epoch is repeated: as of the epoch before."""


class SchemaFollower:
    """Reads what DDL told from the log of a source; keeps nothing."""

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._schemas = schemas

    def plans(
        self,
        source: str,
        rows: Mapping[str, pa.Table],
        fresh: Container[str],
        columns: Columns,
        *,
        from_epoch: int,
    ) -> dict[str, tuple[pa.Table, Planned]]:
        """Return, per table that has rows or DDL, the rows to fold and how.

        `rows` are the log rows to fold per table, with those of table `_schema`, all of the
        transactions `fresh`, logged since `from_epoch`. Raises `SchemaViolation` for a message
        that cannot be read.
        """
        told = self._told(source, rows.get(SCHEMA_TABLE), fresh, from_epoch)
        empty = next(iter(rows.values())).schema.empty_table() if rows else None
        found: dict[str, tuple[pa.Table, Planned]] = {}
        for table in sorted({*rows, *told} - {SCHEMA_TABLE, MESSAGES_TABLE}):
            own = rows.get(table, empty)
            stored = columns(table)
            if own is None or (table not in rows and stored is None):
                continue  # A table that is not captured.
            planned = plan(told.get(table, ()), own, stored, self._schemas)
            found[table] = (own, planned)
        return found

    def messages(self, source: str) -> pa.Table | None:
        """Read every DDL message of a source from its log."""
        return self._tables.read(
            self._lake.path(changes_log(source)), where=pc.field("table") == SCHEMA_TABLE
        )

    def _told(
        self, source: str, own: pa.Table | None, fresh: Container[str], from_epoch: int
    ) -> dict[str, list[Told]]:
        if own is None:
            return {}
        messages = self.messages(source)
        assert messages is not None, "the log has the rows that were just read from it"
        # What comes behind the range to fold is not known yet.
        known = pc.less_equal(messages["commit_order"], pc.max(own["commit_order"]))
        return tell(messages.filter(known), fresh, from_epoch=from_epoch)
