"""Log rows of a captured table to typed row images, in the source's order.

One frame per table: the table's columns from the after-image (for a delete, the key columns only),
plus `__op` (upsert or delete), `__hi`, `__lo` (order), `__event_time`. Rows whose bytes were
written with different schemas are brought under one set of columns by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lake.key_places import last_per_key
from lake.writer import DELETE, OP, UPSERT
from pipeline.ddl.steps import NOTHING, Evolution
from pipeline.ddl.unchanged_values import UNCHANGED, Stored, fill_unchanged
from pipeline.order import high_of, low_of
from schemas.columns import decode_keys, decode_rows, key_columns
from schemas.records import Operation
from schemas.registry import SchemaLookup

HI, LO, EVENT_TIME, COMMITTED_AT = "__hi", "__lo", "__event_time", "__committed_at"
HIDDEN = (OP, HI, LO, EVENT_TIME, COMMITTED_AT)


def row_images(
    changes: pa.Table,
    schemas: SchemaLookup,
    *,
    stored: Stored,
    carry: Mapping[str, str] | None = None,
    evolution: Evolution = NOTHING,
) -> tuple[pa.Table, tuple[str, ...]]:
    """Decode log rows (insert, update, delete, read) of one table.

    `stored` finds the last known rows of keys with unchanged TOAST values. `carry` names further
    log columns to take along, and how to call them. `evolution` brings rows to the last columns.
    Rows without a key (`key_schema_id` null) are facts that no table can be kept from: a delete
    among them has its image from before.
    Returns the frame, ascending by (`__hi`, `__lo`), and the names of the key columns.
    """
    keys: tuple[str, ...] = ()
    parts: list[pa.Table] = []
    for schema_id, key_schema_id, part in _by_schemas(changes):
        key_schema = None if key_schema_id is None else schemas.schema(key_schema_id)
        keys = keys if key_schema is None else key_columns(key_schema)
        images = _images(part, schemas.schema(schema_id), key_schema, keys)
        for column, name in (carry or {}).items():
            images = images.append_column(name, part[column])
        if evolution:
            first = min(zip(images[HI].to_pylist(), images[LO].to_pylist(), strict=True))
            keys = evolution.names_after(keys, first)
            images = evolution.carried(images, HI, LO)
        parts.append(images)
    frame = pa.concat_tables(parts, promote_options="permissive")
    frame = _ascending(frame)
    if not keys:
        return frame.select([n for n in frame.schema.names if n != UNCHANGED]), keys
    frame = frame.append_column("__deleted", pc.equal(frame[OP], DELETE))
    return fill_unchanged(frame, keys, stored), keys


def _ascending(frame: pa.Table) -> pa.Table:
    """Return rows by (`__hi`, `__lo`): those of one partition mostly come so."""
    high, low = (np.diff(frame[name].to_numpy()) for name in (HI, LO))
    if not ((high < 0) | ((high == 0) & (low < 0))).any():
        return frame
    return frame.sort_by([(HI, "ascending"), (LO, "ascending")])


def _by_schemas(changes: pa.Table) -> Iterator[tuple[int, int | None, pa.Table]]:
    """Yield the rows of each schema and key schema: mostly there is one of each."""
    names = ["schema_id", "key_schema_id"]
    if changes.num_rows and all(_is_one(changes[name]) for name in names):
        yield changes["schema_id"][0].as_py(), changes["key_schema_id"][0].as_py(), changes
        return
    for group in changes.select(names).group_by(names).aggregate([]).to_pylist():
        part = changes.filter(pc.equal(changes["schema_id"], group["schema_id"]))
        if group["key_schema_id"] is None:
            part = part.filter(pc.is_null(part["key_schema_id"]))
        else:
            part = part.filter(pc.equal(part["key_schema_id"], group["key_schema_id"]))
        yield group["schema_id"], group["key_schema_id"], part


def _is_one(column: pa.ChunkedArray) -> bool:
    """Say whether all rows have one value, which is not null."""
    bounds = pc.min_max(column).as_py()
    return not column.null_count and bounds["min"] == bounds["max"]


def newest_per_key(frame: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Keep the last row of each key of a frame that is in order."""
    return frame if frame.num_rows <= 1 else last_per_key(frame, keys)


def _images(
    part: pa.Table, value_schema: str, key_schema: str | None, keys: tuple[str, ...]
) -> pa.Table:
    after = decode_rows(part["value"].combine_chunks(), value_schema, "after")
    after = after.drop_columns(["__present"])
    if key_schema is None:
        before = decode_rows(part["value"].combine_chunks(), value_schema, "before")
        images = before.select([n for n in after.schema.names if n in before.schema.names])
    else:
        images = decode_keys(part["key"].combine_chunks(), key_schema, value_schema)
    deleted = pc.equal(part["operation"], Operation.DELETE.value)
    for name in images.schema.names:
        # A delete has no after-image; its key comes from the record's own key.
        column = images[name].cast(after.schema.field(name).type)
        column = column if key_schema else pc.if_else(deleted, column, after[name])
        after = after.set_column(after.schema.get_field_index(name), name, column)
    after = after.append_column(OP, pc.if_else(deleted, DELETE, UPSERT))
    after = after.append_column(HI, high_of(part))
    after = after.append_column(LO, low_of(part))
    after = after.append_column(COMMITTED_AT, part["committed_at"])
    return after.append_column(EVENT_TIME, part["event_time"])
