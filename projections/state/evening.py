"""Chunks of one table that were read at different places in the stream, brought to one.

A copy that was cut short goes on in a new snapshot: its first chunks are as of L1, the others as of
L2. For each key only the transactions that ended after its own chunk was read are folded; then all
rows are as of the last L. What cannot be told apart that way is `Declined`, and the table is read
again from its beginning: a TRUNCATE or DDL in between, and a key that moved with values unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from projections.log.committed import Ends, Slice
from projections.state.installing import Declined, Installer, generation_root
from projections.state.installs import Install
from schemas.columns import decode_rows
from schemas.key_ranges import KeyColumn, KeyRange, joined, lake_filter
from schemas.records import Operation
from schemas.registry import SchemaLookup

_END, _ROW = "__end", "__row"


def even_out(
    installer: Installer,
    install: Install,
    *,
    key: Sequence[KeyColumn],
    ranges: Sequence[KeyRange],
    first_epoch: int,
    last_epoch: int,
) -> Install:
    """Bring an install's generation to the last LSN of its chunks; return it as of there.

    The log must have every transaction up to that LSN. `ranges` are those of the chunks, in the
    order of `install.lsns`. Doing it again changes nothing. Raises `Declined`.
    """
    low, high = min(install.lsns), max(install.lsns)
    if low == high:
        return replace(install, lsn=high)
    ends = Ends(after=low, up_to=high, first_epoch=first_epoch, last_epoch=last_epoch)
    read_at = [
        (lsn, joined([r for r, at in zip(ranges, install.lsns, strict=True) if at == lsn]))
        for lsn in sorted(set(install.lsns))
    ]
    installer.catch_up(
        install,
        ends,
        whole=False,
        only=lambda slice_: _newer(slice_, install.table, read_at, key, installer.schemas),
    )
    built = installer.tables.open(generation_root(installer.lake, install))
    assert built is not None, "rows were folded into it"
    return replace(install, lsn=high, version=int(built.version()))


def _newer(
    slice_: Slice,
    table: str,
    read_at: Sequence[tuple[int, Sequence[KeyRange]]],
    key: Sequence[KeyColumn],
    schemas: SchemaLookup,
) -> pa.Table:
    """Return the rows of transactions that ended after the chunk of their key was read."""
    rows = slice_.rows[table]
    if pc.any(pc.equal(rows["operation"], Operation.TRUNCATE.value)).as_py():
        raise Declined(f"{table} was truncated while it was copied")
    ends = pa.array([slice_.ends[tx] for tx in rows["transaction_id"].to_pylist()], pa.int64())
    rows = rows.append_column(_END, ends)
    parts: list[pa.Table] = []
    for schema_id in pc.unique(rows["key_schema_id"]).to_pylist():
        part = rows.filter(pc.equal(rows["key_schema_id"], schema_id))
        keys = decode_rows(part["key"].to_pylist(), schemas.schema(schema_id), "self")
        numbered = keys.append_column(_ROW, pa.array(range(keys.num_rows), pa.int64()))
        for lsn, ranges in read_at:
            for range_ in ranges:
                where = lake_filter(range_, key, keys.schema)
                within = numbered if where is None else numbered.filter(where)
                found = part.take(within[_ROW])
                parts.append(found.filter(pc.greater(found[_END], lsn)))
    if not parts:
        return rows.drop_columns([_END])
    return pa.concat_tables(parts).drop_columns([_END])
