"""A DuckDB in this process, with bounded memory: where small changes are computed.

Moments are kept in it as `TIMESTAMP` without a zone, in UTC. What it holds is disposable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa

from kernel.errors import (
    BeyondThisProcess,
    ContractViolation,
    StorageFull,
    TooLarge,
    first_line,
    is_no_room,
)
from lake.spill_folders import spill_folder
from projections.run.kept_statements import ArrowViews, KeptStatements
from projections.run.spark_scalars import register_scalars
from projections.sql.rendering.batch import listed
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.words.catalog import Column
from projections.sql.words.duckdb_types import duckdb_type
from projections.sql.words.nested_types import ArrayOf, MapOf, StructOf, nested_of

TEXT = DuckText()
MEMORY_BYTES = 256 * 2**20
"""What one projection's state and its computation may take before DuckDB writes them to disk."""
ORDER_TYPES = {"_time": "TIMESTAMP", "_seq_hi": "BIGINT", "_seq_lo": "BIGINT"}
"""Of the columns that rows are ordered by."""
_TOGETHER_BYTES = 8 * 2**20


class Database:
    """One DuckDB of its own, or a session of one. For one thread."""

    def __init__(
        self, *, memory_bytes: int = MEMORY_BYTES, threads: int = 1, of: Database | None = None
    ) -> None:
        """`of` is the database whose memory a session shares; its names are the session's own."""
        self.connection: duckdb.DuckDBPyConnection
        self.connection = duckdb.connect() if of is None else of.connection.cursor()
        self.memory_bytes: int = memory_bytes if of is None else of.memory_bytes
        # Made by DuckDB when memory does not suffice, and removed by it.
        scratch = Path(spill_folder(), f"penstock-regions-{uuid4().hex}")
        self._scratch: Path = scratch if of is None else of._scratch
        self.beside_bytes: int = 0
        """What is kept of its rows in files beside it (`sorted_runs`)."""
        self.kept = KeptStatements(self.connection)
        self.views = ArrowViews(self.connection, self.kept)
        self.connection.execute("SET preserve_insertion_order = false")
        # A plan that is kept must not depend on the rows that there were when it was made.
        self.connection.execute("SET disabled_optimizers = 'statistics_propagation'")
        if of is not None:
            return
        self.connection.execute(f"SET threads = {threads}")
        self.connection.execute(f"SET memory_limit = '{memory_bytes}B'")
        self.connection.execute("SET temp_directory = $1", [str(self._scratch)])
        register_scalars(self.connection)

    def close(self) -> None:
        """Give back memory and disk."""
        self.connection.close()

    def held_bytes(self) -> int:
        """Return what it takes, in memory, on the disk behind it and beside it."""
        taken = "memory_usage_bytes + temporary_storage_bytes"
        found = self.connection.execute(f"SELECT sum({taken}) FROM duckdb_memory()").fetchall()
        return int(found[0][0] or 0) + self.beside_bytes

    @contextmanager
    def within_memory(self) -> Iterator[None]:
        """Say of work that was too large what helps: the rows are not to blame.

        Raises `StorageFull` where the disk behind the memory is full, else `TooLarge`.
        """
        try:
            yield
        except duckdb.Error as error:
            if is_no_room(error):
                raise _full_disk(error) from error
            if not isinstance(error, duckdb.OutOfMemoryException):
                raise
            raise TooLarge(
                f"what the projection keeps between runs, or one run of it, needs more than "
                f"{self.memory_bytes // 2**20} MB of memory: {first_line(error)}",
                remedy="Raise pipeline.state_memory_bytes, and restart the pipeline. What is kept, "
                "and which queries Spark computes instead, shows: penstock projection explain "
                "FILE.sql",
                memory_bytes=self.memory_bytes,
            ) from error

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Raise `ContractViolation` for values that a query cannot be computed of.

        Raises `BeyondThisProcess` for those that Spark alone reads.
        """
        try:
            yield
        except duckdb.OutOfMemoryException:
            raise
        except duckdb.Error as error:
            if is_no_room(error):
                raise
            # DuckDB passes the name of a function's error on in its text.
            if BeyondThisProcess.__name__ in str(error):
                raise BeyondThisProcess(first_line(error)) from error
            raise ContractViolation(
                f"the query cannot be computed: {first_line(error)}",
                remedy="Write the query so that it holds for every row, as with nullif or CASE.",
            ) from error

    def make(self, table: str, types: dict[str, str]) -> None:
        """Make an empty table of DuckDB's types, in place of one of that name."""
        columns = ", ".join(f"{TEXT.name(name)} {kind}" for name, kind in types.items())
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {table} ({columns})")

    def insert(self, table: str, rows: Iterable[pa.Table], *, more: str = "") -> int:
        """Add rows to a table; `more` are columns, as SQL, that they have beside. Return how many.

        Small parts together: a statement costs some milliseconds, whatever it inserts.
        """
        held: list[pa.Table] = []
        size = count = 0
        for part in rows:
            if part.num_rows:
                held.append(part)
                size += part.nbytes
            if size > _TOGETHER_BYTES:
                count += self._insert(table, pa.concat_tables(held), more)
                held, size = [], 0
        if held:
            count += self._insert(table, pa.concat_tables(held), more)
        return count

    def _insert(self, table: str, rows: pa.Table, more: str) -> int:
        columns, view = listed(TEXT, rows.schema.names), f"arrived_{table}"
        self.views.put(view, without_zones(rows))
        text = f"INSERT INTO {table} BY NAME SELECT {columns}{more} FROM {view}"
        count = self.kept.execute(text)
        self.views.empty(view)
        return count


