"""A projection of several steps kept over the SQL tests' world, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from projections.run.database import arrow_schema, arrow_type
from projections.run.dataflow import Dataflow
from projections.sql.operators.pruning import pruned
from projections.sql.operators.shape import ORDER, InputKind
from projections.sql.operators.tree import Newest, Scan, scans
from projections.sql.planning.reading import read_tree
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column
from tests.support.oracles.sql_world import (
    CATALOG,
    FACT_COLUMNS,
    READING_COLUMNS,
    SERVED_COLUMNS,
    SOURCES,
    VERSION_COLUMNS,
    Row,
    World,
    fact_rows,
    version_rows,
)

_ORDER = {"_time": "TIMESTAMP", "_seq_hi": "BIGINT", "_seq_lo": "BIGINT"}


_SERVED = {**SERVED_COLUMNS, **_ORDER}
_FACTS = {**FACT_COLUMNS, **_ORDER}
_VERSIONS = {**READING_COLUMNS, **VERSION_COLUMNS, **_ORDER}


def stream_rows(world: World) -> pa.Table:
    """Return all facts as a typed table has them."""
    return _table(_FACTS, fact_rows(world))


def tree_of(statement: str) -> Newest:
    """Plan one CREATE PROJECTION over the relations of this world."""
    script = parse_script(SOURCES + statement)
    catalog = DeclaredCatalog(CATALOG, script.sources)
    return pruned(read_tree(script.projections[0], catalog))


class Kept:
    """A table kept by a dataflow; `forget` loses all that the dataflow holds."""

    def __init__(self, tree: Newest) -> None:
        self._tree = tree
        self.rows: dict[tuple[object, ...], Row] = {}
        self.written = 0
        self._dataflow = Dataflow(tree)

    def close(self) -> None:
        self._dataflow.close()

    def epoch(self, before: World, now: World, watermark_us: int | None = None) -> None:
        """Take in what is in a world and was not before."""
        self._feed(before, now)
        self._dataflow.pass_watermark(watermark_us)
        self._apply(self._dataflow.round())

    def forget(self, now: World, watermark_us: int | None = None) -> None:
        """Lose the state, and begin anew with the table as it is and everything up to now."""
        self._dataflow.close()
        self._dataflow = Dataflow(self._tree)
        self._feed(now.until(0), now)
        self._dataflow.pass_watermark(watermark_us)
        shape = pa.schema([(c.name, arrow_type(c)) for c in self._tree.columns])
        stored = pa.Table.from_pylist([zoned(row) for row in self.rows.values()], shape)
        self._apply(self._dataflow.begin([stored], twice))

    def _feed(self, before: World, now: World) -> None:
        for scan in scans(self._tree):
            old, new = _rows(scan, before), _rows(scan, now)
            columns = [*(c.name for c in scan.columns), *ORDER]
            for weight, rows in (
                (1, [row for row in new if row not in old]),
                (-1, [row for row in old if row not in new]),
            ):
                shape = _SERVED if scan.kind is InputKind.STREAM else _VERSIONS
                self._dataflow.add(scan, [_table(shape, rows).select(columns)], weight=weight)

    def _apply(self, changes: pa.Table) -> None:
        self.written += changes.num_rows
        rows = changes.to_pylist()
        for row in sorted(rows, key=lambda row: row["_w"]):
            values = {n: plain(v) for n, v in row.items() if n != "_w"}
            key = tuple(values[name] for name in self._tree.keys)
            if row["_w"] < 0:
                assert self.rows.pop(key) == values, "only what was given out is taken back"
            else:
                assert key not in self.rows, "a key has one row"
                self.rows[key] = values


def twice(rows: pa.Table) -> Exception:
    """Return what is raised of keys that a table has more than once."""
    return AssertionError(f"there several times: {rows.to_pylist()}")


def _rows(scan: Scan, world: World) -> list[Row]:
    if scan.kind is InputKind.STREAM:
        return fact_rows(world)
    return [
        {**row, "_time": row["valid_from"], "_seq_hi": 0, "_seq_lo": 0}
        for row in version_rows(world)
        if not row["_deleted"]
    ]


def _table(columns: Mapping[str, str], rows: Sequence[Row]) -> pa.Table:
    kinds = [Column(name=name, type=kind) for name, kind in columns.items()]
    schema = arrow_schema(kinds)
    return pa.Table.from_pylist([zoned({n: row[n] for n in columns}) for row in rows], schema)


def zoned(row: Row) -> Row:
    return {
        name: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def plain(value: object) -> object:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value
