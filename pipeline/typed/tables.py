"""`typed/…`: the visible part of the log with its fields as columns.

One table per event type (`typed/events.<category>.<type>`) and per captured table
(`typed/<source>.<table>`), append only, derived from the log and rebuildable from it.
A row enters at the epoch in which it becomes visible (`_epoch`): an event when every position
before it has been seen, a change when its whole source transaction has. Projections read these
tables only, so what they see at epoch E is a function of the same prefix of input for all.

Hidden columns: `_epoch`, `_late` (came later than its lateness allows), `_time` (event time),
`_seq_hi`, `_seq_lo` (order at equal event time), `_ingested_at`; of changes also `_operation`,
`_transaction`, `_lsn`. TRUNCATEs have no row of their table: see `truncates_name`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import LeaseLost, PenstockError
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.datasets import dataset_of, dataset_since
from lake.executor_tasks import Executors
from lake.guarded_commits import mark_of
from lake.layout import Lake, events_log
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard, reached
from pipeline.ddl.table_rewrites import fit
from pipeline.log.large_folds import LARGE_BYTES, LARGE_ROWS, LogRows
from pipeline.log.recent_rows import RecentRows
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import EPOCH, Visible, Wanted, every
from pipeline.typed.event_rows import EventRows, by_type, of_types, parts_of, shapes_of
from pipeline.typed.last_known import LastKnown
from pipeline.typed.tasks import TypedFiles
from pipeline.typed.topic_rows import Ends, TopicRows
from pipeline.typed.topics import TypedTopics
from schemas.registry import SchemaLookup
from schemas.topic_records import TopicShape
from schemas.widening import event_type


class TypedTables:
    """Appends to typed tables what became visible. Each table's guard is its own cursor.

    `add_changes` is `TypedChanges.add`.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        executors: Executors | None = None,
        *,
        last: LastKnown | None = None,
        recent: RecentRows | None = None,
    ) -> None:
        """`last` finds what updates left alone, see `TypedChanges`.

        `recent` has rows of the logs of events that this process has just appended.
        """
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._schemas = schemas
        self._executors = executors or Executors()
        self._recent = recent or RecentRows()
        self._topics = TypedTopics(lake, tables)
        self.add_changes = TypedChanges(lake, tables, schemas, executors=executors, last=last).add

    def add_events(
        self,
        store: str,
        visible: Visible,
        epoch: Epoch,
        *,
        wanted: Wanted = every,
        late: bool = False,
    ) -> Attempts:
        """Append the events of one store that became visible up to `epoch`, to tables `wanted`.

        `late`: some of an earlier position may have entered the log since, out of quarantine. They
        are visible from the epoch on that logged them.
        """
        attempts = Attempts()
        if not visible.anything and not late:
            return attempts
        many = visible.up_to - visible.before > self._executors.rows_at_once(LARGE_ROWS)
        if not late and not many:
            name, after = events_log(store), visible.before
            held = self._recent.of_positions(name, after, visible.up_to, epoch)
            if held is not None:
                return self._append_all(held, visible, epoch, wanted)
        position, logged = pc.field("position"), pc.field("epoch")
        # The log may be ahead of `epoch`: what later ones logged out of quarantine is theirs.
        where = (position > visible.before) & (position <= visible.up_to) & (logged <= epoch)
        log = self._tables.open(self._lake.path(events_log(store)))
        if log is None:
            return attempts
        if late:
            since = (logged > visible.after_epoch) & (logged <= epoch)
            where = where | (since & (position <= visible.before))
            rows = LogRows(dataset_of(log), where)
        else:
            rows = LogRows(dataset_since(log, "position", visible.before + 1), where)
        if many or rows.take_more(LARGE_BYTES):
            self._add_many(rows, visible, epoch, wanted, attempts)
            return attempts
        return self._append_all(rows.read(), visible, epoch, wanted)

    def _append_all(
        self, rows: pa.Table, visible: Visible, epoch: Epoch, wanted: Wanted
    ) -> Attempts:
        attempts = Attempts()
        for name, own in by_type(rows):
            if wanted(name):
                with attempts.of(name):
                    attempts.done[name] = self._append(name, own, visible, epoch)
        return attempts

    def has_other_topic(self, shape: TopicShape) -> bool:
        """Say whether a topic's table has the rows of another declaration."""
        return self._topics.has_other(shape)

    def add_topic(self, shape: TopicShape, ends: Ends | None, up_to: Epoch) -> TableAt | None:
        """Append the records of an external topic up to an epoch; see `TypedTopics.add`."""
        return self._topics.add(TopicRows(shape, self._schemas, ends), up_to)

    def _add_many(
        self, rows: LogRows, visible: Visible, epoch: Epoch, wanted: Wanted, attempts: Attempts
    ) -> None:
        """Append events of which memory is to hold those of one table at most."""
        events = EventRows(schemas=self._schemas, visible=visible)
        shapes = {n: shape for n, shape in shapes_of(rows, events).items() if wanted(n)}
        for name in shapes:
            # A crash may have left tables that have the epoch, before anybody took note of it.
            handle = self._tables.open(self._lake.path(name))
            if handle is not None and reached(handle, Guard(name, epoch)):
                attempts.done[name] = TableAt(version=handle.version(), as_of_epoch=epoch)
        shapes = {name: shape for name, shape in shapes.items() if name not in attempts.done}
        tasks = self._executors.tasks
        files = TypedFiles(lake=self._lake, tables=self._tables, tasks=tasks, epoch=epoch)
        self._by_executors(files, rows, events, shapes, attempts)
        for name in sorted(shapes.keys() - attempts.done.keys() - attempts.failed.keys()):
            with attempts.of(name):
                own = rows.narrowed(of_types([name])).read()
                attempts.done[name] = self._append(name, own, visible, epoch)
        for name in sorted(shapes.keys() & attempts.done.keys()):
            files.tidy(name)

    def _by_executors(
        self,
        files: TypedFiles,
        rows: LogRows,
        events: EventRows,
        shapes: Mapping[str, pa.Schema | None],
        attempts: Attempts,
    ) -> None:
        """Have executors write the events of tables whose columns are known.

        Some may be left, which somebody has to look at by themselves: an event of theirs cannot be
        decoded, their columns have to be widened first, no event is new.
        """
        known = {name: shape for name, shape in shapes.items() if shape is not None}
        if not known:
            return
        done = {name: self._done(name) for name in known}
        only = replace(events, names=frozenset(known))
        try:
            written = files.written(parts_of(rows), only, done) or {}
        except LeaseLost:
            raise
        except PenstockError:
            return
        for name, own in written.items():
            with attempts.of(name):
                at = files.committed(name, own, event_type, known[name])
                attempts.done |= {} if at is None else {name: at}

    def _done(self, name: str) -> int:
        """Return the epoch that a table has: a crash may have left it ahead of the others."""
        handle = self._tables.open(self._lake.path(name))
        return 0 if handle is None else mark_of(handle, name) or 0

    def _append(self, name: str, rows: pa.Table, visible: Visible, epoch: Epoch) -> TableAt:
        path = self._lake.path(name)
        typed = EventRows(schemas=self._schemas, visible=visible).of(rows)
        typed = typed.filter(pc.greater(typed[EPOCH], self._done(name)))
        handle, guard = self._tables.open(path), Guard(name, epoch)
        if handle is not None and not reached(handle, guard):
            typed = fit(self._tables, path, typed, event_type)
        version = self._writer.append(path, typed, guard)
        self._tables.appended(path)
        return TableAt(version=version, as_of_epoch=epoch)
