"""Facts of a stream in the order of their keys, where those of few keys are found among many.

A version that changed is looked up by facts of any age, and the rows of a key follow from all facts
of it. In the log facts lie as they came: to find those of some keys, all values of a column are
read. So from the first run on that would look through many, a target has the facts of its stream
once more, in runs that are sorted by a hash of the keys (`sorted_runs`), and each run adds what
came. Disposable: all of it follows from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from kernel.errors import BeyondThisProcess, StorageFull, TooLarge
from kernel.positions import Epoch
from projections.run.database import (
    MEMORY_BYTES,
    ORDER_TYPES,
    Database,
    types_of,
    without_zones,
)
from projections.run.key_parts import PART_ROWS
from projections.run.operator_tables import OperatorTables
from projections.run.regions import same
from projections.sql.operators.tree import Scan

MANY_ROWS = 500_000
"""So many rows of files are looked through; of more the facts of a target are kept by their keys.
"""
PART_BYTES = 64 * 2**20
"""Of so much one part is taken, however few its rows are: those of long texts are large."""
_FACTS, _CAME, _SOUGHT = "facts", "came", "sought"

Read = Callable[[Epoch], Iterable[pa.Table]]
"""Gives the facts that came after an epoch, up to that of the run."""
log = logging.getLogger("penstock.projections")


class KeyedFacts:
    """The facts of one target's streams, by the keys that were asked for. For one thread."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES) -> None:
        """`memory_bytes` are those of DuckDB, for what came last and while rows are sorted."""
        self._memory_bytes = memory_bytes
        self._runs: dict[tuple[str, tuple[str, ...]], _FactRuns | None] = {}

    def reached(self, scan: Scan, by: Sequence[str]) -> Epoch | None:
        """Return up to which epoch the facts are there by some of their columns; 0 for none so far.

        None where they are not found by these: the log is read.
        """
        runs = self._runs.get((scan.view, tuple(by)), Epoch(0))
        return runs.epoch if isinstance(runs, _FactRuns) else runs

    def of(
        self, scan: Scan, keys: pa.Table, up_to: Epoch, read: Read, *, most_bytes: int
    ) -> pa.Table | None:
        """Return the facts up to an epoch that have one of some keys; `read` gives those that came.

        The keys are columns of the scan under its types. None where such values are not told apart
        by a hash, and for good where one run asks for more than `most_bytes`, or there is no room:
        without this the log tells them, if slower.
        """
        by = scan.view, tuple(keys.schema.names)
        known = by in self._runs
        runs = self._runs.pop(by, None)
        if runs is not None and runs.epoch > up_to:
            runs.close()
        if not known or (runs is not None and runs.epoch > up_to):
            runs = _FactRuns(scan, by[1], self._memory_bytes)
        if runs is None or not runs.sorted:
            self._runs[by] = None
            return None
        try:
            runs.add(read(runs.epoch), up_to)
            found = runs.of(keys, most_bytes)
        except BaseException as error:
            # What fails half-way is of no use any more.
            runs.close()
            without = isinstance(error, StorageFull | TooLarge)
            if without or isinstance(error, BeyondThisProcess):
                self._runs[by] = None
            if not without:
                raise
            log.warning("facts of %s are read in the log, not by their keys: %s", scan.name, error)
            return None
        self._runs[by] = runs
        return found

    @property
    def held_bytes(self) -> int:
        """How much the files of all of them take: few rows are in memory beside."""
        return sum(runs.held_bytes for runs in self._runs.values() if runs is not None)

    def close(self) -> None:
        """Give back memory and disk."""
        for runs in self._runs.values():
            if runs is not None:
                runs.close()
        self._runs.clear()


class _FactRuns:
    """Facts by some of their columns, of all epochs up to one."""

    def __init__(self, scan: Scan, by: tuple[str, ...], memory_bytes: int) -> None:
        self._database = Database(memory_bytes=memory_bytes)
        self._tables = OperatorTables(self._database, 0)
        self._by = by
        self.epoch = Epoch(0)
        self._types = types_of(scan.columns) | ORDER_TYPES
        self._database.make(_CAME, self._types)
        self._tables.stored(_FACTS, f"FROM {_CAME}", by)
        self.sorted = self._tables.is_sorted(_FACTS)

    def add(self, rows: Iterable[pa.Table], up_to: Epoch) -> None:
        """Take the facts that came, up to an epoch: of many a part at a time, which is sorted."""
        parts: list[pa.Table] = []
        count = size = 0
        with self._database.within_memory():
            for part in rows:
                parts.append(part)
                count, size = count + part.num_rows, size + part.nbytes
                if count >= PART_ROWS or size >= PART_BYTES:
                    self._take(parts)
                    # What was emptied DuckDB holds until a checkpoint, and of a table of its own
                    # for good.
                    self._database.make(_CAME, self._types)
                    self._database.connection.execute("CHECKPOINT")
                    parts, count, size = [], 0, 0
            if self._take(parts):
                self._database.kept.execute(f"TRUNCATE {_CAME}")
        self.epoch = up_to

    def _take(self, rows: Sequence[pa.Table]) -> bool:
        """Take some facts; say whether there are any."""
        if not self._database.insert(_CAME, rows):
            return False
        self._tables.add(_FACTS, f"FROM {_CAME}")
        self._tables.compact(_FACTS)
        return True

    def of(self, keys: pa.Table, most_bytes: int) -> pa.Table:
        """Return the facts that have one of some keys."""
        self._database.views.put(_SOUGHT, without_zones(keys))
        near = self._tables.near(_FACTS, f"FROM {_SOUGHT}", self._by, most_bytes=most_bytes)
        equal = same(self._by, "x", "k")
        try:
            with self._database.within_memory():
                return self._database.kept.rows(
                    f"SELECT x.* FROM {near} AS x SEMI JOIN {_SOUGHT} AS k ON {equal}"
                )
        finally:
            # There may be many targets, each of which asks now and then.
            self._database.views.empty_all()

    @property
    def held_bytes(self) -> int:
        return self._database.beside_bytes

    def close(self) -> None:
        self._database.close()
