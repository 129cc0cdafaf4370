"""Kafka records that are alike (one topic, one schema) decoded together, where a decoder can.

A decoder with a method `many` reads ordinary changes or events as columns, far quicker than one by
one. What it does not take, and what comes in ones and twos, is left to the decoder itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Unavailable
from lake.table_columns import CHANGE, DECODED
from schemas.wire import HEADER_BYTES

FEW = 8
"""Fewer records of a kind are not worth it."""


@runtime_checkable
class Many(Protocol):
    """A decoder that can read many ordinary facts of one topic and schema at once."""

    def many(self, topic: str, records: pa.RecordBatch) -> pa.Table | None:
        """Return their columns, named as in `DECODED`; None, or any error, to have each
        decoded for itself; `Unavailable` alone says nothing about the records.

        `records` have a value each. Without a `kind` they are changes, whose keys and values stay
        as they are.
        """
        ...


def side_by_side(
    batch: pa.RecordBatch, decoders: Mapping[str, object]
) -> tuple[list[pa.RecordBatch], pa.RecordBatch]:
    """Decode what can be decoded together; return that as `DECODED` rows, and the other records."""
    left = np.ones(batch.num_rows, bool)
    done: list[pa.RecordBatch] = []
    for topic, places in _groups(batch):
        decoder = decoders[topic]
        if len(places) < FEW or not isinstance(decoder, Many):
            continue
        records = _at(batch, places)
        decoded = _decoded(topic, records, decoder)
        if decoded is not None:
            left[places] = False
            done.append(decoded)
    return done, _at(batch, np.flatnonzero(left))


def _at(batch: pa.RecordBatch, places: np.ndarray) -> pa.RecordBatch:
    """Return the records at places, which ascend: without a copy where they follow one another."""
    count = len(places)
    first = int(places[0]) if count else 0
    if count == 0 or int(places[-1]) - first == count - 1:
        return batch.slice(first, count)
    return batch.take(pa.array(places))


def _groups(batch: pa.RecordBatch) -> Iterator[tuple[str, np.ndarray]]:
    """Yield topics with the places of records of one schema; those without a value are left out."""
    heads = pc.binary_slice(batch.column("value"), 0, HEADER_BYTES).dictionary_encode()
    topics = batch.column("topic").dictionary_encode()
    kinds = len(heads.dictionary) + 1
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64) * kinds
    codes = codes + pc.fill_null(heads.indices, kinds - 1).to_numpy(zero_copy_only=False)
    for code in np.unique(codes):
        if code % kinds != kinds - 1:
            yield topics.dictionary[int(code // kinds)].as_py(), np.flatnonzero(codes == code)


def _decoded(topic: str, records: pa.RecordBatch, decoder: Many) -> pa.RecordBatch | None:
    try:
        columns = decoder.many(topic, records)
    except Unavailable:
        raise
    except Exception:
        # Whichever record is at fault is rejected when each is decoded for itself, with its reason.
        return None
    if columns is None:
        return None
    n = records.num_rows
    known = {name: columns[name] for name in columns.column_names}
    if "kind" not in known:
        values, keys = records.column("value"), records.column("key")
        ids, key_ids = _schema_ids(values), _schema_ids(keys)
        if ids is None or key_ids is None:
            return None
        known |= {"kind": pa.repeat(pa.scalar(CHANGE), n), "key": keys, "value": values}
        known |= {"schema_id": ids, "key_schema_id": key_ids}
    known |= {name: records.column(name) for name in ("topic", "partition", "offset")}
    known |= {"kafka_time": records.column("timestamp")}
    arrays = [
        _whole(known[item.name], item.type) if item.name in known else pa.nulls(n, item.type)
        for item in DECODED
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=DECODED)


def _schema_ids(framed: pa.Array) -> pa.Array | None:
    """Return the schema ids of framed bytes, null for null; None when some are not framed."""
    there = framed.drop_null()
    if not len(there):
        return pa.nulls(len(framed), pa.int32())
    ends = np.frombuffer(there.buffers()[1], np.int32)[there.offset :][: len(there) + 1]
    if (np.diff(ends) < HEADER_BYTES).any():
        return None
    data = np.frombuffer(there.buffers()[2], np.uint8)
    heads = data[ends[:-1, None] + np.arange(HEADER_BYTES)]
    if heads[:, 0].any():
        return None
    ids = np.ascontiguousarray(heads[:, 1:]).view(">i4").reshape(-1).astype(np.int32)
    if not framed.null_count:
        return pa.array(ids)
    present = pc.is_valid(framed).to_numpy(zero_copy_only=False)
    return pa.array(ids).take(pa.array(np.cumsum(present) - 1, pa.int64(), mask=~present))


def _whole(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.cast(kind)
