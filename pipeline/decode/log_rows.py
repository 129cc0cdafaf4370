"""The rows that an epoch adds to the tables of the log, laid out from a decoded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from lake.stretches import rows_at
from lake.table_columns import (
    CHANGES,
    EVENTS,
    QUARANTINE,
    SNAPSHOT_END,
    SNAPSHOTS_TABLE,
    TOPICS,
    TRANSACTION_END,
    TRANSACTIONS_TABLE,
    UTC_MICROS,
)

SIZE = "__size"
"""Column of deciding rows: the bytes of a row's key and value, which are not among them."""


def sizes_of(rows: pa.Table) -> pa.ChunkedArray:
    """Return the bytes of each row's key and value, whatever form the rows come in."""
    if SIZE in rows.schema.names:
        return rows[SIZE]
    key, value = (pc.fill_null(pc.binary_length(rows[name]), 0) for name in ("key", "value"))
    return pc.add(key.cast(pa.int64()), value.cast(pa.int64()))


@dataclass(slots=True)
class Kept:
    """Rows of one log table: their places in the batch and the verdicts."""

    rows: list[int] = field(default_factory=list)
    watermarks: list[int | None] = field(default_factory=list)
    late: list[bool] = field(default_factory=list)
    orders: dict[int, int] = field(default_factory=dict)
    """By place among `rows`: `commit_order` where the record's own is not its transaction's."""

    def add(
        self,
        row: int,
        watermark: int | None = None,
        late: bool = False,
        *,
        order: int | None = None,
    ) -> None:
        """Keep a row of the batch, with its verdicts."""
        if order is not None:
            self.orders[len(self.rows)] = order
        self.rows.append(row)
        self.watermarks.append(watermark)
        self.late.append(late)


def event_rows(ordered: pa.Table, kept: Kept, epoch: int, now: datetime) -> pa.Table:
    """Return rows of the log of an event store."""
    rows = ordered.take(kept.rows).rename_columns(
        {"table": "category", "event_time": "occurred_at", "value": "data", "source": "store_id"}
    )
    return _shaped(rows, EVENTS, _stamps(kept, epoch, now))


def change_rows(ordered: pa.Table, kept: Kept, epoch: int, now: datetime) -> pa.Table:
    """Return rows of the log of a captured source."""
    rows = rows_at(ordered, kept.rows).rename_columns({"recorded_at": "committed_at"})
    table = pc.case_when(
        pc.make_struct(
            pc.equal(rows["kind"], TRANSACTION_END), pc.equal(rows["kind"], SNAPSHOT_END)
        ),
        TRANSACTIONS_TABLE,
        SNAPSHOTS_TABLE,
        rows["table"],
    )
    stamps = _stamps(kept, epoch, now) | {"table": table}
    if kept.orders:
        others = pa.array([kept.orders.get(place) for place in range(rows.num_rows)], pa.int64())
        stamps["commit_order"] = pc.coalesce(others, rows["commit_order"])
    return _shaped(rows, CHANGES, stamps)


def record_rows(
    ordered: pa.Table, kept: Kept, epoch: int, now: datetime, ids: Mapping[str, str]
) -> pa.Table:
    """Return rows of the log of an external topic; `ids` are those that Kafka gave to topics."""
    rows = rows_at(ordered, kept.rows).rename_columns({"metadata": "headers"})
    named = pa.array([ids.get(topic) for topic in rows["topic"].to_pylist()], pa.string())
    return _shaped(rows, TOPICS, _stamps(kept, epoch, now) | {"topic_id": named})


def quarantine_rows(rejected: pa.Table, epoch: int, now: datetime) -> pa.Table:
    """Return the rows of the quarantine, of records that were rejected."""
    n = rejected.num_rows
    stamps = {
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), n),
        "ingested_at": pa.repeat(pa.scalar(now, UTC_MICROS), n),
    }
    return _shaped(rejected.rename_columns({"metadata": "headers"}), QUARANTINE, stamps)


def _stamps(kept: Kept, epoch: int, now: datetime) -> dict[str, pa.Array]:
    n = len(kept.rows)
    return {
        "epoch": pa.repeat(pa.scalar(epoch, pa.int64()), n),
        "ingested_at": pa.repeat(pa.scalar(now, UTC_MICROS), n),
        "watermark": _alike(kept.watermarks, UTC_MICROS),
        "closed_late": _alike(kept.late, pa.bool_()),
    }


def _alike(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Return a column whose values are mostly all the same: a moment is dear to read."""
    if values and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], kind), len(values))
    return pa.array(values, kind)


def _shaped(rows: pa.Table, schema: pa.Schema, stamps: Mapping[str, pa.Array]) -> pa.Table:
    columns = [stamps[f.name] if f.name in stamps else rows[f.name] for f in schema]
    return pa.Table.from_arrays(
        [pa.chunked_array(c) if isinstance(c, pa.Array) else c for c in columns], schema=schema
    )
