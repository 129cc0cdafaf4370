"""Row changes to typed tables: facts, under the columns that their source has now.

A table's visible rows are appended in one commit, guarded by the epoch. More than `LARGE_ROWS` of
them go in slices, each a commit: none is seen before the last one, which carries the guard, and a
crash in between takes the others away again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.datasets import dataset_since, schema_of
from lake.executor_tasks import Executors
from lake.layout import Lake, changes_log
from lake.table_columns import OF_NO_TABLE, SCHEMA_TABLE
from lake.tables import TableAt, Tables, columns_guard, rewritten_guard
from lake.writer import ArrowWriter, Guard, reached
from pipeline.current.key_buckets import BucketPart, Known, gone_through
from pipeline.ddl.held_tables import Hold
from pipeline.ddl.steps import Evolution, Order
from pipeline.ddl.table_plans import SchemaFollower, planned
from pipeline.ddl.table_rewrites import evolve, fit, must_evolve
from pipeline.ddl.unchanged_values import Stored
from pipeline.log.large_folds import LARGE_ROWS, SLICE_ROWS, LogRows, slices, split
from pipeline.order import NEEDED, low_of, places_of
from pipeline.typed.between_copies import facts_around
from pipeline.typed.columns import (
    EPOCH,
    INGESTED_AT,
    LATE,
    SEQ_HI,
    SEQ_LO,
    TIME,
    TRANSACTION,
    Visible,
    Wanted,
    every,
    truncates_name,
)
from pipeline.typed.facts import FactImages, fact_images, newest_facts
from pipeline.typed.installs import Entering
from pipeline.typed.last_known import LastKnown
from pipeline.typed.slices import append_part, whole
from pipeline.typed.tasks import TypedFiles
from pipeline.typed.visible_changes import IS_TRUNCATE, Bulk, ends_seen, readable, seen, stamped
from schemas.registry import SchemaLookup
from schemas.widening import common_type

_TRUNCATE = {
    "table": "table",
    "committed_at": "committed_at",
    "transaction_id": TRANSACTION,
    "event_time": TIME,
    "commit_order": SEQ_HI,
    "closed_late": LATE,
    "ingested_at": INGESTED_AT,
    EPOCH: EPOCH,
}
_OF_TRUNCATES = [*dict.fromkeys((*(name for name in _TRUNCATE if name != EPOCH), *NEEDED))]
"""Of a large transaction no value is read to find them."""
_NONE: Mapping[str, tuple[str, int]] = MappingProxyType({})
_NO_HOLDS: Mapping[str, Hold] = MappingProxyType({})
_NO_INSTALLS: Mapping[str, Entering] = MappingProxyType({})


class TypedChanges:
    """Appends to the typed tables of captured tables. Each table's guard is its own cursor."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        *,
        most: int = LARGE_ROWS,
        slice_rows: int = SLICE_ROWS,
        executors: Executors | None = None,
        last: LastKnown | None = None,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._last = last or LastKnown(lake, tables)
        self._schemas = schemas
        self._follower = SchemaFollower(lake, tables, schemas)
        self._slice_rows = slice_rows
        self._executors = executors or Executors()
        self._most = partial(self._executors.rows_at_once, most)

    def add(
        self,
        source: str,
        visible: Visible,
        epoch: Epoch,
        *,
        pending_from: int,
        snapshot_lsn: int,
        current: Mapping[str, TableAt],
        brought: Mapping[str, TableAt] | None = None,
        staged: Mapping[str, tuple[str, int]] = _NONE,
        held: Mapping[str, Hold] = _NO_HOLDS,
        entering: Mapping[str, Entering] = _NO_INSTALLS,
        wanted: Wanted = every,
    ) -> Attempts:
        """Append the row changes of one source that became visible up to `epoch`.

        `pending_from` is the first epoch whose log rows may belong to them, `snapshot_lsn` names
        the snapshot that counts: rows of an abandoned one never become visible. `current` gives
        the versions of the current tables just before: unchanged TOAST values come from there, or
        for a table that is new from path and version of its rows as they were copied (`staged`),
        or for one that stands still (`held`) from its facts. `brought` gives those of the typed
        tables (None: as they are). What is `entering`, by typed table, enters those that have rows
        or DDL between the two: columns may change around it. Only tables `wanted` are touched.
        """
        attempts = Attempts()
        log = self._tables.open(self._lake.path(changes_log(source)))
        if log is None or not visible.anything:
            return attempts
        seen_at, left_out = ends_seen(self._lake, self._tables, source, visible)
        stamp = partial(stamped, seen_at, visible, snapshot_lsn)
        # A row out of quarantine may have been logged long after its transaction was seen.
        own = seen(seen_at, left_out, visible, snapshot_lsn) & (pc.field("epoch") >= pending_from)
        where, large = split(log, own, since=pending_from, most=self._most())
        rows = stamp(dataset_since(log, "epoch", pending_from).to_table(filter=where))
        messages = rows.filter(pc.equal(rows["table"], SCHEMA_TABLE))
        rows = rows.filter(pc.invert(pc.is_in(rows["table"], pa.array(OF_NO_TABLE))))
        if wanted(truncates_name(source)):
            with attempts.of(truncates_name(source)):
                parts = [rows.select([*_OF_TRUNCATES, EPOCH]), *map(stamp, _truncates(large))]
                attempts.done |= self._truncated(source, parts, epoch)
        tables, named = readable(source, rows, large, wanted)
        tables |= {SCHEMA_TABLE: messages} if messages.num_rows else {}
        before, copied = partial(self._columns, source, brought), _copied(source, entering)
        facts = self._follower.facts(source, tables, seen_at, before, pending_from, copied, named)
        for table, (own, evolution) in facts.items():
            name = f"typed/{source}.{table}"
            if wanted(name):
                with attempts.of(name):
                    of = f"current/{source}.{table}", name, current, staged
                    place = (source, table, held[table], visible.up_to) if table in held else None
                    since, enter = visible.after_epoch, entering.get(name)
                    stored, known = self._last_known(*of, evolution, place, since)
                    bulk = Bulk.of(large.get(table), stamp, since, None if enter else known)
                    copies = None if enter is None else (enter, since)
                    moved = self._bring(name, own, stored, evolution, messages, epoch, bulk, copies)
                    attempts.done |= {} if moved is None else {name: moved}
        failed = {f"typed/{source}.{table}": error for table, error in named.failed.items()}
        attempts.failed |= {name: error for name, error in failed.items() if wanted(name)}
        return attempts

    def _last_known(
        self,
        name: str,
        typed: str,
        current: Mapping[str, TableAt],
        staged: Mapping[str, tuple[str, int]],
        evolution: Evolution,
        stands: tuple[str, str, Hold, int] | None,
        up_to: int,
    ) -> tuple[Stored, Callable[[], Known | None] | None]:
        """Return what finds last known rows by key, and what gives all of them where that can be.

        Those of a table that stands still are among its facts up to an epoch, else as the table
        stands there.
        """
        if stands is None:
            stored = partial(self._last.stored, name, typed, current, staged)
            known = partial(self._last.known, name, current, staged)
            return partial(stored, partial(planned, evolution)), known
        since = partial(self._follower.since, *stands)
        older = partial(self._last.stored, name, typed, current, staged, since)
        before = pc.field(EPOCH) <= up_to
        return partial(self._last.last_facts, typed, 0, older, where=before), None

    def _bring(
        self,
        name: str,
        own: pa.Table,
        stored: Stored,
        evolution: Evolution,
        messages: pa.Table,
        epoch: Epoch,
        bulk: Bulk | None,
        copies: tuple[Entering, int] | None,
    ) -> TableAt | None:
        """Bring one typed table to an epoch: its columns, then its rows, in slices if `bulk`.

        With `copies` that come since an epoch these enter first.
        """
        rows = own if bulk is None else bulk.stamp(own)
        moved = self._evolve(name, evolution, messages, rows, epoch)
        if copies is not None:
            moved = copies[0].enter(evolution)
        if bulk is not None:
            return self._append_large(name, bulk, stored, evolution, epoch) or moved
        if own.num_rows == 0:
            return moved
        if copies is None:
            return self._append(name, self._images(own, stored, evolution)[0], epoch)
        made = partial(self._images, evolution=evolution)
        read = partial(self._last.copied_at, name, copies[1])
        images = facts_around(own, copies[0].places, stored, made, read)
        return self._append(name, images, epoch)

    def _truncated(
        self, source: str, parts: Collection[pa.Table], epoch: Epoch
    ) -> dict[str, TableAt]:
        truncates = pa.concat_tables([part.filter(IS_TRUNCATE) for part in parts])
        if truncates.num_rows == 0:
            return {}
        name = truncates_name(source)
        rows = truncates.select([*_TRUNCATE]).rename_columns(_TRUNCATE)
        rows = rows.append_column(SEQ_LO, low_of(truncates))
        return {name: self._append(name, rows, epoch)}

    def _columns(
        self, source: str, brought: Mapping[str, TableAt] | None, table: str
    ) -> pa.Schema | None:
        name = f"typed/{source}.{table}"
        path = self._lake.path(name)
        if brought is not None:
            # What a crash left behind is not what there was before: it may have later columns.
            at = brought.get(name)
            return None if at is None else self._tables.columns(path, at.version)
        handle = self._tables.open(path)
        return None if handle is None else schema_of(handle)

    def _evolve(
        self, name: str, evolution: Evolution, messages: pa.Table, rows: pa.Table, epoch: Epoch
    ) -> TableAt | None:
        """Bring stored facts to the new columns; None where that did nothing.

        A crash may have left a table that has the steps up to some epoch, and not its rows. One
        that has the rows of an epoch has its steps too: it may have begun with them. What no
        message told, the row did that comes right behind.
        """
        path = self._lake.path(name)
        table = self._tables.open(path)
        if table is None or not evolution:
            return None
        done = max(table.transaction_version(each) or 0 for each in (name, columns_guard(name)))
        told_at = dict(zip(places_of(messages), messages[EPOCH].to_pylist(), strict=True))
        if done and evolution.steps and any(order not in told_at for order, _ in evolution.steps):
            places = ((high, low - 1) for high, low in places_of(rows))
            told_at = {**dict(zip(places, rows[EPOCH].to_pylist(), strict=True)), **told_at}
        fresh = [order for order, _ in evolution.steps if told_at.get(order, epoch) > done]
        steps = evolution.all_steps(only=fresh)
        if not must_evolve(table, steps):
            return None
        guard = Guard(columns_guard(name), epoch)
        evolve(self._tables, path, steps, guard, rewritten=rewritten_guard(name))
        table = self._tables.open(path)
        assert table is not None, "it was there before"
        return TableAt(version=table.version(), as_of_epoch=epoch)

    def _images(
        self, rows: pa.Table, stored: Stored, evolution: Evolution
    ) -> tuple[pa.Table, tuple[str, ...]]:
        return fact_images(rows, self._schemas, stored, evolution)

    def _append(self, name: str, typed: pa.Table, epoch: Epoch) -> TableAt:
        self._tables.ensure(self._lake.path(name), typed.schema)
        whole(self._tables, self._lake.path(name), name)
        return self._append_last(name, typed, epoch)

    def _append_last(self, name: str, typed: pa.Table, epoch: Epoch) -> TableAt:
        path = self._lake.path(name)
        table = self._tables.ensure(path, typed.schema)
        if not reached(table, Guard(name, epoch)):
            typed = fit(self._tables, path, typed)
        # A crash may have left this table ahead of the common cursor.
        done = table.transaction_version(name) or 0
        typed = typed.filter(pc.greater(typed[EPOCH], done))
        version = self._writer.append(path, typed, Guard(name, epoch))
        self._tables.appended(path)
        return TableAt(version=version, as_of_epoch=epoch)

    def _append_large(
        self, name: str, bulk: Bulk, stored: Stored, evolution: Evolution, epoch: Epoch
    ) -> TableAt | None:
        """Append slice by slice; memory holds one. The guard goes with the last.

        None where there is nothing but a TRUNCATE, which has no row here.

        `stored` is the state as of `bulk.since`. After a crash the table may have later facts
        already: what an update left alone comes from these first. Else it comes by key, in one
        pass over what is stored, where that is possible.
        """
        path = self._lake.path(name)

        def done() -> int:
            """Return how far the table is, without slices of an attempt that did not end."""
            opened = self._tables.open(path) is not None
            table = whole(self._tables, path, name) if opened else None
            return (table.transaction_version(name) or 0) if table is not None else 0

        def append(parts: Iterable[BucketPart]) -> TableAt:
            waiting: pa.Table | None = None
            for part in parts:
                if waiting is not None:
                    append_part(self._tables, path, name, waiting, epoch)
                images, keys = self._images(bulk.stamp(part.rows), part.stored, evolution)
                part.became(newest_facts(images, keys))
                waiting = images.filter(pc.greater(images[EPOCH], after))
            assert waiting is not None, "a large table has rows"
            return self._append_last(name, waiting, epoch)

        table = self._tables.open(path)
        if table is not None and reached(table, Guard(name, epoch)):
            return TableAt(version=table.version(), as_of_epoch=epoch)
        after = done()
        cut = [*slices(bulk.rows.narrowed(~IS_TRUNCATE), most=self._slice_rows)]
        if not cut:
            return None
        files = TypedFiles(
            lake=self._lake, tables=self._tables, tasks=self._executors.tasks, epoch=epoch
        )
        at = self._append_by_executors(files, name, cut, bulk, evolution, after)
        at = at or gone_through(
            cut,
            append,
            known=bulk.known() if bulk.known and after <= bulk.since and not evolution else None,
            stored=partial(self._last.last_facts, name, min(after, bulk.since), stored),
            anew=done,
            schemas=self._schemas,
            per_part=bulk.rows.per_part(self._slice_rows),
        )
        files.tidy(name)
        return at

    def _append_by_executors(
        self,
        files: TypedFiles,
        name: str,
        parts: Sequence[LogRows],
        bulk: Bulk,
        evolution: Evolution,
        after: int,
    ) -> TableAt | None:
        """Append slices that executors write, in one commit; None where they cannot.

        Nor can they where no row is new: then the table has no file for the guard to go with.
        """
        images = FactImages(name=name, schemas=self._schemas, evolution=evolution, stamp=bulk.stamp)
        written = (files.written(parts, images, {name: after}) or {}).get(name)
        return files.committed(name, written, common_type) if written else None


def _truncates(large: Mapping[str, LogRows]) -> Iterable[pa.Table]:
    """Return the TRUNCATEs among rows that are not read yet."""
    return (own.narrowed(IS_TRUNCATE).read(_OF_TRUNCATES) for own in large.values())


def _copied(source: str, entering: Mapping[str, Entering]) -> dict[str, tuple[Order, pa.Schema]]:
    """Return place and columns of the first copied rows, by table of a source."""
    found: dict[str, tuple[Order, pa.Schema]] = {}
    for name, rows in entering.items():
        if name.startswith(f"typed/{source}."):
            # What cannot be read fails once more, for its table alone, where it is to enter.
            with Attempts().of(name):
                found[name.removeprefix(f"typed/{source}.")] = rows.first
    return found
