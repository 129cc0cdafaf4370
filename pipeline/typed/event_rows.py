"""The events of a store's log as rows of their typed tables, one table per type.

The driver and Spark's executors both ask it, for all events that became visible or for a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from kernel.errors import Incompatible
from lake.file_batches import unpacked
from lake.table_columns import EVENTS
from pipeline.ddl.table_rewrites import joined
from pipeline.log.large_folds import SLICE_BYTES, SLICE_ROWS, LogRows
from pipeline.typed.columns import (
    EPOCH,
    INGESTED_AT,
    LATE,
    SEQ_HI,
    SEQ_LO,
    TIME,
    Visible,
)
from schemas.columns import PRESENT, decode_rows
from schemas.records import FORMAT_AVRO
from schemas.registry import SchemaLookup
from schemas.widening import event_type

_FOLDER = "typed/events."


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRows:
    """Makes typed rows of events of the log. Picklable; see `TypedRows`.

    `names` are the tables that executors make rows for.
    """

    schemas: SchemaLookup
    visible: Visible
    names: frozenset[str] = frozenset()

    def __call__(self, rows: pa.Table) -> Mapping[str, pa.Table]:
        """Return the typed rows of each of the tables `names`."""
        return {name: self.of(own) for name, own in by_type(rows) if name in self.names}

    def of(self, rows: pa.Table) -> pa.Table:
        """Return the typed rows of events of one type. Raises `Incompatible`, `SchemaViolation`."""
        unknown = [f for f in pc.unique(rows["data_format"]).to_pylist() if f != FORMAT_AVRO]
        if unknown:
            raise Incompatible(f"data format {unknown} cannot be read by this version")
        by_schema = _per_schema(rows.sort_by("position"), self.schemas)
        columns = [_event_columns(part, data, self.visible) for part, data in by_schema]
        return joined(columns, event_type)

    def shape(self, ids: Iterable[int]) -> pa.Schema:
        """Return the columns of events that were written with some schemas."""
        none = EVENTS.empty_table()
        empty = [decode_rows([], self.schemas.schema(each), "event") for each in ids]
        return joined([_event_columns(none, e, self.visible) for e in empty], event_type).schema


def by_type(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield the name of each type's table and the events of it."""
    for category, kind in _groups(rows, ["category", "type"]):
        mask = pc.and_(pc.equal(rows["category"], category), pc.equal(rows["type"], kind))
        yield _name(category, kind), rows.filter(mask)


def shapes_of(rows: LogRows, events: EventRows) -> dict[str, pa.Schema | None]:
    """Return the tables that the events belong to, and the columns that these give them.

    Columns come in the order of the schemas' first events, as `EventRows.of` has them; None where a
    schema cannot be used. Reads what names the schemas, and holds one row for each of them.
    """
    columns = ["category", "type", "schema_id"]
    scanner = rows.log.scanner(columns=[*columns, "position"], filter=rows.wanted)
    firsts = [
        pa.table(batch).group_by(columns).aggregate([("position", "min")])
        for batch in scanner.to_batches()
    ]
    found: dict[str, list[int]] = {}
    for row in pa.concat_tables(firsts).sort_by("position_min").to_pylist() if firsts else []:
        ids = found.setdefault(_name(row["category"], row["type"]), [])
        if row["schema_id"] not in ids:
            ids.append(row["schema_id"])
    shapes: dict[str, pa.Schema | None] = {}
    for name, ids in found.items():
        try:
            shapes[name] = events.shape(ids)
        except Exception:  # Whoever brings this table meets it again.
            shapes[name] = None
    return shapes


def of_types(names: Iterable[str]) -> pc.Expression:
    """Return a filter for the events that belong to some tables."""
    wanted = pc.scalar(False)
    for name in names:
        category, _, kind = name.removeprefix(_FOLDER).partition(".")
        wanted = wanted | ((pc.field("category") == category) & (pc.field("type") == kind))
    return wanted


def parts_of(rows: LogRows, *, most: int = SLICE_ROWS) -> list[LogRows]:
    """Cut rows into parts of about `most`, or fewer wide ones, by the row groups of their files."""
    parts: list[LogRows] = []
    held: list[ds.Fragment] = []
    count = size = 0
    for file in rows.log.get_fragments(rows.wanted):
        for group in file.split_by_row_group(rows.wanted, rows.log.schema):
            own, wide = unpacked([group])
            if held and (count + own > most or size + wide > SLICE_BYTES):
                parts.append(rows.among(held))
                held, count, size = [], 0, 0
            held.append(group)
            count, size = count + own, size + wide
    return [*parts, rows.among(held)] if held else parts


def _name(category: str, kind: str) -> str:
    return f"{_FOLDER}{category}.{kind}"


def _event_columns(part: pa.Table, data: pa.Table, visible: Visible) -> pa.Table:
    """Put an event's own fields first, then what the store knows of it, then hidden columns."""
    places = zip(part["position"].to_pylist(), part["epoch"].to_pylist(), strict=True)
    # An event that entered the log behind its place is visible from there on.
    epochs = [
        max(visible.epoch_of(p), logged) if p > visible.before else logged for p, logged in places
    ]
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
