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

import bisect
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Incompatible
from kernel.positions import Epoch
from projections.log.frames import SCHEMA_TABLE, TRANSACTIONS_TABLE, UTC_MICROS
from projections.log.images import COMMITTED_AT, EVENT_TIME, HI, LO, row_images
from projections.log.layout import Lake, changes_log, events_log
from projections.log.rewriting import evolve, must_evolve
from projections.log.steps import Evolution
from projections.log.tables import TableAt, Tables, schema_of
from projections.log.unchanged import Stored, any_of, rows_of_keys
from projections.log.writer import OP, ArrowWriter, Guard
from projections.state.following import SchemaFollower
from projections.state.tail import read_whole
from schemas.columns import decode_rows
from schemas.records import FORMAT_AVRO, Operation
from schemas.registry import SchemaLookup

EPOCH, LATE, TIME, SEQ_HI, SEQ_LO = "_epoch", "_late", "_time", "_seq_hi", "_seq_lo"
INGESTED_AT = "_ingested_at"
OPERATION = "_operation"
TRANSACTION, LSN = "_transaction", "_lsn"
"""Of changes: the source's transaction id, and the row's own LSN. The two halves of a changed key
share one."""

TRUNCATES = "_truncates"


def truncates_name(source: str) -> str:
    """Name the table of a source's TRUNCATEs; one row per truncated `table`, hidden columns."""
    return f"typed/{source}.{TRUNCATES}"


_TRUNCATE = {
    "table": "table",
    "committed_at": "committed_at",
    "transaction_id": TRANSACTION,
    "event_time": TIME,
    "commit_order": SEQ_HI,
    "total_order": SEQ_LO,
    "closed_late": LATE,
    "ingested_at": INGESTED_AT,
    EPOCH: EPOCH,
}
EVENT_COLUMNS = pa.schema(
    [
        ("event_id", pa.string()),
        ("stream", pa.string()),
        ("entity_id", pa.string()),
        ("type", pa.string()),
        ("version", pa.int64()),
        ("position", pa.int64()),
        ("occurred_at", UTC_MICROS),
        ("recorded_at", UTC_MICROS),
    ]
)
"""What every typed event has beside its own fields."""


_NONE: Mapping[str, tuple[str, int]] = MappingProxyType({})


class Visible:
    """For one input: at which epoch each place in its order became visible.

    `places` are heads (positions) or cuts (LSNs), one per epoch, ascending.
    """

    def __init__(self, before: int, places: Sequence[tuple[Epoch, int]]) -> None:
        self.before = before
        self.up_to = places[-1][1] if places else before
        self._epochs = [epoch for epoch, _ in places]
        self._places = [place for _, place in places]

    @property
    def anything(self) -> bool:
        """Whether the range holds any place at all."""
        return self.up_to > self.before

    def epoch_of(self, place: int) -> int:
        """Return the first epoch whose head or cut covers `place`."""
        return self._epochs[bisect.bisect_left(self._places, place)]


