"""Rows of whole files in batches of few bytes, however wide they are."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

BATCH_BYTES = 8 * 2**20
_BATCH_ROWS = 65_536
_PROBE_ROWS = 64


def small_batches(rows: ds.Dataset, where: pc.Expression | None = None) -> Iterator[pa.Table]:
    """Read a dataset of whole files in small batches. A scan of it unpacks whole row groups.

    Files that have no row of `where` are left out; of others all rows come.
    """
    for fragment in rows.get_fragments(where):
        with fragment.open() as source:
            for batch in pq.ParquetFile(source).iter_batches(_rows_of_a_batch(fragment)):
                yield _in_columns(pa.Table.from_batches([batch]), rows.schema)


def _rows_of_a_batch(fragment: ds.Fragment) -> int:
    """Return how many rows of a file take `BATCH_BYTES`.

    Its first rows tell, where values that repeat are stored once, and what the file unpacks to,
    where rows behind the first are wider.
    """
    with fragment.open() as source:
        file = pq.ParquetFile(source)
        first = next(file.iter_batches(_PROBE_ROWS), None)
        groups = [file.metadata.row_group(n) for n in range(file.metadata.num_row_groups)]
    if first is None or first.num_rows == 0:
        return _BATCH_ROWS
    stored = sum(group.total_byte_size for group in groups) // file.metadata.num_rows
    width = int(max(first.nbytes // first.num_rows, stored, 1))
    return max(1, min(_BATCH_ROWS, BATCH_BYTES // width))


def _in_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows of a file in the columns of its table; those that it lacks are null."""
    known = {*rows.schema.names}
    found = [
        rows[field.name].cast(field.type)
        if field.name in known
        else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.table(found, schema=columns)
