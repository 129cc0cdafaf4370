"""What an epoch writes to the log, and asks of it.

Rows of captured sources that this process has just appended are at hand for the fold: to read them
again would be to open a file for every table that has a change. What an attempt before this one
appended is read from the log: its rows count, not those of the batch that came again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.adoption import append_files
from lake.attempt_files import remove_left
from lake.layout import Lake, changes_log, events_log, topics_log
from lake.table_columns import AVRO_SCHEMAS, LOGGED
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.arrive.arrival import Arrival
from pipeline.arrive.seen_events import CONTENT, SeenEvents, content_of
from pipeline.arrive.widened_topics import IDENTITY
from pipeline.log.log_task import QUARANTINED, partition_of
from pipeline.log.recent_rows import RecentRows
from pipeline.log.staged_rows import Staged, remove_attempts, tables_of
from schemas.registry import SchemaLookup


class EpochLog:
    """The log of one lake, for ingest. `begun` is the epoch that a crash left bound, if any."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        begun: Epoch | None,
        recent: RecentRows | None = None,
    ) -> None:
        """`recent` takes rows of events that were appended, for others in this process."""
        self._lake = lake
        self._tables = tables
        self._schemas = schemas
        self._begun = begun
        self._recent = recent
        self._writer = ArrowWriter(tables)
        self._kept_schemas = self._read_kept_schemas()
        self._added: dict[str, pa.Table] = {}

    def keep_schemas(self, ids: set[int], epoch: Epoch) -> None:
        """Keep the schemas that an epoch's rows were written with."""
        new = sorted(ids - self._kept_schemas)
        rows = []
        for each in new:
            # A schema that the registry has lost holds the tables that need it, and no others.
            with contextlib.suppress(NotFound):
                schema = self._schemas.schema(each)
                rows.append({"epoch": epoch, "schema_id": each, "schema": schema})
        if not rows:
            return
        table = pa.Table.from_pylist(rows, schema=AVRO_SCHEMAS)
        self._writer.append(self._lake.avro_schemas, table, Guard("log/_schemas", epoch))
        self._kept_schemas |= set(table["schema_id"].to_pylist())

    def _read_kept_schemas(self) -> set[int]:
        rows = self._tables.read(self._lake.avro_schemas, columns=["schema_id"])
        return set() if rows is None else set(rows["schema_id"].to_pylist())

    def append(self, arrival: Arrival, epoch: Epoch) -> dict[str, TableAt]:
        """Append an epoch's rows to the log's tables; return those."""
        self._add(QUARANTINED, arrival.quarantined, arrival, epoch)
        failpoints.hit(failpoints.EPOCH_AFTER_QUARANTINE)
        at: dict[str, TableAt] = {}
        self._added = {}
        logs = {events_log(store): rows for store, rows in arrival.events.items()}
        logs |= {changes_log(source): rows for source, rows in arrival.changes.items()}
        logs |= {topics_log(source): rows for source, rows in arrival.records.items()}
        for name in dict.fromkeys([*logs, *arrival.staged]):
            if name != QUARANTINED:
                version = self._add(name, logs.get(name), arrival, epoch)
                self._tables.appended(self._lake.path(name))
                at[name] = TableAt(version=version, as_of_epoch=epoch)
        failpoints.hit(failpoints.EPOCH_AFTER_LOG)
        self._hand_on(arrival, epoch)
        return at

    def _hand_on(self, arrival: Arrival, epoch: Epoch) -> None:
        """Let others in this process have the events that it has just appended, all of an epoch."""
        for name in map(events_log, arrival.events):
            if self._recent is not None and name in self._added and name not in arrival.staged:
                self._recent.add(name, epoch, self._added[name])

    def take_added(self, source: str) -> pa.Table | None:
        """Return a captured source's rows of the last epoch, where this process appended all.

        None where an earlier attempt did, or executors; and at the second call: nobody keeps them.
        """
        return self._added.pop(changes_log(source), None)

    def _add(self, name: str, rows: pa.Table | None, arrival: Arrival, epoch: Epoch) -> int:
        """Add an epoch's rows to a table of the log in one commit; return its version."""
        path, guard = self._lake.path(name), Guard(name, epoch)
        column, files = partition_of(name), arrival.staged.get(name, [])
        by = [column] if column is not None else []
        if files:
            shape = LOGGED[name.rpartition("/")[0]]
            table = self._tables.ensure(path, shape, partition_by=by)
            return append_files(table, files, rows, guard, shape, by)
        if rows is None or not rows.num_rows:
            return 0
        version, new = self._writer.append_told(path, rows, guard, partition_by=by)
        if new:
            self._added[name] = rows
        return version

    def has(self, epoch: Epoch) -> bool:
        """Say whether any table of the log or the quarantine has rows of an epoch."""
        for name in tables_of(self._lake):
            table = self._tables.open(self._lake.path(name))
            if table is not None and (table.transaction_version(name) or 0) >= epoch:
                return True
        return False

    def tidy(self, batch: pa.Table | Staged, epoch: Epoch) -> None:
        """Remove what attempts at an epoch left behind that the log has now."""
        names = {file.name for file in batch.files} if isinstance(batch, Staged) else set()
        if isinstance(batch, Staged):
            batch.forget_deciding()
        if epoch == self._begun:
            names |= set(tables_of(self._lake))
            remove_attempts(self._lake)
        for name in names:
            remove_left(self._lake, self._tables, name, epoch)

    def compare_repeated(self, events: Mapping[str, pa.Table], epoch: Epoch) -> None:
        """Events seen before must have the content that the log has for their positions."""
        for store, repeated in events.items():
            positions = pa.array(repeated["position"].to_pylist(), pa.int64())
            known = self._tables.read(
                self._lake.path(events_log(store)),
                where=pc.is_in(pc.field("position"), positions) & (pc.field("epoch") < epoch),
                columns=list(CONTENT),
            )
            seen = SeenEvents(store)
            if known is not None:
                seen.take(known)
            seen.take(content_of(repeated))

    def moved(self, epoch: Epoch, source: str, transactions: pa.Array) -> pa.Table | None:
        """Return what names the changes of some transactions that the log had before an epoch."""
        before = pc.field("epoch") < epoch
        where = before & pc.is_in(pc.field("transaction_id"), transactions)
        path = self._lake.path(changes_log(source))
        return self._tables.read(path, where=where, columns=IDENTITY)
