"""What a history is kept of, and how its columns are called."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa
from deltalake import DeltaTable

from pipeline.history.change_versions import LINKS
from schemas.lake_columns import STAMPS

VALID_FROM, VALID_TO, DELETED = "valid_from", "valid_to", "_deleted"
_MEETS_OURS = re.compile(r"(data_)*valid_(from|to)", re.IGNORECASE)
HIDDEN = (*STAMPS, "_operation", "_transaction", "_lsn")
NOT_COLUMNS = frozenset((*HIDDEN, "committed_at"))


def history_column(name: str) -> str:
    """Return what a column of a typed table is called in its history."""
    return f"data_{name}" if _MEETS_OURS.fullmatch(name) else name


def outgrown(stored: pa.Schema, typed: pa.Schema) -> bool:
    """Say whether a history has columns that its typed table has under another name or type now.

    Such a history is computed anew from the typed table, which was brought to the new columns.
    """
    now = {history_column(f.name): f.type for f in typed}
    ours = {VALID_FROM, VALID_TO, DELETED, *HIDDEN, *LINKS}
    return any(f.name not in ours and now.get(f.name) != f.type for f in stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOf:
    """How one history table is kept.

    `identity` is the source's primary key. `key` differs from it, or `event_time` is set, when the
    history was declared; then rows are versions of `key` (see `tables`). `records`: they are
    records of a topic, which nothing replaces or retracts. `truncates` names the table of the
    source's TRUNCATEs and `table` the one of its tables that this is about. `declaration` names
    the statement that the rows of `typed` are made by: those of another one are folded anew.
    """

    name: str
    typed: str
    key: tuple[str, ...]
    identity: tuple[str, ...]
    by_row: bool
    truncates: str | None = None
    records: bool = False
    table: str = ""
    declaration: str = ""

    @property
    def app_id(self) -> str:
        """The app id of the guard, which is the cursor of the table as it is declared now."""
        return f"{self.name}/{self.declaration}" if self.declaration else self.name

    def cursor(self, stored: DeltaTable | None) -> int | None:
        """Return the epoch that a stored table has; None for none, or for another declaration's."""
        done = None if stored is None else stored.transaction_version(self.app_id)
        return 0 if done is None and stored is not None and not self.declaration else done

    def named_as_kept(self) -> HistoryOf:
        """Return the same with the columns' names in the history itself."""
        return replace(
            self,
            key=tuple(map(history_column, self.key)),
            identity=tuple(map(history_column, self.identity)),
        )