class TypedTables:
    """Appends to typed tables what became visible. Each table's guard is its own cursor."""

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._schemas = schemas
        self._follower = SchemaFollower(lake, tables, schemas)

    def add_events(self, store: str, visible: Visible, epoch: Epoch) -> dict[str, TableAt]:
        """Append the events of one store that became visible up to `epoch`."""
        if not visible.anything:
            return {}
        position = pc.field("position")
        rows = self._tables.read(
            self._lake.path(events_log(store)),
            where=(position > visible.before) & (position <= visible.up_to),
        )
        if rows is None:
            return {}
        at: dict[str, TableAt] = {}
        for category, kind in _groups(rows, ["category", "type"]):
            mask = pc.and_(pc.equal(rows["category"], category), pc.equal(rows["type"], kind))
            typed = self._events(rows.filter(mask), visible)
            name = f"typed/events.{category}.{kind}"
            at[name] = self._append(name, typed, epoch)
        return at

    def add_changes(
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
    ) -> dict[str, TableAt]:
        """Append the row changes of one source that became visible up to `epoch`.

        `pending_from` is the first epoch whose log rows may belong to them, `snapshot_lsn` names
        the snapshot that counts: rows of an abandoned one never become visible. `current` gives
        the versions of the current tables just before: unchanged TOAST values come from there, or
        for a table that is new from path and version of its rows as they were copied (`staged`).
        `brought` gives the versions of the typed tables just before.
        """
        if not visible.anything:
            return {}
        path = self._lake.path(changes_log(source))
        lsn = pc.field("lsn")
        ends = self._tables.read(
            path,
            where=(pc.field("table") == TRANSACTIONS_TABLE)
            & (lsn > visible.before)
            & (lsn <= visible.up_to),
            columns=["transaction_id", "lsn"],
        )
        if ends is None:
            return {}
        seen_at = {e["transaction_id"]: visible.epoch_of(e["lsn"]) for e in ends.to_pylist()}
        wanted = pc.is_in(pc.field("transaction_id"), pa.array(list(seen_at), pa.string()))
        wanted = wanted & ~pc.field("snapshot")
        if visible.before < snapshot_lsn <= visible.up_to:
            is_read = pc.field("snapshot") & (pc.field("commit_order") == snapshot_lsn)
            wanted = wanted | is_read
        rows = self._tables.read(
            path,
            where=(pc.field("epoch") >= pending_from) & (pc.field("epoch") <= epoch) & wanted,
        )
        if rows is None:
            return {}
        snapshot_epoch = visible.epoch_of(snapshot_lsn) if snapshot_lsn <= visible.up_to else 0
        epochs = [seen_at.get(tx, snapshot_epoch) for tx in rows["transaction_id"].to_pylist()]
        rows = rows.append_column(EPOCH, pa.array(epochs, pa.int64()))
        messages = rows.filter(pc.equal(rows["table"], SCHEMA_TABLE))
        rows = rows.filter(pc.invert(pc.starts_with(rows["table"], "_")))
        is_truncate = pc.equal(rows["operation"], Operation.TRUNCATE.value)
        truncates, rows = rows.filter(is_truncate), rows.filter(pc.invert(is_truncate))
        made: dict[str, TableAt] = {}
        if truncates.num_rows:
            name = truncates_name(source)
            made[name] = self._append(
                name, truncates.select([*_TRUNCATE]).rename_columns(_TRUNCATE), epoch
            )
        tables = {t: rows.filter(pc.equal(rows["table"], t)) for (t,) in _groups(rows, ["table"])}
        if messages.num_rows:
            tables[SCHEMA_TABLE] = messages
        facts = self._follower.facts(
            source,
            tables,
            seen_at.keys(),
            partial(self._columns, source, brought or {}),
            from_epoch=pending_from,
        )
        for table, (own, evolution) in facts.items():
            name = f"typed/{source}.{table}"
            moved = self._evolve(name, evolution, messages, epoch)
            if own.num_rows:
                stored = partial(
                    self._stored, f"current/{source}.{table}", current, staged, evolution
                )
                made[name] = self._append(name, self._changes(own, stored, evolution), epoch)
            elif moved is not None:
                made[name] = moved
        return made

    def _columns(self, source: str, brought: Mapping[str, TableAt], table: str) -> pa.Schema | None:
        name = f"typed/{source}.{table}"
        path = self._lake.path(name)
        if name in brought:
            return self._tables.columns(path, brought[name].version)
        handle = self._tables.open(path)
        return None if handle is None else schema_of(handle)

    def _evolve(
        self, name: str, evolution: Evolution, messages: pa.Table, epoch: Epoch
    ) -> TableAt | None:
        """Bring stored facts to the new columns; None where that did nothing.

        A crash may have left a table that has the steps up to some epoch, and not its rows.
        """
        table = self._tables.open(self._lake.path(name))
        if table is None or not evolution:
            return None
        done = table.transaction_version(f"{name}/columns") or 0
        places = zip(
            messages["commit_order"].to_pylist(),
            messages["total_order"].to_pylist(),
            strict=True,
        )
        told_at = dict(zip(places, messages[EPOCH].to_pylist(), strict=True))
        fresh = [order for order, _ in evolution.steps if told_at.get(order, epoch) > done]
        steps = evolution.all_steps(only=fresh)
        if not must_evolve(table, steps):
            return None
        guard = Guard(f"{name}/columns", epoch)
        evolve(self._tables, self._lake.path(name), steps, guard)
        table = self._tables.open(self._lake.path(name))
        assert table is not None
        return TableAt(version=table.version(), as_of_epoch=epoch)

    def _stored(
        self,
        name: str,
        current: Mapping[str, TableAt],
        staged: Mapping[str, tuple[str, int]],
        evolution: Evolution,
        wanted: pa.Table,
    ) -> pa.Table | None:
        at = current.get(name)
        if at is None and name in staged:
            path, version = staged[name]
            names = self._tables.columns(path, version).names
            where = any_of(wanted) if wanted.schema.names[0] in names else None
            rows = self._tables.read(path, where=where, version=version)
            return rows_of_keys(None if rows is None else evolution.caught_up(rows), wanted)
        if at is None:
            return None
        names = self._tables.columns(self._lake.path(name), at.version).names
        # A key that is renamed in between has its old name there.
        where = any_of(wanted) if wanted.schema.names[0] in names else None
        rows = read_whole(self._lake, self._tables, name, at=current, where=where)
        return rows_of_keys(None if rows is None else evolution.caught_up(rows), wanted)

    def _append(self, name: str, typed: pa.Table, epoch: Epoch) -> TableAt:
        path = self._lake.path(name)
        handle = self._tables.open(path)
        done = handle.transaction_version(name) if handle is not None else None
        if done is not None:
            # A crash may have left this table ahead of the common cursor.
            typed = typed.filter(pc.greater(typed[EPOCH], done))
        version = self._writer.append(path, typed, Guard(name, epoch))
        return TableAt(version=version, as_of_epoch=epoch)

    def _events(self, rows: pa.Table, visible: Visible) -> pa.Table:
        unknown = [f for f in pc.unique(rows["data_format"]).to_pylist() if f != FORMAT_AVRO]
        if unknown:
            raise Incompatible(f"data format {unknown} cannot be read by this version")
        by_schema = _per_schema(rows, self._schemas)
        return pa.concat_tables(
            [_event_columns(part, data, visible) for part, data in by_schema],
            promote_options="permissive",
        )

    def _changes(self, rows: pa.Table, stored: Stored, evolution: Evolution) -> pa.Table:
        images, _ = row_images(
            rows,
            self._schemas,
            stored=stored,
            evolution=evolution,
            carry={
                "operation": OPERATION,
                "closed_late": LATE,
                EPOCH: EPOCH,
                "ingested_at": INGESTED_AT,
                "transaction_id": TRANSACTION,
                "lsn": LSN,
            },
        )
        return images.drop_columns([OP]).rename_columns(
            {HI: SEQ_HI, LO: SEQ_LO, EVENT_TIME: TIME, COMMITTED_AT: "committed_at"}
        )


