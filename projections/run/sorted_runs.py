"""Rows of an operator that are many: sorted by a hash of their keys, in files beside its database.

A round needs the rows of few keys, and DuckDB would look at every row there is for them: what a
round costs would grow with history. Here the places of a hash are found by halving, and only pages
of the files on which such rows lie are read.

A run is written once, and never changed: rows that came are a run of their own, and runs of about
one size are made one. So of n rows there are about log(n) runs, and each row is written as often.
A file has no name: it ends with the process, whatever ends that, and with its last reader.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kernel.errors import BeyondThisProcess
from lake.spill_folders import spill_folder
from projections.run.database import Database, beside_memory, next_batch
from projections.run.key_parts import KeyPart, by_parts

MOST_RUNS = 8
"""So many runs of about one size are made one."""
BATCH_ROWS = 122_880
"""So many rows of a run are written, and looked through, together."""
_HASH = "__hash"
_Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a run that lie together, in the order of their hashes."""

    rows: pa.RecordBatch
    hashes: _Hashes

    def near(self, sought: _Hashes) -> pa.RecordBatch | None:
        """Return the rows that have one of some hashes, which are in order; None for none."""
        first, last = np.searchsorted(sought, self.hashes[[0, -1]])
        own = sought[first : last + 1]
        begins = np.searchsorted(self.hashes, own, "left")
        counts = np.searchsorted(self.hashes, own, "right") - begins
        total = int(counts.sum())
        if not total:
            return None
        # Of each hash its rows lie one behind the other, from where it begins.
        before = np.cumsum(counts) - counts
        places = np.repeat(begins - before, counts) + np.arange(total)
        return self.rows.take(pa.array(places))

    def of(self, part: KeyPart) -> pa.RecordBatch:
        """Return the rows whose hashes are those of a part of the keys."""
        first, last = np.array(part.hashes, np.uint64)
        begin = int(np.searchsorted(self.hashes, first, "left"))
        end = int(np.searchsorted(self.hashes, last, "right"))
        return self.rows.slice(begin, end - begin)


@dataclass(frozen=True, slots=True)
class _Run:
    """Rows that were sorted together, how many these are and how much their file takes."""

    parts: Sequence[_Part]
    rows: int
    size_bytes: int


class SortedRuns:
    """The runs of one table, which give their rows as a view of its database. For one thread."""

    def __init__(self, database: Database, view: str, columns: str, keys: str) -> None:
        """`columns` are all those of the rows, `keys` those that they are found by, as SQL."""
        self._database = database
        self._view = view
        self._columns = columns
        self._keys = keys
        self._runs: list[_Run] = []

    @property
    def rows(self) -> str:
        """The query for the rows that were found last."""
        return f"SELECT {self._columns} FROM {self._view}"

    @property
    def count(self) -> int:
        """How many rows there are in all runs."""
        return sum(run.rows for run in self._runs)

    def add(self, rows: str, count: int, settled: Callable[[str], str]) -> None:
        """Make a run of the rows of a query, which gives about `count`.

        `settled` writes which of several rows are left, where some came and went.
        """
        self._runs += self._written(rows, count, as_they_are)
        self._found([])
        while self._crowded():
            self._put_together(self._runs[-MOST_RUNS:], self.rows, 0, settled)

    def settle(self, rows: str, count: int, settled: Callable[[str], str]) -> None:
        """Make one run of all, and of the rows of a query, which gives about `count`."""
        both = f"{rows} UNION ALL {self.rows}" if self._runs else rows
        self._put_together([*self._runs], both, count, settled)

    def find(self, keys: str, *, all_rows: bool, most_bytes: int | None = None) -> None:
        """Have the view give the rows whose keys a query gives, and perhaps some others.

        `all_rows`: what it gives are values of other types, so that hashes tell nothing. Raises
        `BeyondThisProcess` for rows that take more than `most_bytes`, before all are in memory.
        """
        if all_rows:
            self._found(part.rows for run in self._runs for part in run.parts)
            return
        hashes = self._database.kept.rows(f"SELECT DISTINCT {keys}")
        sought = np.sort(hashes.column(0).to_numpy())
        near = (part.near(sought) for run in self._runs for part in run.parts)
        found = (rows for rows in near if rows is not None)
        self._found(found if most_bytes is None else _bounded(found, most_bytes))

    def _crowded(self) -> bool:
        """Say whether the last runs are many, and none of them is of another size."""
        last = self._runs[-MOST_RUNS:]
        return len(last) == MOST_RUNS and last[0].rows < MOST_RUNS * last[-1].rows

    def _put_together(
        self, runs: Sequence[_Run], rows: str, more: int, settled: Callable[[str], str]
    ) -> None:
        """Make one run of the last ones, which `rows` reads from the view, and of `more` rows."""
        count = more + sum(run.rows for run in runs)
        made = self._written(rows, count, settled, runs)
        self._found([])
        self._database.beside_bytes -= sum(run.size_bytes for run in runs)
        self._runs[len(self._runs) - len(runs) :] = made

    def _found(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Have the view give rows."""
        if not self._runs:
            return
        shape = self._runs[0].parts[0].rows.schema
        self._database.views.put(self._view, pa.Table.from_batches([*rows], shape))

    def _written(
        self, rows: str, count: int, settled: Callable[[str], str], runs: Sequence[_Run] = ()
    ) -> list[_Run]:
        """Return the run of about `count` rows of a query; none where it gives none.

        `runs` are those that the query reads from the view.
        """

        def of(part: KeyPart) -> pa.RecordBatchReader:
            if runs:
                self._found(each.of(part) for run in runs for each in run.parts)
            return self._sorted(settled(f"FROM ({rows}) AS r{part.where(self._keys)}"))

        with beside_memory():
            mapped = by_parts(count, lambda parts: self._filed(map(of, parts)))
        stored = pa.ipc.open_file(mapped)
        batches = [stored.get_batch(place) for place in range(stored.num_record_batches)]
        parts = [
            _Part(batch.drop_columns([_HASH]), batch.column(_HASH).to_numpy())
            for batch in batches
            if batch.num_rows
        ]
        if not parts:
            return []
        self._database.beside_bytes += mapped.size
        return [_Run(parts, sum(part.rows.num_rows for part in parts), mapped.size)]

    def _sorted(self, rows: str) -> pa.RecordBatchReader:
        text = (
            f"SELECT {self._columns}, hash({self._keys}) AS {_HASH} FROM ({rows}) AS r "
            f"ORDER BY {_HASH}"
        )
        return self._database.connection.sql(text).to_arrow_reader(BATCH_ROWS)

    def _filed(self, readers: Iterator[pa.RecordBatchReader]) -> pa.Buffer:
        """Write what queries give, one after the other, to a file without a name; return it."""
        with tempfile.TemporaryFile(dir=spill_folder()) as file:
            reader = next(readers)
            with pa.ipc.new_file(file, reader.schema) as writer:
                for each in chain([reader], readers):
                    while (batch := next_batch(each)) is not None:
                        writer.write_batch(batch)
            file.flush()
            # Of the module `mmap` each run would hold a descriptor, and there may be thousands.
            with pa.memory_map(f"/dev/fd/{file.fileno()}") as mapping:
                return mapping.read_buffer()


def as_they_are(rows: str) -> str:
    """Write rows of which none takes another one back."""
    return rows


def _bounded(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    taken = 0
    for rows in batches:
        taken += rows.nbytes
        if taken > most_bytes:
            raise BeyondThisProcess("a run needs more rows of an input than this process may hold")
        yield rows
