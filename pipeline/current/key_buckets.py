"""Rows of a large transaction sorted by key, for values that its updates left alone.

    slices -> [one pass] -> files by key -> parts, each with the last known rows of its keys
    stored rows -> [one pass] -> files by key

An update that leaves a large value alone does not say what it is: the last known row of its key
does. Looked up slice by slice, each slice reads all that is stored. Here both sides are read once
and laid into files by the hash of their key; then one file after the other is gone through, with
no more in memory than one part and the known rows of one file. The files lie on the local disk and
live as long as the fold.

The halves of a changed key lie together (`key_groups`), since the new half may need what the old
one had. A transaction that links too many keys is gone through slice by slice, as is one whose keys
have two schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.errors import BeyondThisProcess
from lake.datasets import dataset_of
from lake.file_batches import small_batches
from lake.layers import beyond, newest_of, tail_name, whole
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import OP
from pipeline.current.key_files import MOST_FILES, Hashes, KeyFiles, Share, hashes_of
from pipeline.current.key_groups import MOST_LINKS, KeyGroups, groups_of
from pipeline.ddl.unchanged_values import Places, Stored, rows_of_keys, unless_left_alone
from pipeline.log.large_folds import LogRows
from pipeline.order import high_of, low_of
from schemas.columns import decode_keys, key_columns
from schemas.records import Operation
from schemas.registry import SchemaLookup

T = TypeVar("T")

_MARKS = 2**24
_LINKED = "the transaction links too many keys, or changes their schema"


class _Linked(Exception):
    """The transaction changes keys, and nobody has looked which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Rows as they are before a transaction: those of a table, and images over them (`__op`)."""

    base: ds.Dataset | None = None
    newest: pa.Table | None = None


class BucketPart(Protocol):
    """Log rows of a transaction, and where the last known rows of their keys are found."""

    @property
    def rows(self) -> pa.Table:
        """The log rows."""
        ...

    def stored(self, wanted: pa.Table) -> pa.Table | None:
        """Return the last known rows of some keys."""
        ...

    def became(self, newest: pa.Table) -> None:
        """Take in what the rows made of their keys: one image each, with `__op`."""
        ...


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows in the source's order; what is stored is asked for slice by slice."""

    rows: pa.Table
    stored: Stored

    def became(self, newest: pa.Table) -> None:
        """Whoever is asked for what is stored knows it."""


@dataclass(slots=True)
class _OfKeys:
    """Rows of some keys, in the source's order, beside the last known rows of these keys."""

    keys: tuple[str, ...]
    known: pa.Table | None
    rows: pa.Table = field(default_factory=lambda: pa.table({}))
    _newest: list[pa.Table] = field(default_factory=list)

    def stored(self, wanted: pa.Table) -> pa.Table | None:
        """Return the last known rows of some keys."""
        for newest in self._newest:
            if self.known is None:
                self.known = newest.drop_columns([OP]).schema.empty_table()
            self.known = whole(self.known, newest, self.keys)
        self._newest.clear()
        return rows_of_keys(self.known, wanted)

    def became(self, newest: pa.Table) -> None:
        """Take in what the rows made of their keys: one image each, with `__op`."""
        self._newest.append(newest)


def known_at(lake: Lake, tables: Tables, name: str, at: Mapping[str, TableAt]) -> Known:
    """Return what a `current` table was at the versions that `at` names.

    Raises what opening a version raises that is gone.
    """
    base = DeltaTable(lake.path(name), version=at[name].version)
    tail_at = tail_name(name)
    if tail_at not in at:
        return Known(base=dataset_of(base))
    tail = tables.read(lake.path(tail_at), version=at[tail_at].version)
    assert tail is not None, "its version is named"
    return Known(base=dataset_of(base), newest=newest_of(beyond(tail, base, name))[0])


