"""Changes of a small table made by hand, as the log has them, and an oracle that folds them.

The table is `shop.public.items`: key `id` (and `part`), columns `name`, `size`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import fastavro
import pyarrow as pa

from lake.table_columns import CHANGES
from schemas.debezium import PLACEHOLDER
from schemas.registry import MemoryRegistry
from schemas.wire import frame

SOURCE, TABLE = "shop", "public.items"
AT = datetime(2013, 1, 1, tzinfo=UTC)
_TEXT = ["null", "string"]
_FIELDS: list[dict[str, object]] = [
    {"name": "id", "type": "long"},
    {"name": "part", "type": "string"},
    {"name": "name", "type": _TEXT, "default": None},
    {"name": "size", "type": ["null", "int"], "default": None},
]
_PRICE = {
    "type": "string",
    "connect.parameters": {
        "__debezium.source.column.type": "NUMERIC",
        "__debezium.source.column.length": "10",
        "__debezium.source.column.scale": "2",
    },
}


def _envelope(fields: list[dict[str, object]]) -> dict[str, object]:
    row = {"type": "record", "name": "Value", "fields": fields}
    return {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", row], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
        ],
    }


ENVELOPE = _envelope(_FIELDS)
PRICED = _envelope([*_FIELDS, {"name": "price", "type": ["null", _PRICE], "default": None}])
KEY = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "long"}, {"name": "part", "type": "string"}],
}
_ENVELOPES = {1: fastavro.parse_schema(ENVELOPE), 3: fastavro.parse_schema(PRICED)}
_KEY = fastavro.parse_schema(KEY)

Row = tuple[int, str, str | None, int | None]
State = dict[tuple[int, str], Row]


@dataclass(frozen=True, slots=True)
class Done:
    """One change: operation letter and key; `name` None leaves the name as it was (TOAST).

    `price` is a numeric(10, 2) as the connector spells it, of changes that are `priced`.
    """

    op: str
    id: int = 0
    part: str = "a"
    name: str | None = ""
    size: int | None = None
    price: str | None = None


def registry() -> MemoryRegistry:
    """A registry that knows the schemas: the envelope as 1, the key as 2, with a price as 3."""
    made = MemoryRegistry()
    assert made.register("items-value", json.dumps(ENVELOPE)) == 1
    assert made.register("items-key", json.dumps(KEY)) == 2
    assert made.register("items-priced", json.dumps(PRICED)) == 3
    return made


def changes(done: Sequence[Done], *, first: int, priced: bool = False) -> pa.Table:
    """Lay changes out as log rows; `first` is the commit order of the first of them."""
    rows = [_row(change, first + i, 3 if priced else 1) for i, change in enumerate(done)]
    return pa.Table.from_pylist(rows, schema=CHANGES)


def apply(state: State, done: Sequence[Done]) -> State:
    """Fold changes as PostgreSQL would have."""
    after = dict(state)
    for change in done:
        key = (change.id, change.part)
        match change.op:
            case "t":
                after.clear()
            case "d":
                after.pop(key, None)
            case _:
                name = change.name
                if name is None:
                    name = after[key][2] if key in after else None
                after[key] = (change.id, change.part, name, change.size)
    return after


def state_of(table: pa.Table | None) -> State:
    """Read a `current` table into the oracle's form."""
    if table is None:
        return {}
    rows = table.select(["id", "part", "name", "size"]).to_pylist()
    found = {(r["id"], r["part"]): (r["id"], r["part"], r["name"], r["size"]) for r in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def _row(change: Done, order: int, schema_id: int) -> dict[str, object]:
    after = None
    if change.op not in ("d", "t"):
        name = PLACEHOLDER if change.name is None else change.name
        after = {"id": change.id, "part": change.part, "name": name, "size": change.size}
        after |= {"price": change.price} if schema_id == 3 else {}
    envelope = {"before": None, "after": after, "op": change.op}
    key = {"id": change.id, "part": change.part}
    keyed = change.op != "t"
    return {
        "table": TABLE,
        "operation": change.op,
        "transaction_id": str(order),
        "lsn": order,
        "commit_order": order,
        "total_order": 1,
        "snapshot": False,
        "committed_at": AT,
        "event_time": AT,
        "schema_id": schema_id,
        "key_schema_id": 2 if keyed else None,
        "key": _framed(2, _KEY, key) if keyed else None,
        "value": _framed(schema_id, _ENVELOPES[schema_id], envelope),
        "topic": "shop.public.items",
        "partition": 0,
        "offset": order,
        "ingested_at": AT,
        "closed_late": False,
    }


def _framed(schema_id: int, schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return frame(schema_id, out.getvalue())
