"""Rows of a lake table as hashes: by groups, by keys, by columns, in one pass of bounded memory.

DuckDB pulls Arrow batches from the table's files; nothing but the batch under way and the groups
is in memory. A `LakeState` is a table with what changed since laid over it, newest wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from projections.log.datasets import missing_file, scanner_of
from projections.verification.cells import normal, sized, text_sql
from schemas.identifiers import duckdb_name
from schemas.key_ranges import (
    WHOLE,
    Bound,
    KeyColumn,
    KeyOrder,
    KeyRange,
    fits,
    lake_filter,
    value_of,
)
from schemas.row_hash import hash_text

_BATCH_ROWS = 16_384
_THREADS = 2
_MEMORY = "512MB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Rows over the ones below: those whose `deleted` is true take their key away."""

    rows: ds.Dataset | pa.Table
    deleted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """One row per key: `base`, with `layers` over it, the last one on top.

    `base` None: nothing is below. `soft`: the base keeps deleted rows, marked in `_deleted`.
    """

    key: tuple[str, ...]
    base: ds.Dataset | None
    layers: tuple[Layer, ...] = ()
    soft: bool = False

    def kind_of(self, column: str) -> pa.DataType:
        """Return a column's type, the newest one; null where no part has the column."""
        for part in (*(layer.rows for layer in reversed(self.layers)), self.base):
            if part is not None and column in part.schema.names:
                found: pa.DataType = part.schema.field(column).type
                if not pa.types.is_null(found):
                    return found
        return pa.null()

    def lacks(self, column: str) -> bool:
        """Say whether no part has the column."""
        parts = (self.base, *(layer.rows for layer in self.layers))
        return all(part is None or column not in part.schema.names for part in parts)

    def keeps_order(self, ordered: Sequence[KeyColumn]) -> bool:
        """Say whether ranges of the source's keys are ranges here."""
        kinds = [(column.order, self.kind_of(column.lake_name)) for column in ordered]
        return all(pa.types.is_null(kind) or fits(order, kind) for order, kind in kinds)


