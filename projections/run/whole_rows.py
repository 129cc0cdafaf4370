"""All rows of a plan, or those of a part of its keys, computed by DuckDB in this process.

The batch form of what keeps small changes: the same query that Spark would be given, in the words
of DuckDB, over the files of the inputs. It spills to disk what does not fit into its memory, and
gives its rows batch by batch, so that neither inputs nor results have to fit.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel.errors import BeyondThisProcess, StorageFull, first_line, is_no_room
from kernel.positions import Epoch
from lake.datasets import has_whole_files, schema_of
from lake.duckdb_files import relation_of
from lake.layout import Lake
from lake.ranges import Range, actions_within
from lake.tables import Tables
from pipeline.typed.columns import EPOCH, LATE
from projections.run.database import (
    ORDER_TYPES,
    TEXT,
    Database,
    arrow_schema,
    next_batch,
    types_of,
)
from projections.run.duckdb_functions import register_called
from projections.run.input_rows import (
    DELETED,
    bytes_read,
    input_tables,
    table_at,
    table_of,
    without_rows,
)
from projections.run.key_runs import all_sql, stored_columns
from projections.run.laid_rows import InputPiece, LaidRows
from projections.run.region_runs import Reading
from projections.run.relations import LakeCatalog
from projections.run.spark_hashes import register_hashes
from projections.sql.operators.shape import InputKind, Plan
from projections.sql.operators.tree import (
    Exploded,
    Map,
    Node,
    Scan,
    Windowed,
    inputs_of,
    scans,
)
from projections.sql.rendering.batch import ALL, Parts, listed, whole

WHOLE_MEMORY_BYTES = 512 * 2**20
"""What DuckDB may take to compute a whole projection; more goes to disk."""
PIECE_BYTES = 256 * 2**20
"""Files of the inputs that are laid apart at a time."""
_VECTOR_ROWS = 2_048
"""What DuckDB computes at once. Rows may be long: whatever more it gave is in memory as well."""
_PART_ROWS, _PART_BYTES = 65_536, 8 * 2**20
"""So many rows are handed on together at least, or so much of them."""
_VALID = {"valid_from": "TIMESTAMP", "valid_to": "TIMESTAMP", DELETED: "BOOLEAN"}
"""Columns that say when a version of a history holds."""


class WholeRows:
    """Computes rows of whole plans, one at a time. Another thread may look at it and stop it."""

    def __init__(
        self, lake: Lake, tables: Tables, *, memory_bytes: int = WHOLE_MEMORY_BYTES
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._memory_bytes = memory_bytes
        self._at_work: duckdb.DuckDBPyConnection | None = None
        self.stopped = False
        """Whether the last work was stopped."""

    def can(self, plan: Plan, catalog: LakeCatalog) -> bool:
        """Say whether DuckDB gives the bits of Spark for a plan, and can read what it reads."""
        if not plan.small:
            return False
        paths = map(self._lake.path, input_tables(plan, catalog))
        opened = map(self._tables.open, paths)
        return all(table is None or has_whole_files(table) for table in opened)

    def input_bytes(self, inputs: Iterable[Scan], catalog: LakeCatalog) -> int:
        """Return the size of the files that inputs read."""
        return bytes_read(self._lake, self._tables, inputs, catalog)

    @contextmanager
    def rows(
        self, reading: Reading, up_to: Epoch, apart: Parts = ALL, laid: Collection[Node] = ()
    ) -> Iterator[Iterator[pa.Table]]:
        """Give the rows as they are at an epoch, in the table's shape.

        `apart`: of these nodes only a part, which DuckDB does not choose nearer to the inputs by
        itself. Of those among them that are `laid` it is read from elsewhere, their inputs are not.
        Raises `NotFound` before the first row of an input, `ContractViolation` and
        `BeyondThisProcess` as `Database.computing`, and `TooLarge` where neither memory nor the
        disk behind it suffice.
        """
        with self._database() as database, database.within_memory(), database.computing():
            connection = database.connection
            register_called(connection, reading.plan.tree)
            for scan in _read(reading.plan.tree, laid):
                self._make_view(connection, scan, reading, up_to)
            self._at_work = connection
            yield _shaped(connection.sql(self._query(reading, up_to, apart)), reading)

    def pieces(self, reading: Reading, up_to: Epoch, nodes: Iterable[Node]) -> list[InputPiece]:
        """Cut the rows of nodes into what is read together, as the log tells of their files.

        Where a node's rows do not follow from each row of one input by itself, they are one piece.
        """
        found: list[InputPiece] = []
        for node in nodes:
            scan = _alone(node)
            if scan is None:
                read = [s for each in scans(node) for s in self._sources(each, reading, up_to)]
                counts = [_counted(source.files) for source in read]
                rows, size = (sum(each) for each in zip(*counts, strict=True))
                found.append(InputPiece(node=node, rows=rows, bytes=size))
                continue
            for place, source in enumerate(self._sources(scan, reading, up_to)):
                found += (_piece(node, scan, place, files) for files in _cut(source.files))
        return found

    def lay(self, reading: Reading, up_to: Epoch, piece: InputPiece, laid: LaidRows) -> bool:
        """Lay the rows of a piece apart; False where files would not keep them as they are.

        Raises what `rows` does, and `StorageFull` where the disk of `laid` is full.
        """
        with self._database() as database, database.within_memory(), database.computing():
            connection = database.connection
            register_called(connection, reading.plan.tree)
            for scan in _read(piece.node):
                self._make_view(connection, scan, reading, up_to, piece)
            self._at_work = connection
            text = reading.plan.at(whole(piece.node, TEXT), reading.watermark_us)
            try:
                return laid.add(connection, piece, text)
            except duckdb.Error as error:
                if self.stopped or not is_no_room(error):
                    raise
                raise StorageFull(
                    f"{laid.place}, where rows are laid apart: {first_line(error)}"
                ) from error

    @contextmanager
    def _database(self) -> Iterator[Database]:
        database = Database(memory_bytes=self._memory_bytes, threads=os.cpu_count() or 1)
        self.stopped = False
        try:
            connection = database.connection
            # What has parts is cast as a whole, moments in it by the connection's zone.
            connection.execute("SET TimeZone = 'UTC'")
            # How far it is `share` tells; of its own accord it would write that among our output.
            connection.execute("SET enable_progress_bar = true")
            connection.execute("SET enable_progress_bar_print = false")
            register_hashes(connection)
            yield database
        finally:
            self._at_work = None
            database.close()

    def share(self) -> float | None:
        """Return how much of the work under way is done, from 0 to 1; None where none is."""
        connection = self._at_work
        if connection is None:
            return None
        try:
            return min(max(connection.query_progress() / 100, 0.0), 1.0)
        except duckdb.Error:
            return None  # It ended meanwhile.

    def stop(self) -> None:
        """End the work under way, if there is any: it raises an error then."""
        connection = self._at_work
        if connection is not None:
            self.stopped = True
            with suppress(duckdb.Error):  # It may have ended meanwhile.
                connection.interrupt()

    def _query(self, reading: Reading, up_to: Epoch, apart: Parts) -> str:
        plan = reading.plan
        text = plan.at(all_sql(TEXT, plan, apart), reading.watermark_us)
        names = listed(TEXT, [each.name for each in stored_columns(plan)])
        keyed = " AND ".join(f"{TEXT.name(name)} IS NOT NULL" for name in plan.key)
        return (
            f"SELECT {names}, CAST({int(up_to)} AS BIGINT) AS {EPOCH} FROM ({text}) AS built "
            f"WHERE {keyed}"
        )

    def _make_view(
        self,
        connection: duckdb.DuckDBPyConnection,
        scan: Scan,
        reading: Reading,
        up_to: Epoch,
        piece: InputPiece | None = None,
    ) -> None:
        """Make the view of an input: the facts up to an epoch, or a table as it was pinned.

        Of the input that a piece is of only the files of the piece.
        """
        files, sources = _Files(connection, scan.view), self._sources(scan, reading, up_to)
        if piece is not None and piece.scan is scan:
            parts = [files.rows(sources[piece.table], piece.paths)]
        else:
            parts = [files.rows(each, each.files["path"].to_pylist()) for each in sources]
        connection.execute(f"CREATE TEMP VIEW {scan.view} AS {' UNION ALL '.join(parts)}")

    def _sources(self, scan: Scan, reading: Reading, up_to: Epoch) -> list[_Source]:
        """Return what an input reads of each table. Raises `NotFound` before the first row."""
        if scan.kind is InputKind.STREAM:
            return self._of_stream(scan, reading, up_to)
        name, types = table_of(scan), types_of(scan.columns)
        if scan.kind is not InputKind.PROJECTION:
            types = _VALID | types
        table = table_at(self._lake, self._tables, name, reading.versions.get(name))
        return [_Source(table=table, types=types)]

    def _of_stream(self, scan: Scan, reading: Reading, up_to: Epoch) -> list[_Source]:
        came = Range(column=EPOCH, lower=None, upper=int(up_to) + 1)
        where = f"{EPOCH} < {came.upper}"
        if reading.plan.stateful and not reading.include_late:
            where += f" AND NOT {LATE}"
        members = map(self._lake.path, reading.catalog.members(scan.name))
        opened = [table for table in map(self._tables.open, members) if table is not None]
        if not opened:
            raise without_rows(scan.name)
        types = types_of(scan.columns) | ORDER_TYPES
        return [
            _Source(table=table, types=types, within=[came], where=where, also=(EPOCH, LATE))
            for table in opened
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What is read of one table: columns under `types` of the files that may be `within`.

    `where` holds for its rows, and names the columns of `also`.
    """

    table: DeltaTable
    types: Mapping[str, str]
    within: Sequence[Range] = ()
    where: str = "true"
    also: Sequence[str] = ()

    @property
    def files(self) -> pa.Table:
        """What the log says of its files, a row for each."""
        return actions_within(self.table, self.within)


