"""A fold: which versions a change of a table opens, closes, moves or takes back.

Said once, in SQL over views that whoever computes it makes: DuckDB in this process (`driver_fold`)
or Spark's executors (`spark_fold`), each in its own words (`dialects`).

`history_in`: rows of the typed table that came, named as in the history. `history_stored`: what is
stored, every version of a touched key at least. `history_truncates`: the TRUNCATEs that came.
`history_old`: what `touched` selects.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kernel.positions import Epoch
from lake.ranges import Range
from lake.table_columns import UTC_MICROS
from lake.writer import DELETE, OP, UPSERT
from pipeline.history.change_versions import LINKS, touched_by_changes, versions_by_change
from pipeline.history.dialects import FoldDialect, equal, listed
from pipeline.history.row_versions import touched_by_rows, versions_by_record, versions_by_row
from pipeline.history.shape import DELETED, NOT_COLUMNS, VALID_FROM, VALID_TO, HistoryOf

CAME_LATER = pa.schema([("_transaction", pa.string()), ("_lsn", pa.int64())])
"""Columns that typed tables of older lakes lack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryFold:
    """What one history lacks of an epoch.

    `history` and `incoming`, the columns of the typed table, are named as in the history. Rows
    came `within` some epochs. `anew`: what is stored does not count. `truncated`: TRUNCATEs came.
    `behind` is the first place of copied rows among what came: what was committed behind it may
    have come before them, and is to be known again.
    """

    history: HistoryOf
    incoming: pa.Schema
    within: Range
    epoch: Epoch
    anew: bool
    truncated: bool = False
    behind: int | None = None

    @property
    def known_again(self) -> tuple[Range, ...]:
        """Conditions on what was committed behind copied rows, and came before; none for none."""
        if self.behind is None:
            return ()
        earlier = Range(column="_epoch", lower=0, upper=self.within.lower)
        return earlier, Range(column="_seq_hi", lower=self.behind, upper=None)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the table itself, in its order."""
        return tuple(name for name in self.incoming.names if name not in NOT_COLUMNS)

    @property
    def links(self) -> tuple[str, ...]:
        """Columns that lead from key to key."""
        return () if self.history.by_row else LINKS

    @property
    def stored(self) -> pa.Schema:
        """The columns that versions have."""
        own = [self.incoming.field(name) for name in self.columns]
        links = [(name, pa.string()) for name in self.links]
        times = [(VALID_FROM, UTC_MICROS), (VALID_TO, UTC_MICROS), (DELETED, pa.bool_())]
        places = [(name, pa.int64()) for name in ("_seq_hi", "_seq_lo", "_epoch")]
        return pa.schema([*own, *links, *times, *places])

    @property
    def changed(self) -> pa.Schema:
        """The columns of what `changes` selects."""
        return self.stored.append(pa.field(OP, pa.string()))

    def touched(self, dialect: FoldDialect) -> str:
        """Select the stored versions of every key that changes."""
        history = self.history
        if history.by_row:
            return touched_by_rows(dialect, history.key, history.identity)
        return touched_by_changes(dialect, history.key)

    def changes(self, dialect: FoldDialect) -> str:
        """Compare computed with stored versions: what a merge is to upsert, what to delete."""
        history = self.history
        identity = (*history.key, VALID_FROM)
        order = () if history.by_row else ("_seq_hi", "_seq_lo")
        compared = [*self.columns, *self.links, *order, VALID_TO, DELETED]
        new, old = (dialect.row(listed(dialect, compared, side)) for side in "no")
        out = [name for name in self.stored.names if name != "_epoch"]
        chosen = ", ".join(
            f"CASE WHEN n.valid_from IS NULL THEN o.{c} ELSE n.{c} END AS {c}"
            for c in map(dialect.name, out)
        )
        return f"""
            SELECT {chosen}, CAST({int(self.epoch)} AS BIGINT) AS _epoch,
                   CASE WHEN n.valid_from IS NULL THEN '{DELETE}' ELSE '{UPSERT}' END AS {OP}
            FROM ({self._versions(dialect)}) n
            FULL OUTER JOIN history_old o ON {equal(dialect, identity, "n", "o")}
            WHERE n.valid_from IS NULL OR o.valid_from IS NULL OR {new} IS DISTINCT FROM {old}"""

    def _versions(self, dialect: FoldDialect) -> str:
        """Select the versions of the touched keys."""
        history = self.history
        if history.records:
            return versions_by_record(dialect, history.key, self.columns)
        if history.by_row:
            return versions_by_row(dialect, history.key, history.identity, self.columns)
        return versions_by_change(dialect, history.key, self.columns)