def _event_columns(part: pa.Table, data: pa.Table, visible: Visible) -> pa.Table:
    """Put an event's own fields first, then what the store knows of it, then hidden columns."""
    positions = part["position"].to_pylist()
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
        EPOCH: pa.array([visible.epoch_of(p) for p in positions], pa.int64()),
        LATE: part["closed_late"],
        TIME: part["occurred_at"],
        SEQ_HI: part["position"],
        SEQ_LO: pa.array([0] * part.num_rows, pa.int64()),
        INGESTED_AT: part["ingested_at"],
    }
    for name, column in known.items():
        if name in data.schema.names:
            # The store's own column wins; the event's field of that name keeps its value.
            data = data.rename_columns({name: f"data_{name}"})
        data = data.append_column(name, column)
    return data


def _per_schema(rows: pa.Table, schemas: SchemaLookup) -> Iterator[tuple[pa.Table, pa.Table]]:
    for schema_id in pc.unique(rows["schema_id"]).to_pylist():
        part = rows.filter(pc.equal(rows["schema_id"], schema_id))
        data = decode_rows(part["data"].to_pylist(), schemas.schema(schema_id), "self")
        yield part, data.drop_columns(["__present"])


def _groups(rows: pa.Table, columns: list[str]) -> list[tuple[str, ...]]:
    distinct = rows.select(columns).group_by(columns).aggregate([])
    return sorted(tuple(row.values()) for row in distinct.to_pylist())
