"""Files of Delta tables as DuckDB reads them: those of a folder by itself, others through Arrow.

DuckDB's own reader takes what it holds from the memory that it may have, and reads by several
threads. It has no access to object stores here: their files come batch by batch from Arrow, few
ahead, as these lie outside of that memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from lake.datasets import dataset_at, location_of, scanner_of, schema_of
from lake.storage import is_local, place_of
from schemas.identifiers import duckdb_name, text_literal

_PATTERN = re.compile(r"[*?\[\]{}]")
"""What DuckDB takes for a pattern in a path, and cannot be told not to."""
_BATCH_ROWS = 16_384


def relation_of(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    table: DeltaTable,
    paths: Sequence[str],
    columns: Sequence[str],
) -> tuple[str, frozenset[str]]:
    """Return files of a table as what stands in FROM, and which of the columns it has.

    The table is one that `has_whole_files`. `paths` are as the log names them, at least one; it has
    the columns, of which its files may lack some. `name`: under which rows of Arrow are known to
    the connection, if it is these.
    """
    native = _native(table, paths, columns)
    if native is None:
        stored = schema_of(table)
        kept = pa.schema([stored.field(each) for each in columns]).names
        rows = scanner_of(
            dataset_at(table, paths),
            None,
            kept,
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        )
        connection.register(name, rows)
        return duckdb_name(name), frozenset(kept)
    return native, frozenset(connection.sql(f"FROM {native}").columns) & {*columns}


def _native(table: DeltaTable, paths: Sequence[str], columns: Sequence[str]) -> str | None:
    """Write a call of DuckDB's reader; None where it cannot read these files."""
    root, stored = location_of(table), schema_of(table)
    if not is_local(root) or any(_is_odd(stored.field(name).type) for name in columns):
        return None
    files = [*dataset_at(table, paths).files]
    _, folder = place_of(root)
    named = [f"{folder}/{each}" for each in files]
    if any(map(_PATTERN.search, named)):
        return None
    texts = ", ".join(map(text_literal, named))
    return f"read_parquet([{texts}], union_by_name = true, hive_partitioning = false)"


def _is_odd(kind: pa.DataType) -> bool:
    """Say whether DuckDB would read other values of a type than there are, or fewer.

    The bounds of floating-point numbers in a file leave NaN out, which is above all of them: by
    these it passes over rows. Structs may lack fields in some files.
    """
    return bool(pa.types.is_floating(kind) or pa.types.is_nested(kind))
