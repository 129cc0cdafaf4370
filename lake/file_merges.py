"""Merges rows into a table by one new file in the place of those that hold a key of theirs.

    touched files (by their bounds) + rows -> new file -> one commit: it comes, they go

deltalake's MERGE plans and runs a join for each merge, ten milliseconds of a processor for a table
of fifty rows, and reads again what the merge before has written. Here that is still in memory.
What does not suit is left to MERGE: keys of types whose values have several forms, columns that
would have to be converted within, much data, and a table that somebody else changes meanwhile.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from kernel.positions import Epoch
from lake.datasets import (
    dataset_at,
    has_whole_files,
    location_of,
    paths_of,
    scanner_of,
    schema_of,
)
from lake.file_actions import actions_of
from lake.guarded_commits import committing, guarded, marked, overtaken, put_in_place
from lake.key_places import NOWHERE, places_of
from lake.local_commits import Landing, came_before, commit_here
from lake.staged_files import nan_columns, staged
from lake.table_commits import OPERATION, ROWS

MOST_BYTES = 4 * 2**20
"""Touched files of more are left to MERGE, which does not have them in memory as a whole."""
MOST_IN_MEMORY = 48 * 2**20
"""And so are those whose rows take more once they are unpacked, and more rows to merge."""
MOST_ROWS = 250_000
"""So many rows the touched files have at most, and so many are merged into them."""
HELD_BYTES = 16 * 2**20

Twice = Callable[[pa.Table, str], Exception]
"""Makes an error of the keys of a table's rows, of which one is there twice, and of its path."""
_Bools = npt.NDArray[np.bool_]
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserts:
    """Rows to insert or update by their `keys`, those that are `gone` to delete; one of each key.

    The table's row stays where its tuple of the columns `newer` is greater, or has a null. `twice`
    makes the error of keys that the table has more than once; without it MERGE changes all of them.
    """

    rows: pa.Table
    gone: pa.ChunkedArray
    keys: Sequence[str]
    newer: Sequence[str]
    twice: Twice | None = None


class FileMerges:
    """Makes merges, and holds rows of files that it wrote. Safe for use from several threads."""

    def __init__(self, *, most_bytes: int = MOST_BYTES, held_bytes: int = HELD_BYTES) -> None:
        """`most_bytes` are those of touched files that are merged here."""
        self._most_bytes = most_bytes
        self._held_bytes = held_bytes
        self._held: OrderedDict[_Key, pa.Table] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def merge(
        self, table: DeltaTable, what: Upserts, app_id: str, epoch: Epoch, *, again: bool = False
    ) -> bool:
        """Make the merge one guarded commit behind the version that `table` has, and bring it up.

        Returns False where it did nothing: MERGE is to do it. Raises `LeaseLost` where somebody
        committed under the same app id meanwhile, as `committing` does, and what `what.twice`
        makes. With `again` the table has the epoch.
        """
        behind, stored = table.version(), schema_of(table)
        rows = shaped(what.rows, stored)
        if rows is None or not _suits(table, stored, what):
            return False
        touched = _touched(table, stored, rows.select(list(what.keys)))
        # Another thread may have brought the handle further: what is read is of one version.
        if not self._are_few(touched) or table.version() != behind:
            return False
        parts = self._parts(table, touched, stored)
        found = None if parts is None else _put_together(parts, rows, what, table.table_uri)
        if found is None:
            return False
        merged, replaced = found
        gone = [file for file, left in zip(touched, replaced, strict=True) if left]
        said = {OPERATION: "MERGE", ROWS: str(rows.num_rows)}
        with committing(table, app_id, epoch, f"merge into {table.table_uri}", again=again):
            files = staged(table, merged)
            if not _committed(table, behind, files.close(), gone, (app_id, epoch), said):
                files.discard()
                rival = came_before(table, behind, [app_id])
                if rival is not None:
                    raise overtaken(table, rival, epoch)
                return False
        marked(table, behind, {app_id: int(epoch)})
        self._take(table, files.close(), gone, merged)
        return True

    def _parts(
        self, table: DeltaTable, files: Sequence[Mapping[str, Any]], stored: pa.Schema
    ) -> list[pa.Table] | None:
        """Return the rows of some files; None where they are too large in memory."""
        parts: list[pa.Table] = []
        for file in files:
            parts.append(self._rows(table, file["path"], stored))
            if sum(part.nbytes for part in parts) > MOST_IN_MEMORY:
                return None
        return parts

    def _are_few(self, files: Sequence[Mapping[str, Any]]) -> bool:
        counts = [file["num_records"] for file in files]
        return (
            None not in counts
            and sum(counts) <= MOST_ROWS
            and sum(file["size_bytes"] for file in files) <= self._most_bytes
        )

    def held(self, table: DeltaTable, path: str, stored: pa.Schema) -> pa.Table | None:
        """Return the rows of a file of a table with these columns; None for one not held."""
        with self._lock:
            held = self._held.get((location_of(table), path))
        return held if held is not None and held.schema.equals(stored) else None

    def _rows(self, table: DeltaTable, path: str, stored: pa.Schema) -> pa.Table:
        held = self.held(table, path, stored)
        if held is not None:
            return held
        read = scanner_of(dataset_at(table, [path]), None, stored.names).to_table()
        return read.cast(stored)

    def _take(
        self,
        table: DeltaTable,
        adds: Sequence[AddAction],
        gone: Sequence[Mapping[str, Any]],
        rows: pa.Table,
    ) -> None:
        """Hold the rows of the new file, in the place of those that it replaces."""
        place = location_of(table)
        with self._lock:
            for file in gone:
                old = self._held.pop((place, file["path"]), None)
                self._bytes -= old.nbytes if old is not None else 0
            for add in adds:
                self._held[(place, add.path)] = rows
                self._bytes += rows.nbytes
            while self._bytes > self._held_bytes:
                _, old = self._held.popitem(last=False)
                self._bytes -= old.nbytes