def gone_through(
    slices: Sequence[LogRows],
    take: Callable[[Iterable[BucketPart]], T],
    *,
    known: Known | None,
    stored: Stored,
    anew: Callable[[], object],
    schemas: SchemaLookup,
    per_part: int,
) -> T:
    """Have all rows of a transaction taken, part by part, and return what `take` returns.

    Slice by slice, until a stored value is asked for: then by key. Where that is not possible, or
    `known` is None, `stored` is asked for what is stored, slice by slice. `anew` takes back what
    `take` did of it by then.
    """
    if known is not None:
        taken = unless_left_alone(
            lambda stored: take(_Slice(part.read(), stored) for part in slices)
        )
        if taken is not None:
            return taken
        anew()
        rows = sum(part.count() for part in slices)
        with KeyBuckets(schemas, rows=rows, per_part=per_part) as buckets:
            try:
                return take(buckets.parts(slices, known))
            except BeyondThisProcess:
                anew()
    return take(_Slice(part.read(), stored) for part in slices)


class TouchedKeys:
    """Which keys a transaction may have changed, in a fixed number of bytes: a mark per hash."""

    def __init__(self) -> None:
        self._marks = np.zeros(_MARKS, bool)
        self._bounds: list[int] = []

    def add(self, keys: pa.Table, hashes: Hashes) -> None:
        """Take note of some keys; `hashes` are those of one share of them."""
        self._marks[hashes % np.uint64(_MARKS)] = True
        first = keys.column(0)
        if pa.types.is_integer(first.type) and first.null_count < len(first):
            bounds = pc.min_max(first).as_py()
            both = [*self._bounds, bounds["min"], bounds["max"]]
            self._bounds = [min(both), max(both)]

    def where(self, first: str) -> pc.Expression | None:
        """Return a filter on the first key column that skips files; None for no bounds."""
        if not self._bounds:
            return None
        return (pc.field(first) >= self._bounds[0]) & (pc.field(first) <= self._bounds[1])

    def among(self, rows: pa.Table, hashes: Hashes) -> tuple[pa.Table, Hashes]:
        """Return those rows whose keys were noted, and a few more, and their hashes."""
        noted = self._marks[hashes % np.uint64(_MARKS)]
        if noted.all():
            return rows, hashes
        own = np.flatnonzero(noted)
        return rows.take(pa.array(own)), hashes[own]


