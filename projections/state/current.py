"""`current/<source>.<table>`: one row per key, equal to the source's own SELECT at the cut.

Ingest folds only complete source transactions, in commit order, so the last change of a key wins
without looking at what is stored. Columns are the source's, unchanged; columns that the source
adds later are added, dropped ones stay and are null from then on.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from projections.log.images import COMMITTED_AT, EVENT_TIME, HI, LO, newest_per_key, row_images
from projections.log.layout import Lake
from projections.log.tables import TableAt, Tables, schema_of
from projections.log.unchanged import any_of, rows_of_keys
from projections.log.writer import ArrowWriter, Guard, reached
from schemas.records import Operation
from schemas.registry import SchemaLookup


def current_name(source: str, table: str) -> str:
    """Name the `current` table of a captured table, as `current/shop.public.orders`."""
    return f"current/{source}.{table}"


class CurrentTables:
    """Folds changes into `current` tables. One commit per table and epoch, guarded by the epoch."""

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._schemas = schemas

    def fold(self, source: str, table: str, changes: pa.Table, epoch: Epoch) -> TableAt:
        """Fold log rows of one table, all of complete transactions newer than the last fold.

        `changes` has the columns of a changes log, in any order, each row once. Raises
        `SchemaViolation` when bytes do not fit the schema that the log names for them.
        """
        name = current_name(source, table)
        path = self._lake.path(name)
        guard = Guard(name, epoch)
        handle = self._tables.open(path)
        if handle is not None and reached(handle, guard):
            return TableAt(version=handle.version(), as_of_epoch=epoch)
        truncated, rest = _after_truncate(changes)
        if rest.num_rows == 0:
            version = self._cleared(path, guard) if truncated else None
            return TableAt(version=version or 0, as_of_epoch=epoch)
        images, keys = row_images(
            rest, self._schemas, stored=lambda wanted: self._stored(path, truncated, wanted)
        )
        rows = newest_per_key(images, keys).drop_columns([HI, LO, EVENT_TIME, COMMITTED_AT])
        if truncated:
            self._tables.ensure(path, rows.drop_columns(["__op"]).schema)
            kept = rows.filter(pc.equal(rows["__op"], "upsert")).drop_columns(["__op"])
            return TableAt(version=self._writer.overwrite(path, kept, guard), as_of_epoch=epoch)
        version = self._writer.merge(path, rows, guard, keys=keys)
        return TableAt(version=version, as_of_epoch=epoch)

    def _stored(self, path: str, truncated: bool, wanted: pa.Table) -> pa.Table | None:
        if truncated:
            return None
        return rows_of_keys(self._tables.read(path, where=any_of(wanted)), wanted)

    def _cleared(self, path: str, guard: Guard) -> int | None:
        handle = self._tables.open(path)
        if handle is None:
            return None
        return self._writer.overwrite(path, schema_of(handle).empty_table(), guard)


def _after_truncate(changes: pa.Table) -> tuple[bool, pa.Table]:
    """Return whether a TRUNCATE is among the rows, and the row changes that came after it."""
    is_truncate = pc.equal(changes["operation"], Operation.TRUNCATE.value)
    truncates = changes.filter(is_truncate)
    rows = changes.filter(pc.invert(is_truncate))
    if truncates.num_rows == 0:
        return False, rows
    last = max(
        zip(
            truncates["commit_order"].to_pylist(),
            truncates["total_order"].to_pylist(),
            strict=True,
        )
    )
    order = zip(rows["commit_order"].to_pylist(), rows["total_order"].to_pylist(), strict=True)
    return True, rows.filter(pa.array([place > last for place in order], pa.bool_()))
