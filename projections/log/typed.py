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

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Incompatible
from kernel.positions import Epoch
from projections.log.attempts import Attempts
from projections.log.layout import Lake, events_log
from projections.log.rewriting import fit, joined
from projections.log.tables import TableAt, Tables
from projections.log.typed_changes import TypedChanges
from projections.log.typed_columns import (
    EPOCH,
    INGESTED_AT,
    LATE,
    SEQ_HI,
    SEQ_LO,
    TIME,
    Visible,
    Wanted,
    every,
)
from projections.log.writer import ArrowWriter, Guard, reached
from schemas.columns import PRESENT, decode_rows
from schemas.records import FORMAT_AVRO
from schemas.registry import SchemaLookup
from schemas.widening import event_type


class TypedTables:
    """Appends to typed tables what became visible. Each table's guard is its own cursor.

    `add_changes` is `TypedChanges.add`.
    """

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._schemas = schemas
        self.add_changes = TypedChanges(lake, tables, schemas).add

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
        position, logged = pc.field("position"), pc.field("epoch")
        where = (position > visible.before) & (position <= visible.up_to)
        if late:
            since = (logged > visible.after_epoch) & (logged <= epoch)
            where = where | (since & (position <= visible.before))
        rows = self._tables.read(self._lake.path(events_log(store)), where=where)
        if rows is None:
            return attempts
        for category, kind in _groups(rows, ["category", "type"]):
            name = f"typed/events.{category}.{kind}"
            if not wanted(name):
                continue
            mask = pc.and_(pc.equal(rows["category"], category), pc.equal(rows["type"], kind))
            with attempts.of(name):
                typed = self._events(rows.filter(mask), visible)
                attempts.done[name] = self._append(name, typed, epoch)
        return attempts

    def _append(self, name: str, typed: pa.Table, epoch: Epoch) -> TableAt:
        path = self._lake.path(name)
        handle = self._tables.open(path)
        done = handle.transaction_version(name) if handle is not None else None
        if done is not None:
            # A crash may have left this table ahead of the common cursor.
            typed = typed.filter(pc.greater(typed[EPOCH], done))
        guard = Guard(name, epoch)
        if handle is not None and not reached(handle, guard):
            typed = fit(self._tables, path, typed, event_type)
        version = self._writer.append(path, typed, guard)
        return TableAt(version=version, as_of_epoch=epoch)

    def _events(self, rows: pa.Table, visible: Visible) -> pa.Table:
        unknown = [f for f in pc.unique(rows["data_format"]).to_pylist() if f != FORMAT_AVRO]
        if unknown:
            raise Incompatible(f"data format {unknown} cannot be read by this version")
        by_schema = _per_schema(rows.sort_by("position"), self._schemas)
        return joined([_event_columns(part, data, visible) for part, data in by_schema], event_type)


def _event_columns(part: pa.Table, data: pa.Table, visible: Visible) -> pa.Table:
    """Put an event's own fields first, then what the store knows of it, then hidden columns."""
    places = zip(part["position"].to_pylist(), part["epoch"].to_pylist(), strict=True)
    epochs = [visible.epoch_of(p) if p > visible.before else logged for p, logged in places]
    entity = pc.replace_substring_regex(part["stream"], "^[^-]*-", "")
    known: Mapping[str, pa.ChunkedArray | pa.Array] = {
        "event_id": part["event_id"],
        "stream": part["stream"],
        "entity_id": entity,
        "type": part["type"],
        "version": part["version"],
        "position": part["position"],
        "occurred_at": part["occurred_at"],
        "recorded_at": part["recorded_at"],
        EPOCH: pa.array(epochs, pa.int64()),
        LATE: part["closed_late"],
        TIME: part["occurred_at"],
        SEQ_HI: part["position"],
        SEQ_LO: pa.array([0] * part.num_rows, pa.int64()),
        INGESTED_AT: part["ingested_at"],
    }
    # The data may have no columns at all: then these say how many rows there are.
    columns = {**dict(zip(data.schema.names, data.columns, strict=True)), **known}
    return pa.table({name: column for name, column in columns.items() if name != PRESENT})


def _per_schema(rows: pa.Table, schemas: SchemaLookup) -> Iterator[tuple[pa.Table, pa.Table]]:
    for schema_id in pc.unique(rows["schema_id"]).to_pylist():
        part = rows.filter(pc.equal(rows["schema_id"], schema_id))
        yield part, decode_rows(part["data"].to_pylist(), schemas.schema(schema_id), "event")


def _groups(rows: pa.Table, columns: list[str]) -> list[tuple[str, ...]]:
    distinct = rows.select(columns).group_by(columns).aggregate([])
    return sorted(tuple(row.values()) for row in distinct.to_pylist())