def shaped(rows: pa.Table, stored: pa.Schema) -> pa.Table | None:
    """Return rows in a table's own columns, null where they lack one; None where MERGE converts.

    What a simple type holds of another one was asked before (`as_stored`).
    """
    columns = []
    for field in stored:
        if not field.nullable:
            return None
        if field.name not in rows.schema.names:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
            continue
        column = rows[field.name]
        if column.type != field.type:
            if pa.types.is_nested(field.type) or pa.types.is_nested(column.type):
                return None
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                return None
        columns.append(column)
    return pa.table(columns, schema=stored).combine_chunks()


def _suits(table: DeltaTable, stored: pa.Schema, what: Upserts) -> bool:
    """Say whether keys have one form for each value, what is newer has an order, files are plain.

    A NaN and the two zeros of floating point have several; decimals and the like have one.
    """
    compared = [stored.field(name).type for name in (*what.keys, *what.newer)]
    return (
        bool(what.keys)
        and what.rows.num_rows <= MOST_ROWS
        and what.rows.nbytes <= MOST_IN_MEMORY
        and not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in compared)
        and has_whole_files(table)
    )


def _touched(table: DeltaTable, stored: pa.Schema, keys: pa.Table) -> list[dict[str, Any]]:
    """Return the files in whose bounds a key lies: path, bytes and rows of each."""
    files = actions_of(table)
    inside = np.ones(files.num_rows, np.bool_)
    for name in keys.schema.names:
        if _has_bounds(stored, name, files.schema):
            inside &= _within(files, name, keys[name])
    columns = ["path", "size_bytes", "num_records"]
    found: list[dict[str, Any]] = files.filter(pa.array(inside)).select(columns).to_pylist()
    return found


def _has_bounds(stored: pa.Schema, name: str, files: pa.Schema) -> bool:
    """Say whether files tell bounds of a column, and no nested field is called like it."""
    kind = stored.field(name).type
    told = all(len(files.get_all_field_indices(f"{side}.{name}")) == 1 for side in ("min", "max"))
    return told and (pa.types.is_integer(kind) or pa.types.is_string(kind))


def _within(files: pa.Table, name: str, keys: pa.ChunkedArray) -> _Bools:
    """Say of each file whether one of the values of a key column may lie in it."""
    if keys.null_count:
        return np.ones(files.num_rows, np.bool_)
    values = sorted(pc.unique(keys).to_pylist())
    bounds = zip(files[f"min.{name}"].to_pylist(), files[f"max.{name}"].to_pylist(), strict=True)
    return np.array([_holds(values, low, high) for low, high in bounds], np.bool_)


