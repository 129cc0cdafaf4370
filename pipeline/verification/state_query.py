"""SQL over the rows of a lake table's state, run by DuckDB in one pass of bounded memory.

DuckDB pulls Arrow batches from the table's files; nothing but the batch under way, the layers and
what the query itself keeps is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lake.datasets import missing_file, scanner_of
from pipeline.verification.cells import normal
from pipeline.verification.lake_state import LakeState
from schemas.identifiers import duckdb_name, text_literal
from schemas.key_ranges import (
    WHOLE,
    Bound,
    KeyColumn,
    KeyOrder,
    KeyRange,
    lake_filter,
    value_of,
)

_BATCH_ROWS = 16_384
_THREADS = 2
_MEMORY = "512MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateQuery:
    """A query over `state`, which has the normalised `columns` of a state's rows. Picklable.

    `within` limits the rows by their keys, and `keys` by what the query calls `k`.
    """

    state: LakeState
    columns: tuple[str, ...]
    ordered: Sequence[KeyColumn] | None = None
    sql: str
    within: KeyRange = WHOLE
    keys: Sequence[str] | None = None

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Run it and yield the rows of its result."""
        with self._connected() as (connection, sql):
            result = connection.execute(sql)
            while rows := result.fetchmany(10_000):
                yield from rows

    def table(self) -> pa.Table:
        """Run it and return its result."""
        with self._connected() as (connection, sql):
            return connection.sql(sql).to_arrow_table()

    def wanted(self, schema: pa.Schema) -> pc.Expression | None:
        """Return a filter for those rows of the base that may count; None for all."""
        where = None
        if not self.within.is_all:
            assert self.ordered is not None, "ranges need an ordered key"
            where = lake_filter(self.within, self.ordered, schema)
        if self.state.soft and "_deleted" in schema.names:
            living = pc.invert(pc.coalesce(pc.field("_deleted"), pc.scalar(False)))
            where = living if where is None else where & living
        return where

    @contextmanager
    def _connected(self) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        sql = self.sql
        if self.keys is not None:
            sql = f"SELECT * FROM ({sql}) AS q SEMI JOIN wanted USING (k)"
        with duckdb.connect(config={"threads": _THREADS, "memory_limit": _MEMORY}) as connection:
            connection.execute("SET enable_progress_bar = false")
            if self.keys is not None:
                connection.register("wanted", pa.table({"k": pa.array(self.keys, pa.string())}))
            named = self._register(connection)
            try:
                yield connection, f"WITH state AS ({named}) {sql}"
            except duckdb.Error as error:
                # DuckDB does not say when that is behind it.
                if self.state.base is not None and (gone := missing_file(self.state.base)):
                    raise FileNotFoundError(gone) from error
                raise

    def _register(self, connection: duckdb.DuckDBPyConnection) -> str:
        """Register base and layers, and return the query for the rows that count."""
        columns = ", ".join(map(duckdb_name, self.columns))
        chosen: list[str] = []
        layers = list(self.state.layers)
        for number, layer in enumerate(layers):
            # Layers are small and joined against: whole, not by ranges.
            rows = pa.Table.from_batches(
                self._batches(layer.rows, None, extra=layer.deleted),
                schema=self._schema(extra=layer.deleted),
            )
            connection.register(f"layer{number}", rows)
        keys = ", ".join(map(duckdb_name, self.state.key))
        if self.state.base is not None:
            base = self.state.base
            reader = pa.RecordBatchReader.from_batches(
                self._schema(), self._batches(base, self.wanted(base.schema))
            )
            connection.register("base", reader)
            above = "".join(f" ANTI JOIN layer{n} USING ({keys})" for n in range(len(layers)))
            chosen.append(f"SELECT {columns} FROM base{above}")
        for number, layer in enumerate(layers):
            above = "".join(
                f" ANTI JOIN layer{n} USING ({keys})" for n in range(number + 1, len(layers))
            )
            kept = f" WHERE NOT {duckdb_name(layer.deleted)}" if layer.deleted else ""
            chosen.append(
                f"SELECT {columns} FROM (SELECT * FROM layer{number}{above}){kept or ' WHERE true'}"
                f" AND {self._of_range()}"
            )
        if not chosen:
            connection.register("nothing", self._schema().empty_table())
            chosen.append(f"SELECT {columns} FROM nothing")
        return " UNION ALL ".join(chosen)

    def _schema(self, *, extra: str | None = None) -> pa.Schema:
        empty = [pa.array([], self.state.kind_of(name)) for name in self.columns]
        fields = [
            pa.field(name, normal(array, name).type)
            for name, array in zip(self.columns, empty, strict=True)
        ]
        return pa.schema([*fields, pa.field(extra, pa.bool_())] if extra else fields)

    def _batches(
        self, rows: ds.Dataset | pa.Table, where: pc.Expression | None, *, extra: str | None = None
    ) -> Iterator[pa.RecordBatch]:
        schema = self._schema(extra=extra)
        found = ds.dataset(rows) if isinstance(rows, pa.Table) else rows
        there = [name for name in self.columns if name in found.schema.names]
        scanner = scanner_of(
            found,
            where,
            [*there, extra] if extra else there,
            batch_size=_BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        )
        for batch in scanner.to_batches():
            columns = [
                normal(batch.column(f.name).cast(self.state.kind_of(f.name)), f.name)
                if f.name in there
                else pa.nulls(batch.num_rows, f.type)
                for f in schema
                if f.name != extra
            ]
            if extra:
                columns.append(batch.column(extra))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _of_range(self) -> str:
        low, high = self.within.low, self.within.high
        parts = [f"NOT ({is_below(low, self.ordered)})"] if low is not None else []
        parts += [is_below(high, self.ordered)] if high is not None else []
        return " AND ".join(parts) or "true"


def is_below(bound: Bound, ordered: Sequence[KeyColumn] | None) -> str:
    """Return a condition that compares the whole key with a bound: less."""
    assert ordered is not None, "ranges need an ordered key"
    keys = ", ".join(duckdb_name(column.lake_name) for column in ordered)
    values = ", ".join(_literal(text, column) for text, column in zip(bound, ordered, strict=True))
    return f"({keys}) < ({values})" if len(bound) > 1 else f"{keys} < {values}"


def _literal(text: str, column: KeyColumn) -> str:
    value = value_of(text, column.order)
    match value:
        case bytes():
            return f"from_hex('{value.hex()}')"
        case str():
            return text_literal(value)
        case int() if column.order is not KeyOrder.DECIMAL:
            return f"{value}::BIGINT"
        case _:
            return f"{value}"
