"""A `current` table as base plus tail, as Arrow tables: newest image wins.

The base has every epoch up to its guard's, the tail every later one. `tail` tells who writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from lake.datasets import dataset_of, scanner_of
from lake.key_places import last_per_key, with_one_zero
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import OP, UPSERT

EPOCH, KEYS = "__epoch", "__keys"
FOLDER = "current/_tail/"


def tail_name(name: str) -> str:
    """Name the tail of a `current` table: `current/_tail/shop.public.orders`."""
    return FOLDER + name.removeprefix("current/")


def newest_of(tail: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the newest image per key of a tail table's rows, with `__op`, and the key columns."""
    if tail.num_rows == 0:
        return tail.drop_columns([EPOCH, KEYS]), ()
    keys = keys_of(tail)
    parts = [
        (epoch, tail.filter(pc.equal(tail[EPOCH], epoch)).drop_columns([EPOCH, KEYS]))
        for epoch in sorted(pc.unique(tail[EPOCH]).to_pylist())
    ]
    newest = newest_image(parts, keys)
    assert newest is not None
    return newest, keys


def whole(base: pa.Table | None, newest: pa.Table | None, keys: Sequence[str]) -> pa.Table | None:
    """Lay newest images (with `__op`, one per key) over base rows; deleted keys are gone."""
    if base is None or newest is None or newest.num_rows == 0:
        return base
    names = list(keys)
    touched = newest.select(names).cast(pa.schema([base.schema.field(k) for k in names]))
    kept = base.take(_untouched(with_one_zero(base.select(names)), with_one_zero(touched)))
    added = newest.filter(pc.equal(newest[OP], UPSERT)).drop_columns([OP])
    return pa.concat_tables([kept, added], promote_options="permissive")


def read_whole(
    lake: Lake,
    tables: Tables,
    name: str,
    *,
    at: Mapping[str, TableAt] | None = None,
    where: pc.Expression | None = None,
) -> pa.Table | None:
    """Read a `current` table with its tail, at the versions that `at` names, or the newest.

    `where` must be about key columns: it is applied to both parts.
    """
    if at is not None and name not in at:
        return None
    versions = {} if at is None else {n: t.version for n, t in at.items()}
    tail_at = tail_name(name)
    tail = None
    if at is None or tail_at in versions:
        # The tail first: a base that moves on meanwhile only has more of its rows.
        tail = tables.read(lake.path(tail_at), where=where, version=versions.get(tail_at))
    path, version = lake.path(name), versions.get(name)
    if tail is None or tables.open(path) is None:
        return tables.read(path, where=where, version=version)
    # A handle of its own: rows and epoch must be of one version.
    handle = DeltaTable(path, version=version)
    base = scanner_of(dataset_of(handle), where).to_table()
    return whole(base, *newest_of(beyond(tail, handle, name)))


def beyond(tail: pa.Table, base: DeltaTable, name: str) -> pa.Table:
    """Return the rows of a tail that its base does not have: those of later epochs.

    Older ones change nothing, unless the base was mended since.
    """
    done = base.transaction_version(name) or 0
    return tail.filter(pc.greater(tail[EPOCH], done))


def _untouched(base: pa.Table, touched: pa.Table) -> pa.Array:
    """Return the places of base rows whose key is not among `touched`; a null equals a null."""
    if touched.num_columns == 1:
        hit = pc.is_in(base.column(0), value_set=touched.column(0).combine_chunks())
        return pc.indices_nonzero(pc.invert(hit))
    numbered = base.append_column("__row", pa.array(np.arange(base.num_rows)))
    marks = touched.append_column("__hit", pa.array([True] * touched.num_rows))
    joined = numbered.join(marks, touched.column_names, join_type="left outer")
    return joined.filter(pc.is_null(joined["__hit"]))["__row"].combine_chunks().sort()


def newest_image(parts: Sequence[tuple[int, pa.Table]], keys: tuple[str, ...]) -> pa.Table | None:
    """Return the newest image per key of epochs' images, in ascending order; None for none."""
    if not parts:
        return None
    rows = pa.concat_tables([part for _, part in parts], promote_options="permissive")
    return rows if len(parts) == 1 else last_per_key(rows, keys)


def marked(rows: pa.Table, keys: Sequence[str], epoch: int) -> pa.Table:
    """Add the columns by which a tail table knows the epoch and the key columns of its rows."""
    n = rows.num_rows
    rows = rows.append_column(EPOCH, pa.repeat(pa.scalar(epoch, pa.int64()), n))
    return rows.append_column(KEYS, pa.repeat(pa.scalar(json.dumps(list(keys))), n))


def keys_of(tail: pa.Table) -> tuple[str, ...]:
    """Return the key columns that the newest rows of a tail table name."""
    newest = tail.filter(pc.equal(tail[EPOCH], pc.max(tail[EPOCH])))
    return tuple(json.loads(newest[KEYS][0].as_py()))