def _holds(values: Sequence[Any], low: Any, high: Any) -> bool:
    if low is None or high is None:
        return True
    at = bisect_left(values, low)
    return at < len(values) and bool(values[at] <= high)


def _put_together(
    parts: Sequence[pa.Table], rows: pa.Table, what: Upserts, uri: str
) -> tuple[pa.Table, list[bool]] | None:
    """Return the rows of the new file, and of which files it takes the place.

    None where keys are not unique, or a row has a NaN: its column would have no bounds, which
    deltalake's own datasets take for null.
    """
    base = pa.concat_tables([rows.slice(0, 0), *parts])
    marks = _marks(base, rows, what)
    if marks is None:
        if what.twice is not None:
            raise what.twice(base.select(list(what.keys)), uri)
        return None
    stays, comes = marks
    kept, replaced = [rows.filter(pa.array(comes))], []
    for part, left in zip(parts, _split(stays, parts), strict=True):
        # A file in whose bounds a key lies may have none of them.
        replaced.append(not left.all())
        if replaced[-1]:
            kept.append(part.filter(pa.array(left)))
    # Of many pieces each filter makes as many again.
    merged = pa.concat_tables(kept).combine_chunks()
    return None if nan_columns(merged) else (merged, replaced)


def _marks(base: pa.Table, rows: pa.Table, what: Upserts) -> tuple[_Bools, _Bools] | None:
    """Say which rows of the table stay, and which of those that are merged come into it."""
    keys = list(what.keys)
    places = places_of(base.select(keys), rows.select(keys))
    if places is None:
        return None
    deleted: _Bools = what.gone.combine_chunks().to_numpy(zero_copy_only=False)
    stays, comes = places == NOWHERE, ~deleted
    if what.newer:
        met = np.flatnonzero(~stays)
        of = places[met]
        older = ~_not_older(base.take(met), rows.take(of), what.newer) & ~deleted[of]
        stays[met[older]] = True
        comes[of[older]] = False
    return stays, comes


def _split(marks: _Bools, parts: Sequence[pa.Table]) -> list[_Bools]:
    """Cut the marks of all rows into those of each part."""
    return np.split(marks, np.cumsum([part.num_rows for part in parts])[:-1]) if parts else []


def _not_older(base: pa.Table, rows: pa.Table, newer: Sequence[str]) -> _Bools:
    """Compare tuples as SQL does, (rows.a, rows.b) >= (base.a, base.b): no for an unknown."""
    *firsts, last = newer
    found = pc.greater_equal(rows[last], base[last])
    for name in reversed(firsts):
        more, same = pc.greater(rows[name], base[name]), pc.equal(rows[name], base[name])
        found = pc.or_kleene(more, pc.and_kleene(same, found))
    known: _Bools = pc.fill_null(found, False).combine_chunks().to_numpy(zero_copy_only=False)
    return known


def _committed(
    table: DeltaTable,
    behind: int,
    adds: Sequence[AddAction],
    gone: Sequence[Mapping[str, Any]],
    guard: tuple[str, Epoch],
    said: dict[str, str],
) -> bool:
    """Make files take the place of others, right behind the version that was read, or not at all.

    False where another commit came before: rows of it may have the same keys.
    """
    outcome = commit_here(table, behind, adds, gone, [guard], said)
    if outcome is Landing.NOT_HERE and table.version() == behind:
        outcome = _by_deltalake(table, adds, gone, guarded(*guard, retries=0, metadata=said))
    return outcome is Landing.DONE


def _by_deltalake(
    table: DeltaTable,
    adds: Sequence[AddAction],
    gone: Sequence[Mapping[str, Any]],
    properties: CommitProperties,
) -> Landing:
    outcome = Landing.DONE
    try:
        put_in_place(table, adds, gone, properties)
    except CommitFailedError:
        outcome = Landing.BEHIND
    # The handle does not see its own commit by itself.
    table.update_incremental()
    # Of a commit whose answer was lost deltalake says that another one was first: it is our own.
    if outcome is Landing.BEHIND and adds and paths_of(table) >= {each.path for each in adds}:
        return Landing.DONE
    return outcome
