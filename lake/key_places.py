"""Where rows of one table have their keys in another one: nulls are keys like any other.

Arrow joins tables by keys too, but not a null with a null, and takes a millisecond to begin.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

NOWHERE = -1


def places_of(rows: pa.Table, among: pa.Table) -> npt.NDArray[np.int64] | None:
    """Return for each of `rows` the place in `among` that has its key; `NOWHERE` for none.

    Both have the key columns alone, in one order and of the same types. None where `among` has a
    key twice, or two of `rows` have one that `among` has.
    """
    codes = _codes(
        [
            pa.chunked_array([*one.chunks, *two.chunks], one.type)
            for one, two in zip(rows.columns, among.columns, strict=True)
        ]
    )
    own, other = codes[: rows.num_rows], codes[rows.num_rows :]
    if len(other) == 0:
        return np.full(len(own), NOWHERE, np.int64)
    order = np.argsort(other, kind="stable")
    if bool((np.diff(other[order]) == 0).any()):
        return None
    at = np.minimum(np.searchsorted(other, own, sorter=order), len(other) - 1)
    found = order[at]
    places = np.where(other[found] == own, found, NOWHERE)
    met = places[places != NOWHERE]
    return None if len(np.unique(met)) < len(met) else places


def _codes(columns: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.int64]:
    """Number rows so that two have one number if they are the same in all columns."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
        one = values.chunk(0) if isinstance(values, pa.ChunkedArray) else values
        mixed = codes * len(one.dictionary) + one.indices.to_numpy(zero_copy_only=False)
        # Dense again, so that further columns never make a number too large.
        codes = np.unique(mixed, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return codes


def with_one_zero(keys: pa.Table) -> pa.Table:
    """Return keys without the sign of a zero: both signs are one key, to Arrow they are two."""
    columns = [
        pc.add(column, pa.scalar(0, column.type)) if pa.types.is_floating(column.type) else column
        for column in keys.columns
    ]
    return pa.table(columns, names=keys.schema.names)


def last_per_key(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the last row of each key of rows that are in order, whatever the sign of a zero."""
    plain = with_one_zero(rows.select(list(keys)))
    numbered = plain.append_column("__row", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(keys)).aggregate([("__row", "max")])
    if last.num_rows == rows.num_rows:
        return rows
    return rows.take(last["__row_max"].combine_chunks().sort())


def last_of_zeros(rows: pa.Table, keys: Sequence[str], wins: pa.ChunkedArray) -> pa.Table:
    """Return rows of which no two have keys that differ by the sign of a zero alone.

    A MERGE would find one row twice. Of such rows the one stays that `wins` names, else the last.
    """
    if not any(pa.types.is_floating(rows.schema.field(key).type) for key in keys):
        return rows
    plain = with_one_zero(rows.select(list(keys)))
    ranks = np.arange(rows.num_rows) + rows.num_rows * wins.to_numpy()
    ranked = plain.rename_columns([*map(str, range(len(keys)))]).append_column("n", pa.array(ranks))
    last = ranked.group_by(ranked.schema.names[:-1]).aggregate([("n", "max")])["n_max"]
    return rows.take(pa.array(np.sort(last.to_numpy() % max(rows.num_rows, 1))))
