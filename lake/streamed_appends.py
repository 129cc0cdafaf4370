"""Appends rows that come part by part, of which this process holds a row group at most."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from lake.adoption import append_files
from lake.datasets import schema_of
from lake.exactness import as_stored
from lake.file_appends import MOST_BYTES
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
    few, size = [first], first.nbytes
    while size <= MOST_BYTES and (part := next(parts, None)) is not None:
        few.append(part)
        size += part.nbytes
    if size <= MOST_BYTES:
        written()
        ArrowWriter(tables).append(path, pa.concat_tables(few), guard)
        return
    stored, shape = schema_of(table), first.schema
    files = StagedFiles(table)
    try:
        while few:
            rows = as_stored(stored, few.pop(0), table.table_uri)
            files.write(rows)
            shape = rows.schema
            if not few and (part := next(parts, None)) is not None:
                few.append(part)
        adds = files.close()
        written()
        append_files(table, adds, None, guard, shape)
    except BaseException:
        files.discard()
        raise