def next_batch(batches: pa.RecordBatchReader) -> pa.RecordBatch | None:
    """Return what a query gives next, None behind its end; raises what DuckDB's own errors are."""
    try:
        return next(batches, None)
    except OSError as error:
        # So come errors of DuckDB from a stream of Arrow.
        kinds = {"Out of Memory Error": duckdb.OutOfMemoryException, "IO Error": duckdb.IOException}
        kind = next((kinds[said] for said in kinds if said in str(error)), duckdb.Error)
        raise kind(str(error)) from error


@contextmanager
def beside_memory() -> Iterator[None]:
    """Say of files beside a database that their disk is full as of DuckDB's own there.

    Others write in the midst of its work, as a table whose rows it gives: their disk is another.
    Raises `StorageFull`.
    """
    try:
        yield
    except OSError as error:
        if not is_no_room(error):
            raise
        raise _full_disk(error) from error


def _full_disk(error: Exception) -> StorageFull:
    return StorageFull(
        f"the disk of {tempfile.gettempdir()} is full, where a projection keeps what memory does "
        f"not hold: {first_line(error)}",
        remedy="Make room there, or let TMPDIR name another folder, or raise "
        "pipeline.state_memory_bytes; then: penstock restart pipeline",
    )


def arrow_type(column: Column) -> pa.DataType:
    """Return the Arrow type of a column of simple type, or of one that consists of such."""
    nested = nested_of(column.type)
    match nested:
        case ArrayOf():
            return pa.list_(_arrow_type(nested.element))
        case MapOf():
            return pa.map_(_arrow_type(nested.key), _arrow_type(nested.value))
        case StructOf():
            return pa.struct([(name, _arrow_type(kind)) for name, kind in nested.fields])
    simple = {
        "STRING": pa.string(),
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
    }
    if column.type in simple:
        return simple[column.type]
    precision, scale = column.type.removeprefix("DECIMAL(").removesuffix(")").split(",")
    return pa.decimal128(int(precision), int(scale))


def _arrow_type(kind: str) -> pa.DataType:
    return arrow_type(Column(name="", type=kind))


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return the Arrow types of columns of simple type."""
    return pa.schema([(each.name, arrow_type(each)) for each in columns])


def types_of(columns: Sequence[Column]) -> dict[str, str]:
    """Return DuckDB's types of columns of simple type, by name."""
    return {each.name: duckdb_type(each.type) for each in columns}


def without_zones(rows: pa.Table) -> pa.Table:
    """Return rows with moments as DuckDB keeps them here: in UTC, without saying so."""
    fields = [field.with_type(_without_zone(field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def _without_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_list(kind):
        return pa.list_(_without_zone(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_without_zone(kind.key_type), _without_zone(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_zone(field.type)) for field in kind])
    return kind
