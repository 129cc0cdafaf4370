"""Keys that an install takes away: rows that the table had and its source does not have.

They have no change of their own in the log, so they are kept in
`log/snapshots/_gone/<source>.<table>` (key columns, `_install`) for what follows the changes: a
history closes its rows by them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from kernel.positions import Epoch
from lake.adoption import commit_staged
from lake.datasets import dataset_of, for_duckdb, schema_of
from lake.layout import Lake
from lake.staged_files import StagedFiles
from lake.tables import Tables
from lake.writer import Guard, reached
from pipeline.current.newest_images import DELETED
from pipeline.ddl.steps import NOTHING, Evolution, marks_called
from pipeline.ddl.table_rewrites import fit
from pipeline.installs.install_book import Install
from pipeline.order import places_of
from schemas.columns import decode_keys
from schemas.identifiers import duckdb_name
from schemas.pg_exact import EXACT
from schemas.registry import SchemaLookup

INSTALL = "_install"
_MEMORY = "256MB"
_BATCH_ROWS = 50_000


def gone_log(source: str, table: str) -> str:
    """Name the log of keys that installs took away."""
    return f"log/snapshots/_gone/{source}.{table}"


class Vanished:
    """Finds and keeps the keys that one install takes away."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        install: Install,
        *,
        called: Mapping[str, str] | None = None,
        since: Evolution = NOTHING,
    ) -> None:
        """`called` are the names of now of columns that the table has by older ones.

        What was captured may have its keys by the names of before, too. `since` is what DDL did to
        columns after they were read.
        """
        self._called, self._since = called or {}, since
        keys = since.names_after(install.keys, (-1, -1))
        self._keys = [self._called.get(key, key) for key in keys]
        self._path = lake.path(gone_log(install.source, install.table))
        self._tables = tables
        self._schemas = schemas
        self._install = install
        self._touched: list[pa.Table] = []

    def touched(self, rows: pa.Table) -> None:
        """Take note of log rows that were folded after the install's LSN: they tell themselves."""
        keyed = rows.filter(pc.is_valid(rows["key"]))
        both = keyed.select(["key_schema_id", "schema_id"])
        for each in both.group_by(both.schema.names).aggregate([]).to_pylist():
            of_key = pc.equal(keyed["key_schema_id"], each["key_schema_id"])
            part = keyed.filter(pc.and_(of_key, pc.equal(keyed["schema_id"], each["schema_id"])))
            schemas = (self._schemas.schema(each[name]) for name in both.schema.names)
            keys = decode_keys(part["key"].to_pylist(), *schemas)
            names = self._since.names_after(keys.schema.names, min(places_of(part)))
            keys = keys.rename_columns([*names])
            if set(self._keys) <= set(keys.schema.names):
                keys = keys.select(self._keys)
                self._touched.append(keys.group_by(self._keys).aggregate([]))

    def note(self, known: DeltaTable, built: DeltaTable, *, soft: bool) -> None:
        """Compare the table with what is to replace it; keep the keys that vanish.

        With `soft` deletes the generation gets the rows, marked, and those that were marked before.
        """
        keys, new = self._keys, self._called
        stored, after = schema_of(known), schema_of(built)
        before = pa.schema([item.with_name(new.get(item.name, item.name)) for item in stored])
        if not set(keys) <= set(before.names) & set(after.names):
            return
        shape = pa.schema([before.field(key) for key in keys])
        touched = [part.cast(shape) for part in self._touched]
        with duckdb.connect(config={"memory_limit": _MEMORY, "threads": 1}) as connection:
            needed = [n for n in stored.names if soft or new.get(n, n) in (*keys, DELETED)]
            connection.register("stored", for_duckdb(dataset_of(known), needed))
            renamed = ", ".join(f"{duckdb_name(n)} AS {duckdb_name(new.get(n, n))}" for n in needed)
            connection.execute(f"CREATE TEMP VIEW known AS SELECT {renamed} FROM stored")
            connection.register("built", for_duckdb(dataset_of(built), keys))
            connection.register("touched", pa.concat_tables(touched) if touched else _none(shape))
            unseen = f"{_absent(keys, 'touched')} AND {_absent(keys, 'built')}"
            hard = (
                f" AND NOT coalesce({duckdb_name(DELETED)}, false)"
                if DELETED in before.names
                else ""
            )
            names = ", ".join(duckdb_name(key) for key in keys)
            for batch in _batches(connection, f"SELECT {names} FROM known k WHERE {unseen}{hard}"):
                self.keep(batch)
            if soft:
                self._carry_over(connection, before, after, built, unseen)

    def keep(self, keys: pa.Table) -> None:
        """Keep keys that are gone. The same again has no further effect for who reads them."""
        if keys.num_rows == 0:
            return
        marked = keys.append_column(
            INSTALL, pa.array([self._install.id] * keys.num_rows, pa.string())
        )
        self._tables.ensure(self._path, marked.schema)
        # The keys may have another type by now than at an install before.
        marked = fit(self._tables, self._path, marked)
        table = self._tables.ensure(self._path, marked.schema)
        write_deltalake(table, marked, mode="append", schema_mode="merge")

    def _carry_over(
        self,
        connection: duckdb.DuckDBPyConnection,
        before: pa.Schema,
        after: pa.Schema,
        built: DeltaTable,
        unseen: str,
    ) -> None:
        if EXACT in before.names and EXACT not in after.names:
            # No row that was copied has such a value; one that is kept may.
            after = after.append(pa.field(EXACT, pa.string()))
        shared = [name for name in after.names if name in before.names and name != DELETED]
        names = ", ".join(duckdb_name(name) for name in shared)
        query = f"SELECT {names} FROM known k WHERE {unseen}"
        guard = Guard("vanished", Epoch(self._install.number or 1))
        if reached(built, guard):
            return
        kept = StagedFiles(built)
        shape = pa.schema([after.field(name) for name in [*shared, DELETED]])
        for rows in _batches(connection, query):
            rows = marks_called(rows, self._called)
            marked = rows.append_column(DELETED, pa.array([True] * rows.num_rows, pa.bool_()))
            kept.write(marked.cast(shape))
        commit_staged(built, kept.close(), kept.schemas, guard.app_id, int(guard.epoch))


def gone_keys(
    lake: Lake, tables: Tables, *, source: str, table: str, install: str
) -> pa.Table | None:
    """Read the keys that an install took away, each once; None where there are none."""
    found = tables.read(lake.path(gone_log(source, table)), where=pc.field(INSTALL) == install)
    if found is None or found.num_rows == 0:
        return None
    # A column that is null in all rows is what a key was called at another install.
    keys = [n for n in found.schema.names if n != INSTALL and found[n].null_count < len(found)]
    return found.select(keys).group_by(keys).aggregate([])


def _absent(keys: list[str], other: str) -> str:
    same = " AND ".join(f"o.{duckdb_name(k)} IS NOT DISTINCT FROM k.{duckdb_name(k)}" for k in keys)
    return f"NOT EXISTS (SELECT 1 FROM {other} o WHERE {same})"


def _batches(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[pa.Table]:
    for batch in connection.sql(query).to_arrow_reader(_BATCH_ROWS):
        yield pa.Table.from_batches([batch])


def _none(shape: pa.Schema) -> pa.Table:
    return shape.empty_table()
