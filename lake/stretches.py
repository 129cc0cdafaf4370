"""Rows of a table by their places: long stretches of them as they lie, without a copy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

LONG = 512
"""Fewer rows in a stretch are copied: a piece of a table costs as much as hundreds of rows."""


def rows_at(table: pa.Table, places: npt.ArrayLike) -> pa.Table:
    """Return the rows of a table at some places, in the order of these.

    What is returned holds on to the memory of the whole table.
    """
    at = np.asarray(places, np.int64)
    breaks = np.flatnonzero(np.diff(at) != 1) + 1
    bounds = np.concatenate([[0], breaks, [len(at)]])
    parts: list[pa.Table] = []
    done = 0
    for which in np.flatnonzero(np.diff(bounds) >= LONG).tolist():
        first, last = int(bounds[which]), int(bounds[which + 1])
        if first > done:
            parts.append(table.take(pa.array(at[done:first])))
        parts.append(table.slice(int(at[first]), last - first))
        done = last
    if done < len(at) or not parts:
        parts.append(table.take(pa.array(at[done:])))
    return pa.concat_tables(parts)


def in_order(records: pa.Table) -> pa.Table:
    """Return rows of records by `topic`, `partition` and `offset`, none of which is null.

    What was read partition by partition comes in long stretches: these are put in order.
    """
    if records.num_rows == 0:
        return records
    topics = records["topic"].combine_chunks().dictionary_encode()
    ranks = np.empty(len(topics.dictionary), np.int64)
    ranks[pc.sort_indices(topics.dictionary).to_numpy()] = np.arange(len(ranks))
    partitions, offsets = records["partition"].to_numpy(), records["offset"].to_numpy()
    places = (ranks[topics.indices.to_numpy()] << 32) + partitions
    rises = np.diff(places)
    if not ((rises < 0) | ((rises == 0) & (np.diff(offsets) < 0))).any():
        return records
    return rows_at(records, np.lexsort((offsets, places)))
