"""Writes rows that come part by part, of which this process holds a row group at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.positions import DeltaVersion
from lake.adoption import append_files, replace_files
from lake.datasets import location_of, paths_of, schema_of
from lake.exactness import as_stored
from lake.file_appends import MOST_BYTES
from lake.guarded_commits import mark_of
from lake.staged_files import StagedFiles
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard, reached


def append_parts(
    tables: Tables,
    path: str,
    parts: Iterator[pa.Table],
    guard: Guard,
    *,
    written: Callable[[], None] = lambda: None,
) -> None:
    """Append parts, at least one and all with the same columns, in one guarded commit.

    See `TableWriter.append`; what does nothing reads the first part alone. `written` is called once
    all are in files that are no part of the table yet. Few rows go as `ArrowWriter` writes them.
    """
    first = next(parts)
    table = tables.ensure(path, first.schema)
    if reached(table, guard):
        return
    begun, are_all = _begun(first, parts)
    if are_all:
        written()
        ArrowWriter(tables).append(path, pa.concat_tables(begun), guard)
        return
    stored, shape = schema_of(table), first.schema
    with _staging(table) as files:
        for part in chain(begun, parts):
            rows = as_stored(stored, part, table.table_uri)
            files.write(rows)
            shape = rows.schema
        adds = files.close()
        written()
        append_files(table, adds, None, guard, shape)


def overwrite_parts(
    tables: Tables,
    path: str,
    parts: Iterator[pa.Table],
    guard: Guard,
    *,
    written: Callable[[], None] = lambda: None,
) -> tuple[DeltaVersion, int]:
    """Replace all rows and the table's columns by parts, as `append_parts` appends them.

    See `TableWriter.overwrite`. Returns the version, and how many rows were written.
    """
    first = next(parts)
    table = tables.ensure(path, first.schema)
    if reached(table, guard):
        return DeltaVersion(table.version()), 0
    begun, are_all = _begun(first, parts)
    if are_all:
        written()
        rows = pa.concat_tables(begun)
        return ArrowWriter(tables).overwrite(path, rows, guard), rows.num_rows
    before = mark_of(table, guard.app_id)
    with _staging(table) as files:
        for part in chain(begun, parts):
            files.write(part)
        adds = files.close()
        written()
        replace_files(table, adds, guard, first.schema, before)
    return DeltaVersion(table.version()), files.rows


def _begun(first: pa.Table, parts: Iterator[pa.Table]) -> tuple[list[pa.Table], bool]:
    """Return the first parts, and whether they are all that come and few rows."""
    begun, size = [first], first.nbytes
    while size <= MOST_BYTES and (part := next(parts, None)) is not None:
        begun.append(part)
        size += part.nbytes
    return begun, size <= MOST_BYTES


@contextmanager
def _staging(table: DeltaTable) -> Iterator[StagedFiles]:
    """Give files to write, which are taken away again where that fails, or their commit.

    A commit whose answer was lost, or that an interruption came behind, is there all the same, and
    its rows would be gone for good.
    """
    files = StagedFiles(table)
    try:
        yield files
    except BaseException:
        if not _may_be_committed(table, files):
            files.discard()
        raise


def _may_be_committed(table: DeltaTable, files: StagedFiles) -> bool:
    """Say whether the table has some of the files; where nobody can tell, they stay as garbage."""
    try:
        return not files.paths.isdisjoint(paths_of(DeltaTable(location_of(table))))
    except (DeltaError, OSError):
        return True
