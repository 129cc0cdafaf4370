"""Records of the log of an external topic as rows of its typed table.

`deleted` is judged here, by whoever knows SQL, and what two records of one fact are. The log keeps
every record: a declaration that turns out wrong costs typed rows alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import InvalidRequest, SchemaViolation
from lake.table_columns import TOPICS, UTC_MICROS
from pipeline.ddl.table_rewrites import joined
from pipeline.typed.columns import (
    EPOCH,
    INGESTED_AT,
    LATE,
    OPERATION,
    SEQ_HI,
    SEQ_LO,
    TIME,
)
from schemas.columns import PRESENT
from schemas.records import Operation
from schemas.registry import SchemaLookup
from schemas.topic_records import TopicRecords, TopicShape, event_times
from schemas.widening import event_type

PARTITION, OFFSET, TIMESTAMP = "kafka_partition", "kafka_offset", "kafka_timestamp"
KEY, GIVEN, ENDS = "kafka_key", "event_time_given", "ends_key"
PLACE = pa.schema(
    [
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (TIMESTAMP, UTC_MICROS),
        (KEY, pa.binary()),
        (GIVEN, pa.bool_()),
        (ENDS, pa.bool_()),
    ]
)
"""What every record has beside its own columns. `event_time_given` is false where the record has no
time of its own, so that its Kafka timestamp stands for it; `ends_key` is true for a tombstone, and
where the option `deleted` says so."""
_BITS = 15
"""Of the order of records: what tells the partitions of one offset apart."""

UNFIT = (SchemaViolation, InvalidRequest, ValueError, TypeError, OverflowError, pa.ArrowException)
"""What the reading of a record raises that does not fit its declaration."""

log = logging.getLogger("penstock.tables")

Ends = Callable[[pa.Table], pa.Array]
"""Says of rows with the declared columns which of them end their key."""


@dataclass(frozen=True, slots=True)
class TopicRows:
    """Makes typed rows of the records of one topic. `ends` is its option `deleted`, if it has one.

    Rows are in the order of epochs, partitions and offsets.
    """

    shape: TopicShape
    schemas: SchemaLookup
    ends: Ends | None = None

    def of(self, logged: pa.Table) -> pa.Table:
        """Return the typed rows of records of the log, without those that do not fit.

        Such were logged for another declaration. Raises what the registry of schemas raises.
        """
        order = [("epoch", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
        logged = logged.sort_by(order)
        logged, own = self._fitting(logged)
        ended = self._ended(own, logged)
        own = own.drop_columns([PRESENT]) if PRESENT in own.schema.names else own
        told = event_times(self.shape, own, logged["kafka_time"])
        own = self._timed(own, told)
        columns = dict(zip(own.schema.names, own.columns, strict=True))
        columns |= {
            PARTITION: logged["partition"],
            OFFSET: logged["offset"],
            TIMESTAMP: logged["kafka_time"],
            KEY: logged["key"],
            GIVEN: told["own"],
            ENDS: ended,
        }
        hidden = {
            OPERATION: pc.if_else(ended, Operation.DELETE.value, Operation.UPDATE.value),
            EPOCH: logged["epoch"],
            LATE: logged["closed_late"],
            TIME: told["time"],
            SEQ_HI: self._sequence(own, logged),
            SEQ_LO: _place(logged),
            INGESTED_AT: logged["ingested_at"],
        }
        return pa.table(columns | hidden)

    def empty(self) -> pa.Table:
        """Return the columns of a typed table without rows."""
        return self.of(TOPICS.empty_table())

    def _fitting(self, logged: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return the records that can be read, and the columns that they have."""
        records = TopicRecords(self.shape, self.schemas)
        keys, values = logged["key"].to_pylist(), logged["value"].to_pylist()
        try:
            return logged, columns_of(records, keys, values)
        except UNFIT as error:
            fits = [_fits(records, key, value) for key, value in zip(keys, values, strict=True)]
            if all(fits):
                raise
            log.warning(
                "%s: %d of %d records do not fit the declaration and have no typed row: %s",
                self.shape.source,
                fits.count(False),
                len(fits),
                error,
            )
        kept = [place for place, fit in enumerate(fits) if fit]
        own = columns_of(records, [keys[p] for p in kept], [values[p] for p in kept])
        return logged.take(pa.array(kept, pa.int64())), own

    def _timed(self, own: pa.Table, told: pa.Table) -> pa.Table:
        """Let the Kafka timestamp stand in the column of the event time where it has no time."""
        wanted = self.shape.event_time
        name = None if wanted is None else self.shape.named(own.schema.names, wanted)
        if name is None or not pa.types.is_timestamp(own.schema.field(name).type):
            return own
        place = own.schema.get_field_index(name)
        return own.set_column(place, pa.field(name, UTC_MICROS), told["time"])

    def _ended(self, own: pa.Table, logged: pa.Table) -> pa.ChunkedArray:
        gone = pc.is_null(logged["value"])
        if self.ends is not None:
            gone = pc.or_(gone, pc.fill_null(self.ends(own), False))
        return gone

    def _sequence(self, own: pa.Table, logged: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Order records of one event time: by the declared column, else by their offset."""
        wanted = self.shape.sequence
        name = None if wanted is None else self.shape.named(own.schema.names, wanted)
        if name is None:
            return logged["offset"]
        column = own[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(UTC_MICROS)
        if pa.types.is_date(column.type):
            column = column.cast(pa.int32())
        return pc.fill_null(column.cast(pa.int64()), -1)


def columns_of(
    records: TopicRecords, keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> pa.Table:
    """Return the columns of records, one row each, in their order. See `TopicRecords.parts`.

    Columns that their schemas write differently are widened as a stored table would be.
    """
    parts: list[pa.Table] = []
    places: list[int] = []
    names: list[str] = []
    for own, rows in records.parts(keys, values):
        places += own
        parts.append(spelled(rows, names))
        names += parts[-1].schema.names
    if not parts:
        return pa.table({})
    whole = joined(parts, event_type)
    order = sorted(range(len(places)), key=places.__getitem__)
    return whole if len(parts) == 1 else whole.take(pa.array(order, pa.int64()))


def spelled(rows: pa.Table, known: Sequence[str]) -> pa.Table:
    """Give columns the names that others have already but for the case of letters.

    A stored table cannot have both.
    """
    before = {name.lower(): name for name in reversed(known)}
    return rows.rename_columns([before.get(name.lower(), name) for name in rows.schema.names])


def _fits(records: TopicRecords, key: bytes | None, value: bytes | None) -> bool:
    try:
        columns_of(records, [key], [value])
    except UNFIT:
        return False
    return True


def _place(logged: pa.Table) -> pa.Array:
    """Number records by offset and partition, so that no two of one topic share a number."""
    shifted = pc.shift_left(logged["offset"], pa.scalar(_BITS, pa.int64()))
    return pc.add(shifted, logged["partition"].cast(pa.int64()))
