"""Folds that are computed in this process: DuckDB over rows of Arrow, without a job of Spark's.

What is read is bounded: the rows that came, and the stored versions that have their keys, which
statistics of files and the values of the keys find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import BeyondThisProcess, NotFound, first_line
from lake.datasets import in_columns, scanner_of, schema_of
from lake.layout import Lake
from lake.ranges import Among, Condition, dataset_within, filter_of
from lake.spill_folders import spill_folder
from lake.tables import Tables
from pipeline.history.dialects import DUCKDB, KEY_TEXT
from pipeline.history.fold import HistoryFold
from pipeline.history.key_texts import key_texts
from pipeline.history.shape import history_column

MEMORY_BYTES = 512 * 2**20
"""What one fold may take before DuckDB writes to disk. It never needs that much by default."""
_FOUND_BY_VALUE = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_date32,
    pa.types.is_timestamp,
)
"""Types of keys that are looked for in files. Zeros of doubles are one key with two values."""


class DriverFold:
    """Computes folds whose rows are `most_bytes` together at most. For one thread."""

    def __init__(self, lake: Lake, tables: Tables, *, most_bytes: int) -> None:
        self._lake = lake
        self._tables = tables
        self._most_bytes = most_bytes
        self._connection: duckdb.DuckDBPyConnection | None = None

    def changes(self, fold: HistoryFold) -> pa.Table:
        """Return the versions to upsert and to delete (`HistoryFold.changed`), in no order.

        Raises `BeyondThisProcess` where that takes more rows, or keys that Spark alone renders.
        """
        room = _Room(self._most_bytes)
        incoming = self._incoming(fold, room)
        truncates = self._truncates(fold, room)
        stored = self._stored(fold, incoming, room)
        if self._connection is None:
            self._connection = opened()
        try:
            return changed_versions(self._connection, fold, incoming, stored, truncates)
        except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
            # Memory does not suffice, or the disk behind it. What is held of both goes back.
            self._connection.close()
            self._connection = None
            raise BeyondThisProcess(f"a fold needs more memory: {first_line(error)}") from error

    def _incoming(self, fold: HistoryFold, room: _Room) -> pa.Table:
        name = fold.history.typed
        found = self._rows(name, [fold.within], room)
        if found is None:
            raise NotFound(f"{name} vanished while it was read")
        if fold.known_again and fold.history.by_row:
            again = self._rows(name, [*fold.known_again], room)
            found = found if again is None else pa.concat_tables([found, again])
        named = found.rename_columns([*map(history_column, found.schema.names)])
        return in_columns(named, fold.incoming)

    def _truncates(self, fold: HistoryFold, room: _Room) -> pa.Table | None:
        if not fold.truncated or fold.history.truncates is None:
            return None
        parts: list[list[Condition]] = [[fold.within], [*fold.known_again]]
        found = [self._rows(fold.history.truncates, part, room) for part in parts if part]
        rows = [part for part in found if part is not None]
        own = pc.field("table") == fold.history.table
        return pa.concat_tables(rows).filter(own) if rows else None

    def _stored(self, fold: HistoryFold, incoming: pa.Table, room: _Room) -> pa.Table:
        """Return every stored version of a touched key, and others."""
        history = fold.history
        if fold.anew:
            return fold.stored.empty_table()
        if fold.truncated:
            found = self._rows(history.name, [], room)
        elif history.by_row and not {*history.key} <= {*history.identity}:
            # A row may have had another key before: its versions are touched, too.
            had = self._rows(history.name, _among(history.identity, incoming), _Room(room.left))
            keys = [incoming.select(list(history.key))]
            if had is not None and {*history.key} <= {*had.schema.names}:
                keys.append(had.select(list(history.key)).cast(keys[0].schema))
            found = self._rows(history.name, _among(history.key, pa.concat_tables(keys)), room)
        else:
            found = self._rows(history.name, _among(history.key, incoming), room)
        return fold.stored.empty_table() if found is None else in_columns(found, fold.stored)

    def _rows(self, name: str, conditions: list[Condition], room: _Room) -> pa.Table | None:
        """Return a table's rows that meet all conditions, or more; None where there is none."""
        table = self._tables.open(self._lake.path(name))
        if table is None:
            return None
        where = filter_of(table, conditions)
        if where is None:
            return schema_of(table).empty_table()
        files = dataset_within(table, conditions)
        scanned = scanner_of(files, where, batch_readahead=2, fragment_readahead=2).to_batches()
        return pa.Table.from_batches(room.taking(scanned), schema_of(table))


class _Room:
    """What may still be read."""

    def __init__(self, most_bytes: int) -> None:
        self.left = most_bytes

    def taking(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Read batches. Raises `BeyondThisProcess` where they do not fit."""
        read: list[pa.RecordBatch] = []
        for batch in batches:
            self.left -= batch.nbytes
            if self.left < 0:
                raise BeyondThisProcess("a fold needs more rows than this process takes in at once")
            read.append(batch)
        return read


def opened() -> duckdb.DuckDBPyConnection:
    """Open a database for `changed_versions`, in memory."""
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = false")
    connection.execute(f"SET memory_limit = '{MEMORY_BYTES}B'")
    # Made by DuckDB when memory does not suffice, and removed by it.
    scratch = Path(spill_folder(), f"penstock-histories-{uuid4().hex}")
    connection.execute("SET temp_directory = $1", [str(scratch)])
    return connection


def changed_versions(
    connection: duckdb.DuckDBPyConnection,
    fold: HistoryFold,
    incoming: pa.Table,
    stored: pa.Table,
    truncates: pa.Table | None,
) -> pa.Table:
    """Compute what a fold changes from the rows that it takes in; see `fold`.

    `incoming` and `stored` have the columns that `fold` says; `stored` every version of a touched
    key at least. Raises `BeyondThisProcess` for keys that Spark alone renders, and DuckDB's own
    errors where memory or the disk behind it do not suffice: the connection is of no use then.
    """
    texts = key_texts(incoming, fold.history.key)
    views: Mapping[str, pa.Table] = {
        "history_in": incoming.append_column(KEY_TEXT, texts),
        "history_stored": stored,
        "history_truncates": incoming.slice(0, 0) if truncates is None else truncates,
    }
    for name, rows in views.items():
        connection.register(name, rows)
    try:
        connection.execute(f"CREATE OR REPLACE TEMP TABLE history_old AS {fold.touched(DUCKDB)}")
        found: pa.Table = connection.sql(fold.changes(DUCKDB)).to_arrow_table()
    finally:
        for name in views:
            connection.unregister(name)
        connection.execute("DROP TABLE IF EXISTS history_old")
    return found.cast(fold.changed)


def _among(columns: tuple[str, ...], rows: pa.Table) -> list[Condition]:
    """Return conditions that stored rows meet which have the values of some rows."""
    return [
        Among(column=name, values=rows[name].combine_chunks().unique())
        for name in columns
        if any(of(rows.schema.field(name).type) for of in _FOUND_BY_VALUE)
    ]
