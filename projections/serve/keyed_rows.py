"""The rows of one version of a table, found by key or read page by page in the order of keys.

    files of a version -> Part (rows of one file, and their order by key) -> HeldRows   in memory
                       -> a scan of the files that may have the keys      -> ScannedRows

A new version of a table has most files of the one before: their parts are kept, and only those that
were added are read.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import and_, or_
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.positions import DeltaVersion
from lake.datasets import dataset_at, dataset_of, paths_of, scanner_of, schema_of
from projections.serve.row_values import Key, comparable, place
from projections.serve.versions import readable
from projections.sql.operators.shape import END, ORDER, PARTIAL

HIDDEN = frozenset({"_epoch", "_late", "_time", "_ingested_at", END, *ORDER})
"""Columns that keep a table right: no part of its rows as readers see them."""

MOST_LISTED = 2_000
"""Of files with up to so many rows keys are held as Python compares them."""
_LISTED_BYTES = 120
"""What a value of such a key takes beside its text."""

_Places = tuple[object, ...]


class KeyedRows(Protocol):
    """Rows by key. Order: that of the keys' columns, ascending. No key is there twice."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that readers see."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The key's columns."""
        ...

    def find(self, keys: Sequence[Key]) -> pa.Table:
        """Return the rows of those keys that there are, in no order."""
        ...

    def page(self, after: Key | None, limit: int) -> pa.Table:
        """Return the next rows behind a key, at most so many."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Rows of one file, with the places of its rows in the order of their keys.

    A table that changes has dozens of small files, in any of which a key may be: of these the keys
    are held as Python compares them. Of a large one only the first and the last are.
    """

    rows: pa.Table
    order: pa.Array
    columns: tuple[pa.Array, ...]
    keys: tuple[_Places, ...] | None
    ends: tuple[_Places, _Places] | None
    """The first and the last key; None where there are no rows."""

    @classmethod
    def of(cls, rows: pa.Table, key: Sequence[str]) -> FilePart:
        """Sort rows by key."""
        whole = rows.combine_chunks()
        order = pc.sort_indices(whole, sort_keys=[(name, "ascending") for name in key])
        columns = tuple(comparable(whole[name]) for name in key)
        keys = tuple(_places(columns, order)) if len(order) <= MOST_LISTED else None
        both = pa.concat_arrays([order.slice(0, 1), order.slice(max(0, len(order) - 1))])
        first_and_last = _places(columns, both)
        ends = (first_and_last[0], first_and_last[-1]) if first_and_last else None
        return cls(rows=whole, order=order, columns=columns, keys=keys, ends=ends)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        listed = 0 if self.keys is None else len(self.keys) * len(self.columns) * _LISTED_BYTES
        columns = sum(column.nbytes for column in self.columns)
        # A text that is listed is held twice.
        return int(self.rows.nbytes + self.order.nbytes + columns * (2 if listed else 1) + listed)

    def at(self, number: int) -> _Places:
        """Return the places of the key that is the n-th of this part."""
        if self.keys is not None:
            return self.keys[number]
        row = self.order[number].as_py()
        return tuple(place(column[row].as_py()) for column in self.columns)

    def find(self, places: _Places) -> int | None:
        """Return the row of a key; None where this part has none."""
        if self.ends is None or not self.ends[0] <= places <= self.ends[1]:
            return None  # As most files of a table have nothing to do with a key.
        if self.keys is not None:
            number = bisect_left(self.keys, places)
        else:
            number = bisect_left(range(len(self.order)), places, key=self.at)
        if self.at(number) != places:
            return None
        return int(self.order[number].as_py())

    def behind(self, places: _Places | None) -> Iterator[tuple[_Places, int]]:
        """Yield keys behind a key, ascending, each with its row."""
        first = 0
        if places is not None:
            first = bisect_right(range(len(self.order)), places, key=self.at)
        for number in range(first, len(self.order)):
            yield self.at(number), self.order[number].as_py()


def _places(columns: Sequence[pa.Array], rows: pa.Array) -> list[_Places]:
    """Return the keys of some rows, in their order."""
    values = [map(place, column.take(rows).to_pylist()) for column in columns]
    return [*zip(*values, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRows:
    """All rows of a version, in memory. `parts` are by file."""

    schema: pa.Schema
    key: tuple[str, ...]
    parts: Mapping[str, FilePart]

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        return sum(part.nbytes for part in self.parts.values())

    def find(self, keys: Sequence[Key]) -> pa.Table:
        """Return rows by key; see `KeyedRows`."""
        found = [
            part.rows.slice(row, 1)
            for key in keys
            for part in self.parts.values()
            if (row := part.find(key.places)) is not None
        ]
        return pa.concat_tables([self.schema.empty_table(), *found])

    def page(self, after: Key | None, limit: int) -> pa.Table:
        """Return the next rows; see `KeyedRows`."""
        places = None if after is None else after.places

        def rows_of(part: FilePart) -> Iterator[tuple[_Places, int, FilePart]]:
            return ((each, row, part) for each, row in part.behind(places))

        merged = heapq.merge(*map(rows_of, self.parts.values()), key=lambda found: found[0])
        rows = [part.rows.slice(row, 1) for _, row, part in islice(merged, limit)]
        return pa.concat_tables([self.schema.empty_table(), *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedRows:
    """Rows that are read from the files when they are asked for: statistics skip what they can.

    Reading raises `NotFound` where the files of this version of `table` are not kept any more.
    """

    table: str
    version: DeltaVersion
    rows: ds.Dataset
    schema: pa.Schema
    key: tuple[str, ...]

    def find(self, keys: Sequence[Key]) -> pa.Table:
        """Return rows by key; see `KeyedRows`."""
        wanted = [
            reduce(and_, (pc.field(n) == v for n, v in zip(self.key, key.values, strict=True)))
            for key in keys
        ]
        with readable(self.table, self.version):
            return scanner_of(self.rows, reduce(or_, wanted), self.schema.names).to_table()

    def page(self, after: Key | None, limit: int) -> pa.Table:
        """Return the next rows; see `KeyedRows`. All rows are looked at, few are kept."""
        where = None if after is None else self._behind(after)
        kept = self.schema.empty_table()
        with readable(self.table, self.version):
            scanner = scanner_of(self.rows, where, self.schema.names, batch_size=16_384)
            for batch in scanner.to_reader():
                both = pa.concat_tables([kept, pa.table(batch)])
                order = pc.sort_indices(both, sort_keys=[(name, "ascending") for name in self.key])
                kept = both.take(order[:limit])
        return kept

    def _behind(self, after: Key) -> pc.Expression:
        """Compare tuples of columns: (a, b) > (x, y)."""
        *firsts, last = zip(self.key, after.values, strict=True)
        where = pc.field(last[0]) > last[1]
        for name, value in reversed(firsts):
            where = (pc.field(name) > value) | ((pc.field(name) == value) & where)
        return where


def visible(table: DeltaTable) -> pa.Schema:
    """Return the columns of a table's rows that readers see."""
    return pa.schema([field for field in schema_of(table) if not is_hidden(field.name)])