@dataclass(slots=True)
class LakeRows:
    """Hashes rows of a state over `columns` (sorted as the source sorts them)."""

    state: LakeState
    columns: tuple[str, ...]
    ordered: tuple[KeyColumn, ...] | None
    _all: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._all = tuple(dict.fromkeys((*self.state.key, *self.columns)))

    def group_hashes(
        self, bounds: Sequence[Bound], buckets: int, *, within: KeyRange = WHOLE
    ) -> dict[int, tuple[int, str]]:
        """Return (rows, hash) of each group that has rows; groups as the source numbers them."""
        group = self._group(bounds, buckets)
        found = self._run(
            f"SELECT g, count(*), {_half(1)}, {_half(17)} FROM (SELECT {group} AS g,"
            f" md5({self._cells(self.columns)}) AS h FROM state) GROUP BY g",
            within,
        )
        return {int(g): (int(n), hash_text(int(high), int(low))) for g, n, high, low in found}

    def row_hashes(
        self,
        *,
        within: KeyRange,
        group: tuple[Sequence[Bound], int, int] | None = None,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Yield (key, hash of the row) of a range, of one group, of some keys; unordered.

        `group` is (bounds, buckets, number).
        """
        where = "true"
        if group is not None:
            bounds, buckets, number = group
            where = f"{self._group(bounds, buckets)} = {number}"
        query = (
            f"SELECT {self._cells(self.state.key)} AS k, md5({self._cells(self.columns)})"
            f" FROM state WHERE {where}"
        )
        yield from self._run(query, within, keys)

    def column_hashes(
        self, *, within: KeyRange, keys: Sequence[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Return, by key, the hash of each column's cell."""
        cells = ", ".join(f"md5({self._cell(name)})" for name in self.columns)
        query = f"SELECT {self._cells(self.state.key)} AS k, [{cells}] FROM state"
        return {k: tuple(hashes) for k, hashes in self._run(query, within, keys)}

    def _run(
        self, query: str, within: KeyRange, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        parts: list[pa.RecordBatchReader | pa.Table] = []
        if keys is not None:
            query = f"SELECT * FROM ({query}) AS q SEMI JOIN wanted USING (k)"
        with duckdb.connect(config={"threads": _THREADS, "memory_limit": _MEMORY}) as connection:
            connection.execute("SET enable_progress_bar = false")
            if keys is not None:
                connection.register("wanted", pa.table({"k": pa.array(keys, pa.string())}))
            named = self._register(connection, within, parts)
            try:
                result = connection.execute(f"WITH state AS ({named}) {query}")
                while rows := result.fetchmany(10_000):
                    yield from rows
            except duckdb.Error as error:
                # DuckDB does not say when that is behind it.
                if self.state.base is not None and (gone := missing_file(self.state.base)):
                    raise FileNotFoundError(gone) from error
                raise

    def _register(
        self, connection: duckdb.DuckDBPyConnection, within: KeyRange, parts: list[Any]
    ) -> str:
        """Register base and layers, and return the query for the rows that count."""
        columns = ", ".join(map(duckdb_name, self._all))
        chosen: list[str] = []
        layers = list(self.state.layers)
        for number, layer in enumerate(layers):
            # Layers are small and joined against: whole, not by ranges.
            rows = pa.Table.from_batches(
                self._batches(layer.rows, WHOLE, extra=layer.deleted),
                schema=self._schema(extra=layer.deleted),
            )
            connection.register(f"layer{number}", rows)
        keys = ", ".join(map(duckdb_name, self.state.key))
        if self.state.base is not None:
            reader = pa.RecordBatchReader.from_batches(
                self._schema(), self._batches(self.state.base, within, soft=self.state.soft)
            )
            parts.append(reader)
            connection.register("base", reader)
            above = "".join(f" ANTI JOIN layer{n} USING ({keys})" for n in range(len(layers)))
            chosen.append(f"SELECT {columns} FROM base{above}")
        for number, layer in enumerate(layers):
            above = "".join(
                f" ANTI JOIN layer{n} USING ({keys})" for n in range(number + 1, len(layers))
            )
            kept = f" WHERE NOT {duckdb_name(layer.deleted)}" if layer.deleted else ""
            within_range = self._within(within)
            chosen.append(
                f"SELECT {columns} FROM (SELECT * FROM layer{number}{above}){kept or ' WHERE true'}"
                f" AND {within_range}"
            )
        if not chosen:
            connection.register("nothing", self._schema().empty_table())
            chosen.append(f"SELECT {columns} FROM nothing")
        return " UNION ALL ".join(chosen)

    def _schema(self, *, extra: str | None = None) -> pa.Schema:
        empty = [pa.array([], self.state.kind_of(name)) for name in self._all]
        fields = [
            pa.field(name, normal(array, name).type)
            for name, array in zip(self._all, empty, strict=True)
        ]
        return pa.schema([*fields, pa.field(extra, pa.bool_())] if extra else fields)

    def _batches(
        self,
        rows: ds.Dataset | pa.Table,
        within: KeyRange,
        *,
        extra: str | None = None,
        soft: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        schema = self._schema(extra=extra)
        found = ds.dataset(rows) if isinstance(rows, pa.Table) else rows
        there = [name for name in self._all if name in found.schema.names]
        where = None
        if not within.is_all:
            assert self.ordered is not None, "ranges need an ordered key"
            where = lake_filter(within, self.ordered, found.schema)
        if soft and "_deleted" in found.schema.names:
            living = pc.invert(pc.fill_null(pc.field("_deleted"), False))
            where = living if where is None else where & living
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

    def _cell(self, name: str) -> str:
        return sized(text_sql(self.state.kind_of(name), duckdb_name(name)))

    def _cells(self, names: Sequence[str]) -> str:
        return " || ',' || ".join(map(self._cell, names))

    def _group(self, bounds: Sequence[Bound], buckets: int) -> str:
        if bounds:
            return self._bisected(bounds, 0, len(bounds))
        if buckets == 1:
            return "0"
        return f"('0x' || substr(md5({self._cells(self.state.key)}), 1, 8))::BIGINT % {buckets}"

    def _bisected(self, bounds: Sequence[Bound], first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        below = self._bisected(bounds, first, middle)
        above = self._bisected(bounds, middle + 1, last)
        return f"CASE WHEN {self._below(bounds[middle])} THEN {below} ELSE {above} END"

    def _below(self, bound: Bound) -> str:
        """Compare the whole key with a bound: less."""
        assert self.ordered is not None, "ranges need an ordered key"
        keys = ", ".join(duckdb_name(column.lake_name) for column in self.ordered)
        values = ", ".join(
            _literal(text, column) for text, column in zip(bound, self.ordered, strict=True)
        )
        return f"({keys}) < ({values})" if len(bound) > 1 else f"{keys} < {values}"

    def _within(self, within: KeyRange) -> str:
        parts = [f"NOT ({self._below(within.low)})"] if within.low is not None else []
        parts += [self._below(within.high)] if within.high is not None else []
        return " AND ".join(parts) or "true"


def _half(start: int) -> str:
    return f"sum(('0x' || substr(h, {start}, 16))::UBIGINT)"


def _literal(text: str, column: KeyColumn) -> str:
    value = value_of(text, column.order)
    match value:
        case bytes():
            return f"from_hex('{value.hex()}')"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case int() if column.order is not KeyOrder.DECIMAL:
            return f"{value}::BIGINT"
        case _:
            return f"{value}"