class _Files:
    """Writes what reads the files of tables for one view, under the types of its columns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, view: str) -> None:
        self._connection = connection
        self._view = view
        self._number = 0

    def rows(self, source: _Source, paths: Sequence[str]) -> str:
        """Write the rows of files of a source; a column that they lack is NULL."""
        self._number += 1
        table, types = source.table, source.types
        read = [name for name in (*types, *source.also) if name in schema_of(table).names]
        given, present = "(SELECT 1)", frozenset[str]()
        if paths:
            given, present = relation_of(
                self._connection, f"{self._view}_{self._number}", table, paths, read
            )
        columns = ", ".join(
            f"{_typed(name, kind) if name in present else f'CAST(NULL AS {kind})'} "
            f"AS {TEXT.name(name)}"
            for name, kind in types.items()
        )
        return f"SELECT {columns} FROM {given} WHERE {source.where if paths else 'false'}"


def _read(node: Node, laid: Collection[Node] = ()) -> Sequence[Scan]:
    """Return the inputs that are read for a tree where some of its nodes are laid apart."""
    if node in laid:
        return ()
    own = [node] if isinstance(node, Scan) else []
    return [*own, *(scan for each in inputs_of(node) for scan in _read(each, laid))]


def _alone(node: Node) -> Scan | None:
    """Return the input of which each row by itself gives rows of a node; None for other nodes."""
    match node:
        case Scan():
            return node
        case Map() | Windowed() | Exploded():
            return _alone(node.input)
        case _:
            return None


def _counted(files: pa.Table) -> tuple[int, int]:
    """Return how many rows files have, as their log tells, and how many bytes."""
    rows, size = (pc.sum(files[name]).as_py() for name in ("num_records", "size_bytes"))
    return int(rows or 0), int(size or 0)


def _piece(node: Node, scan: Scan, table: int, files: pa.Table) -> InputPiece:
    rows, size = _counted(files)
    paths = tuple(files["path"].to_pylist())
    return InputPiece(node=node, scan=scan, table=table, paths=paths, rows=rows, bytes=size)


def _cut(files: pa.Table) -> Iterator[pa.Table]:
    """Yield files that are read together; where there are none, once none."""
    first = size = 0
    for number, each in enumerate(files["size_bytes"].to_pylist()):
        if number > first and size + each > PIECE_BYTES:
            yield files.slice(first, number - first)
            first, size = number, 0
        size += each
    yield files.slice(first)


def _typed(name: str, kind: str) -> str:
    column = TEXT.name(name)
    if kind == "TIMESTAMP":
        return f"make_timestamp(epoch_us({column}))"
    return f"CAST({column} AS {kind})"


def _shaped(found: duckdb.DuckDBPyRelation, reading: Reading) -> Iterator[pa.Table]:
    """Yield rows under the types that the table has, at least one part."""
    own = arrow_schema(stored_columns(reading.plan))
    schema = pa.schema([*own, pa.field(EPOCH, pa.int64())])
    # Who only asks for the columns has nothing computed.
    yield schema.empty_table()
    batches = found.to_arrow_reader(_VECTOR_ROWS)
    while (rows := _next_of(batches, schema)) is not None:
        yield rows


def _next_of(batches: pa.RecordBatchReader, schema: pa.Schema) -> pa.Table | None:
    held: list[pa.RecordBatch] = []
    count = size = 0
    while count < _PART_ROWS and size < _PART_BYTES:
        if (batch := next_batch(batches)) is None:
            break
        held.append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
    try:
        return pa.Table.from_batches(held).cast(schema) if held else None
    except pa.ArrowInvalid as error:
        # A value that the column's type does not hold: Spark is to say what becomes of it.
        raise BeyondThisProcess(f"a value has no room in its column: {error}") from error
