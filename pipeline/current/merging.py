"""Merges rows into the base of a `current` table: in this process, or in one beside it.

A merge of random keys costs a third to two thirds of a second of a core per million rows, whatever
their number. Done in threads of ingest's own process it takes that time from the epochs, which
readers by name wait for. `MergeBeside` therefore hands it to a child of low priority, which gets
what is left, and which keeps the rows of its bases from one merge to the next (`kept`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from deltalake import DeltaTable

from kernel.positions import DeltaVersion
from lake.child_processes import Child
from lake.file_actions import size_of
from lake.row_bytes import packed, unpacked
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard, reached
from pipeline.current.warm_bases import WRITTEN_AS, KeptBases


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBase:
    """A base after a merge: its Delta version, how many rows it has, and how many bytes."""

    version: int
    rows: int
    size: int


class BaseMerge(Protocol):
    """Merges the newest image per key (with `__op`) into the table at a path, under a guard."""

    def __call__(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> MergedBase:
        """Return the base after the merge. Raises as `TableWriter.merge` does."""
        ...

    def hurry(self) -> None:
        """Give up the merge that another thread is at, which may raise `Unavailable`."""
        ...

    def close(self) -> None:
        """Let go of what the merge holds; nobody calls it at that moment."""
        ...


class MergeHere:
    """Merges in the calling thread, with table handles of its own unless it is given some.

    Safe for several threads, each with a path of its own.
    """

    def __init__(self, *, tables: Tables | None = None) -> None:
        self._tables = tables or Tables()
        self._writer = ArrowWriter(self._tables)

    def __call__(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> MergedBase:
        """See `BaseMerge`."""
        version = self.merge(path, rows, guard, keys)
        table = self._tables.open(path)
        assert table is not None, "it was just merged into"
        count, size = size_of(table)
        return MergedBase(version=version, rows=count, size=size)

    def merge(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> DeltaVersion:
        """Merge, and return the version alone: how large the base is takes a look at its files."""
        return self._writer.merge(path, rows, guard, keys=keys)

    def hurry(self) -> None:
        """A merge here has the caller's own priority."""

    def close(self) -> None:
        """Nothing outlives the process."""


class MergeKept(MergeHere):
    """Keeps the rows of bases for the next merge, which then need not be read.

    Where that does not suit a base, deltalake merges into it (`warm_bases`).
    """

    def __init__(self, kept: KeptBases | None = None, *, tables: Tables | None = None) -> None:
        super().__init__(tables=tables)
        self._kept = kept or KeptBases()

    def merge(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> DeltaVersion:
        """Merge, and return the version alone."""
        table = self._tables.open(path)
        merged = None
        if table is not None and not self.reached(path, table, guard):
            merged = self._kept.merged(path, table, rows, keys)
        if table is None or merged is None or merged.num_rows == 0:
            return super().merge(path, rows, guard, keys)
        before = table.version()
        self._kept.forget(path)
        version = self._writer.replace(table, merged, guard, WRITTEN_AS)
        if version == before + 1:  # Else somebody's commit lies between.
            self._kept.keep(path, version, merged, epoch=int(guard.epoch))
        return version

    def reached(self, path: str, table: DeltaTable, guard: Guard) -> bool:
        """Say whether a base has a guard's epoch, as `writer.reached` does.

        Of a version that a merge here made that is known; from the table it takes a look at its
        log, which is dear where many small tables have a change in every epoch.
        """
        epoch = self._kept.epoch_at(path, table.version())
        return reached(table, guard) if epoch is None else epoch >= guard.epoch

    def in_memory(self, path: str, table: DeltaTable) -> int | None:
        """Return how many bytes the rows of a base take in memory; None where they are not kept."""
        return self._kept.bytes_at(path, table.version())


class MergeBeside:
    """Merges in a child process of low priority, one merge after the other.

    The child starts with the first merge, and anew after one that it did not survive. Safe for
    several threads.
    """

    def __init__(self) -> None:
        self._child = Child(_merging)

    def __call__(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> MergedBase:
        """See `BaseMerge`. Raises `Unavailable` as well when the child ends amid the merge."""
        merged: MergedBase = self._child.ask(path, packed(rows), guard, [*keys])
        return merged

    def hurry(self) -> None:
        """Kill the child: its guard says whether the merge was committed."""
        self._child.kill()

    def close(self) -> None:
        """End the child."""
        self._child.close()


def _merging() -> Callable[[str, pa.Buffer, Guard, Sequence[str]], MergedBase]:
    """Return what merges in a child, which keeps the rows of bases."""
    merge = MergeKept()
    return lambda path, rows, guard, keys: merge(path, unpacked(rows), guard, keys)
