"""What one copy reads: its tables, cut into chunks; kept in the book, so that it can be resumed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from cdc.database import Connection
from cdc.snapshot.chunks import plan_chunks
from cdc.snapshot.copying import copied_columns
from cdc.sources import Source
from pipeline.installs.install_book import RUN, InstallEntry, column_of
from projections.run.captured_tables import CapturedTable
from schemas.key_ranges import KeyRange
from schemas.pg_types import SourceColumn


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """One table of a copy, staged under `install`. `rows` is an estimate."""

    table: str
    install: str
    columns: tuple[SourceColumn, ...]
    keys: tuple[str, ...]
    soft_deletes: bool
    ranges: tuple[KeyRange, ...]
    rows: int

    def same_shape(self, columns: Sequence[SourceColumn], captured: CapturedTable) -> bool:
        """Say whether the table is still what was planned."""
        wanted = (tuple(columns), captured.keys, captured.soft_deletes)
        return wanted == (self.columns, self.keys, self.soft_deletes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """One copy of tables of a source.

    `slots` numbers the source's slot, which began at `since`. `releases`: the source's cut is held
    for it. `wants` are the requests that it answers. `began_at` None before it is in the book.
    Rows may be as old as `read_at`, which is before the first snapshot: whatever records were
    refused from then on, the copy may lack.
    """

    run: str
    source: str
    slots: int
    since: int
    releases: bool
    wants: tuple[int, ...]
    tables: tuple[TablePlan, ...]
    read_at: datetime
    began_at: datetime | None = None

    def entry(self) -> InstallEntry:
        """Return its row for the book."""
        detail = asdict(self)
        for name in ("run", "source", "began_at"):
            del detail[name]
        detail["read_at"] = self.read_at.isoformat()
        return InstallEntry(kind=RUN, id=self.run, source=self.source, detail=detail)


def plan_of(entry: InstallEntry) -> CopyPlan:
    """Read a copy back from its row."""
    found = dict(entry.detail)
    read_at = found.pop("read_at", None)
    return CopyPlan(
        run=entry.id,
        source=entry.source,
        began_at=entry.at,
        # Plans of before it was kept were written when their first snapshot was there.
        read_at=datetime.fromisoformat(read_at) if read_at else entry.at or datetime.now(UTC),
        wants=tuple(found.pop("wants")),
        tables=tuple(_table(each) for each in found.pop("tables")),
        **found,
    )


def new_run() -> str:
    """Return a name for a copy."""
    return uuid.uuid4().hex[:12]


def plan_table(
    connection: Connection,
    source: Source,
    table: str,
    captured: CapturedTable,
    *,
    chunk_bytes: int,
) -> TablePlan:
    """Plan the copy of one table, in the transaction that the connection is in.

    Raises `NotFound` for a table that is gone.
    """
    columns = copied_columns(connection, table, source.options_of(table))
    chunks = plan_chunks(connection, table, captured.keys, chunk_bytes=chunk_bytes)
    return TablePlan(
        table=table,
        install=new_run(),
        columns=columns,
        keys=captured.keys,
        soft_deletes=captured.soft_deletes,
        ranges=chunks.ranges,
        rows=chunks.rows,
    )


def _table(found: Mapping[str, Any]) -> TablePlan:
    rest = dict(found)
    return TablePlan(
        columns=tuple(column_of(column) for column in rest.pop("columns")),
        keys=tuple(rest.pop("keys")),
        ranges=tuple(
            KeyRange(low=_bound(each["low"]), high=_bound(each["high"]))
            for each in rest.pop("ranges")
        ),
        **rest,
    )


def _bound(found: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(found)