def is_hidden(name: str) -> bool:
    """Say whether a column of a projection is no part of its rows as readers see them."""
    return name in HIDDEN or name.startswith(PARTIAL)


def held(
    table: DeltaTable, key: Sequence[str], before: HeldRows | None, most_bytes: int
) -> HeldRows | None:
    """Read a version into memory, but for what `before` has of it; None where it is too large."""
    schema = visible(table)
    names = named(schema, key)
    known = (
        before.parts
        if before is not None and before.schema.equals(schema) and before.key == names
        else {}
    )
    parts: dict[str, FilePart] = {}
    size = 0
    for path in sorted(paths_of(table)):
        part = known.get(path)
        if part is None:
            rows = bounded(dataset_at(table, [path]), schema, most_bytes - size)
            if rows is None:
                return None
            part = FilePart.of(rows, names)
        parts[path] = part
        size += part.nbytes
        if size > most_bytes:
            return None
    return HeldRows(schema=schema, key=names, parts=parts)


def scanned(table: DeltaTable, key: Sequence[str], name: str) -> ScannedRows:
    """Return the rows of a version of the table `name` without reading them yet."""
    schema = visible(table)
    return ScannedRows(
        table=name,
        version=DeltaVersion(table.version()),
        rows=dataset_of(table),
        schema=schema,
        key=named(schema, key),
    )


def named(schema: pa.Schema, key: Sequence[str]) -> tuple[str, ...]:
    """Return a key's columns as the table names them: SQL does not tell capitals."""
    names = {name.lower(): name for name in schema.names}
    return tuple(names.get(each.lower(), each) for each in key)


def bounded(rows: ds.Dataset, schema: pa.Schema, most_bytes: int) -> pa.Table | None:
    """Read rows whole; None as soon as they are known to take more memory than allowed."""
    batches, size = [], 0
    # One core is enough for it: on the others readers are answered meanwhile.
    for batch in rows.scanner(columns=schema.names, use_threads=False).to_reader():
        size += batch.nbytes
        if size > most_bytes:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)
