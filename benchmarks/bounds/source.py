"""A captured source that exists in its log alone: schemas, records, and a lake with a past."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.table_columns import CHANGES, DECODED
from schemas.debezium import PLACEHOLDER
from schemas.registry import MemoryRegistry

SOURCE = "bench"
AT = datetime(2013, 1, 1, tzinfo=UTC)
FIRST_ID = 2**27
"""From here on an id takes the same number of bytes in Avro, so that rows are laid out at once."""
_FIELDS = [{"name": "id", "type": "long"}, {"name": "size", "type": "long"}]


def _envelope(fields: Sequence[Mapping[str, str]]) -> dict[str, object]:
    row = {"type": "record", "name": "Value", "fields": [*fields]}
    return {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
        ],
    }


_KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
_ENVELOPE_ID, _KEY_ID, _NOTED_ID = 1, 2, 3

Numbers = npt.NDArray[np.int64]


def registry() -> MemoryRegistry:
    """Return a registry that knows the schemas of every table, also of one with a column `note`."""
    made = MemoryRegistry()
    assert made.register("value", json.dumps(_envelope(_FIELDS))) == _ENVELOPE_ID
    assert made.register("key", json.dumps(_KEY)) == _KEY_ID
    noted = _envelope([*_FIELDS, {"name": "note", "type": "string"}])
    assert made.register("noted", json.dumps(noted)) == _NOTED_ID
    return made


def table_name(number: int) -> str:
    """Name one of the source's tables."""
    return f"public.t{number:04}"


def updates(ids: Numbers, sizes: Numbers, *, noted: bool) -> tuple[pa.Array, pa.Array]:
    """Return keys and values of updates, as Debezium frames them. Ids lie in 2**27 to 2**33.

    With `noted` rows have a `note`, which these updates leave alone.
    """
    key = _framed(_KEY_ID, [_long(ids)])
    ones = np.ones((len(ids), 1), np.uint8)
    row = [0 * ones, 2 * ones, _long(ids), _long(sizes)]
    if noted:
        mark = np.frombuffer(PLACEHOLDER.encode(), np.uint8)
        row += [2 * len(mark) * ones, np.tile(mark, (len(ids), 1))]
    value = _framed(_NOTED_ID if noted else _ENVELOPE_ID, [*row, 2 * ones, ord("u") * ones])
    return key, value


def columns_of(
    table: str,
    ids: Numbers,
    sizes: Numbers,
    *,
    transaction: str,
    lsn: int,
    order: int,
    first: int,
    noted: bool = False,
) -> dict[str, pa.Array]:
    """Return the columns that a decoded change and a log row have in common.

    The changes stand in one transaction at LSNs from `lsn` on, each 10 bytes behind the other;
    `first` is the `total_order` and the offset of the first. See `updates` for `noted`.
    """
    n = len(ids)
    key, value = updates(ids, sizes, noted=noted)
    numbers = np.arange(n, dtype=np.int64)
    return {
        "table": _same(table, n),
        "operation": _same("u", n),
        "transaction_id": _same(transaction, n),
        "lsn": pa.array(lsn + 10 * numbers),
        "commit_order": pa.array(np.full(n, order, np.int64)),
        "total_order": pa.array(first + numbers),
        "snapshot": pa.array(np.zeros(n, bool)),
        "event_time": _same(AT, n, pa.timestamp("us", tz="UTC")),
        "schema_id": pa.array(np.full(n, _NOTED_ID if noted else _ENVELOPE_ID, np.int32)),
        "key_schema_id": pa.array(np.full(n, _KEY_ID, np.int32)),
        "key": key,
        "value": value,
        "topic": _same(f"{SOURCE}.{table}", n),
        "partition": pa.array(np.zeros(n, np.int32)),
        "offset": pa.array(first + numbers),
    }


def decoded(columns: Mapping[str, pa.Array]) -> pa.Table:
    """Return changes as the decoder gives them to ingest."""
    n = len(columns["offset"])
    own = {"kind": _same("change", n), "source": _same(SOURCE, n)}
    return _shaped({**columns, **own, "recorded_at": columns["event_time"]}, n, DECODED)


def logged(columns: Mapping[str, pa.Array], epoch: int) -> pa.Table:
    """Return changes as the log has them."""
    n = len(columns["offset"])
    own = {
        "epoch": pa.array(np.full(n, epoch, np.int64)),
        "committed_at": columns["event_time"],
        "ingested_at": columns["event_time"],
        "closed_late": pa.array(np.zeros(n, bool)),
    }
    return _shaped({**columns, **own}, n, CHANGES)


def end_of(transaction: str, lsn: int, counts: Mapping[str, int], offset: int) -> pa.Table:
    """Return the END of a transaction, decoded."""
    row = {
        "kind": "end",
        "topic": f"{SOURCE}.transaction",
        "partition": 0,
        "offset": offset,
        "source": SOURCE,
        "transaction_id": transaction,
        "lsn": lsn,
        "counts": json.dumps(counts),
        "recorded_at": AT,
    }
    return pa.Table.from_pylist([row], DECODED)


def _shaped(columns: Mapping[str, pa.Array], n: int, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_arrays(
        [columns.get(f.name, pa.nulls(n, f.type)) for f in schema], schema=schema
    )


def _same(value: object, n: int, kind: pa.DataType | None = None) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), n)


def _long(numbers: Numbers) -> npt.NDArray[np.uint8]:
    """Lay out numbers of five bytes each as Avro does: zigzag, seven bits a byte."""
    zigzag = (numbers << 1).astype(np.uint64)
    parts = [((zigzag >> np.uint64(7 * i)) & np.uint64(127)).astype(np.uint8) for i in range(5)]
    return np.stack([*(part | 128 for part in parts[:4]), parts[4]], axis=1)


def _framed(schema: int, parts: Sequence[npt.NDArray[np.uint8]]) -> pa.Array:
    n = len(parts[0])
    head = np.tile(np.frombuffer(b"\0" + schema.to_bytes(4, "big"), np.uint8), (n, 1))
    whole = np.ascontiguousarray(np.concatenate([head, *parts], axis=1))
    width = whole.shape[1]
    offsets = pa.array(np.arange(0, (n + 1) * width, width, dtype=np.int32))
    return pa.BinaryArray.from_buffers(
        pa.binary(), n, [None, offsets.buffers()[1], pa.py_buffer(whole)]
    )
