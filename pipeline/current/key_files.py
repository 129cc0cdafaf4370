"""Rows in files of the local disk by the hash of their key: what does not fit into memory at once.

Whoever joins two large sets of rows lays both into such files, and then joins file by file. The
hash of a key is the same in every process, so that several may each take some of the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

MOST_FILES = 128
"""Files that are open at the same moment, of each side."""
SHARES = 2
"""Into so many shares large sets of rows are cut: each reads all rows, and takes those of its keys.
"""
_SPREAD = np.uint64(31)
_NULL = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The keys of every `of`-th hash, from the one of `number` on: what one of several takes."""

    number: int = 0
    of: int = 1

    def taken(self, rows: pa.Table, hashes: Hashes) -> tuple[pa.Table, Hashes]:
        """Return those rows whose keys are of this share, and their hashes within it."""
        if self.of == 1:
            return rows, hashes
        own = np.flatnonzero(hashes % np.uint64(self.of) == self.number)
        return rows.take(pa.array(own)), hashes[own] // np.uint64(self.of)


class KeyFiles:
    """Rows in files by number. Those of one file come back in the order given.

    `rows` and `bytes` are how many each file has by now, the bytes as they are in memory.
    """

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._count = count
        self.rows = [0] * count
        self.bytes = [0] * count
        self._open: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        self._closing = ExitStack()

    def __enter__(self) -> KeyFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def add(self, rows: pa.Table, hashes: Hashes) -> None:
        """Write rows, each to the file of its hash; all calls with rows of the same columns."""
        places = hashes % np.uint64(self._count)
        order = np.argsort(places, kind="stable")
        ends = np.searchsorted(places[order], np.arange(self._count + 1))
        sorted_rows = rows.take(pa.array(order)).combine_chunks()
        for number in range(self._count):
            first, end = int(ends[number]), int(ends[number + 1])
            if first < end:
                own = sorted_rows.slice(first, end - first)
                self._writer(number, rows.schema).write_table(own)
                self.rows[number] += own.num_rows
                self.bytes[number] += own.nbytes

    def read(self, *numbers: int) -> pa.Table | None:
        """Return the rows of some files; None where there are none."""
        batches = [batch for number in numbers for batch in self.batches(number)]
        return pa.Table.from_batches(batches) if batches else None

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        path = self._folder / str(number)
        if path.exists():
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                yield from reader

    def _writer(self, number: int, schema: pa.Schema) -> pa.ipc.RecordBatchStreamWriter:
        if number not in self._open:
            file = self._closing.enter_context(pa.OSFile(str(self._folder / str(number)), "wb"))
            made = self._closing.enter_context(pa.ipc.new_stream(file, schema))
            self._open[number] = made
        return self._open[number]


def hashes_of(keys: pa.Table) -> Hashes:
    """Return a number per key: the same for equal keys of the same types, in every process."""
    found = np.zeros(keys.num_rows, np.uint64)
    for column in keys.columns:
        found = _mixed(found * _SPREAD + _hashes(column))
    return found


def _hashes(column: pa.ChunkedArray) -> Hashes:
    kind = column.type
    if pa.types.is_integer(kind):
        # The hash of a number is the same whether or not a null stands beside it.
        whole = column.cast(pa.int64(), safe=False)
        numbers: Hashes = whole.fill_null(0).to_numpy().view(np.uint64)
        missing = column.is_null().to_numpy()
        return np.where(missing, _NULL, numbers) if column.null_count else numbers
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = column.cast(pa.binary()).fill_null(b"").to_pylist()
    else:
        # Zero has two signs, and both are the same key.
        plain = pc.add(column, 0.0) if pa.types.is_floating(kind) else column
        values = [repr(value).encode() for value in plain.to_pylist()]
    return np.fromiter(map(crc32, values), np.uint64, len(column))


def _mixed(numbers: Hashes) -> Hashes:
    """Spread numbers over all bits: the remainder of a division chooses the file."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
