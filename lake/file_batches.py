"""Rows of whole files in batches of few bytes, however wide they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from lake.datasets import in_columns

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
                yield in_columns(pa.Table.from_batches([batch]), rows.schema)


def unpacked(files: Iterable[ds.Fragment]) -> tuple[int, int]:
    """Return how many rows some files have, and how many bytes these unpack to.

    Their size on disk does not tell it: a text that repeats itself packs to a hundredth.
    """
    rows = size = 0
    for group in (group for file in files for group in file.row_groups):
        rows, size = rows + group.num_rows, size + group.total_byte_size
    return rows, size


def _rows_of_a_batch(fragment: ds.Fragment) -> int:
    """Return how many rows of a file take `BATCH_BYTES`.

    Its first rows tell, where values that repeat are stored once, and what the file unpacks to,
    where rows behind the first are wider.
    """
    with fragment.open() as source:
        first = next(pq.ParquetFile(source).iter_batches(_PROBE_ROWS), None)
    if first is None or first.num_rows == 0:
        return _BATCH_ROWS
    rows, stored = unpacked([fragment])
    width = int(max(first.nbytes // first.num_rows, stored // rows, 1))
    return max(1, min(_BATCH_ROWS, BATCH_BYTES // width))