class KeyBuckets:
    """Sorts the rows of one transaction. Use as a context manager: the files go with it.

    With a `share` only those of its keys: `rows` are as many as there are about.
    """

    def __init__(
        self, schemas: SchemaLookup, *, rows: int, per_part: int, share: Share | None = None
    ) -> None:
        self._schemas = schemas
        self._share = share or Share()
        self._per_part = per_part
        self._count = max(1, min(MOST_FILES, -(-rows // per_part)))
        self._folder = TemporaryDirectory(prefix="penstock-fold-")
        self._key_schema: str | None = None
        self._touched = TouchedKeys()
        self._groups: KeyGroups | None = None

    def __enter__(self) -> KeyBuckets:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._folder.cleanup()

    def parts(self, slices: Sequence[LogRows], known: Known) -> Iterator[_OfKeys]:
        """Yield all rows of `slices`, part by part.

        Raises `BeyondThisProcess` before the first one.
        """
        try:
            changes = self._laid_changes("changes", slices, known)
        except _Linked:
            self._groups, self._touched = self._linked(slices, known), TouchedKeys()
            changes = self._laid_changes("grouped", slices, known)
        base = self._laid("base", known)
        over = KeyFiles(Path(self._folder.name) / "newest", self._count)
        with over:
            if known.newest is not None and known.newest.num_rows:
                over.add(*self._of_stored(known.newest, known))
        for number in range(self._count):
            yield from self._parts_of(number, changes, base, over)

    def _laid_changes(self, name: str, slices: Sequence[LogRows], known: Known) -> KeyFiles:
        changes = KeyFiles(Path(self._folder.name) / name, self._count)
        with changes:
            for rows in (_ordered(part.read()) for part in slices):
                if self._groups is None and len(_moves(rows)):
                    raise _Linked
                keys = self._keys(rows, known)
                own, hashes = self._share.taken(rows, self._hashes(keys))
                self._touched.add(keys, hashes)
                changes.add(own, hashes)
        return changes

    def _linked(self, slices: Sequence[LogRows], known: Known) -> KeyGroups:
        """Return which keys have to lie together. No slice ends between the halves of a key."""
        old, new = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
        for rows in (_ordered(part.read()) for part in slices):
            hashes, places = hashes_of(self._keys(rows, known)), _moves(rows)
            old.append(hashes[places])
            new.append(hashes[places + 1])
            if sum(map(len, old)) > MOST_LINKS:
                raise BeyondThisProcess(_LINKED)
        groups = groups_of(np.concatenate(old), np.concatenate(new))
        if groups is None:
            raise BeyondThisProcess(_LINKED)
        return groups

    def _hashes(self, keys: pa.Table) -> Hashes:
        hashes = hashes_of(keys)
        return hashes if self._groups is None else self._groups.grouped(hashes)

    def _parts_of(
        self, number: int, changes: KeyFiles, base: KeyFiles, over: KeyFiles
    ) -> Iterator[_OfKeys]:
        newest = over.read(number)
        part = _OfKeys(keys=tuple(self._names()), known=base.read(number))
        if newest is not None:
            part.became(newest)
        held: list[pa.RecordBatch] = []
        for batch in changes.batches(number):
            held.append(batch)
            if sum(each.num_rows for each in held) >= self._per_part:
                part.rows, held = pa.Table.from_batches(held), []
                yield part
        if held:
            part.rows = pa.Table.from_batches(held)
            yield part

    def _laid(self, name: str, known: Known) -> KeyFiles:
        files = KeyFiles(Path(self._folder.name) / name, self._count)
        with files:
            if known.base is not None:
                for step in small_batches(known.base, self._touched.where(self._names()[0])):
                    files.add(*self._of_stored(step, known))
        return files

    def _of_stored(self, rows: pa.Table, known: Known) -> tuple[pa.Table, Hashes]:
        """Return those stored rows that the transaction may have changed, and their hashes."""
        keys = _as_stored(rows.select(self._names()), known)
        return self._touched.among(*self._share.taken(rows, self._hashes(keys)))

    def _names(self) -> list[str]:
        assert self._key_schema is not None, "there are rows"
        return list(key_columns(self._key_schema))

    def _keys(self, rows: pa.Table, known: Known) -> pa.Table:
        ids = pc.unique(rows["key_schema_id"]).to_pylist()
        schema = self._schemas.schema(ids[0])
        if len(ids) != 1 or self._key_schema not in (None, schema):
            raise BeyondThisProcess(_LINKED)
        self._key_schema = schema
        # Rows of several schemas are of types that fit the table: it is the last of them.
        of_values = self._schemas.schema(pc.max(rows["schema_id"]).as_py())
        found = decode_keys(rows["key"].combine_chunks(), schema, of_values)
        return _as_stored(found, known)


def _as_stored(keys: pa.Table, known: Known) -> pa.Table:
    """Return keys in the types of the table: equal values of two types need not have one hash."""
    if known.base is None:
        return keys
    return keys.cast(pa.schema([known.base.schema.field(n) for n in keys.schema.names]))


def _ordered(rows: pa.Table) -> pa.Table:
    order = np.lexsort((low_of(rows).to_numpy(), high_of(rows).to_numpy()))
    return rows.take(pa.array(order))


def _moves(rows: pa.Table) -> Places:
    """Return the places of deletes that are followed at once by the insert of another key."""
    operation, key = rows["operation"].combine_chunks(), rows["key"].combine_chunks()
    deleted = pc.equal(operation, Operation.DELETE.value).slice(0, max(rows.num_rows - 1, 0))
    inserted = pc.equal(operation, Operation.INSERT.value).slice(1)
    other = pc.not_equal(key.slice(0, len(deleted)), key.slice(1))
    moved = pc.and_(pc.and_(deleted, inserted), other).fill_null(False)
    return np.flatnonzero(moved.to_numpy(zero_copy_only=False))
