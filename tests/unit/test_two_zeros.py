"""A floating column that goes from one zero to the other has changed: a rebuild would show it."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from lake.table_columns import UTC_MICROS
from projections.run.database import arrow_type
from projections.run.dataflow import Dataflow
from projections.serve.row_changes import difference
from projections.sql.operators.tree import Scan, scans
from projections.sql.planning.reading import read_tree
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.support.oracles.region_world import twice

COLUMNS = (Column(name="id", type="STRING"), Column(name="x", type="DOUBLE"))
TABLE = Relation(name="demo.public.t", columns=COLUMNS, key=("id",), event_time=None)
SCRIPT = """
CREATE SOURCE t ON demo.public.t;
CREATE PROJECTION p WITH (key = 'id') AS SELECT id, x FROM t;
"""


def made() -> tuple[Dataflow, Scan]:
    script = parse_script(SCRIPT)
    catalog = MemoryCatalog(histories={TABLE.name: TABLE}, latests={TABLE.name: TABLE})
    tree = read_tree(script.projections[0], DeclaredCatalog(catalog, script.sources))
    (scan,) = scans(tree)
    return Dataflow(tree), scan


def rows(scan: Scan, value: float) -> pa.Table:
    moment = datetime(2024, 1, 1, tzinfo=UTC)
    known = {"id": "a", "x": value, "_time": moment, "_seq_hi": 0, "_seq_lo": 0}
    fields = [(each.name, arrow_type(each)) for each in scan.columns]
    order = [("_time", UTC_MICROS), ("_seq_hi", pa.int64()), ("_seq_lo", pa.int64())]
    return pa.Table.from_pylist([known], pa.schema([*fields, *order]))


def told(changes: pa.Table) -> list[tuple[float, int]]:
    """Return the sign of each row's number, and its weight."""
    return sorted((math.copysign(1, row["x"]), row["_w"]) for row in changes.to_pylist())


def test_a_zero_with_a_sign_is_another_value() -> None:
    dataflow, scan = made()
    dataflow.add(scan, [rows(scan, -0.0)])
    assert told(dataflow.round()) == [(-1, 1)]
    dataflow.add(scan, [rows(scan, -0.0)], weight=-1)
    dataflow.add(scan, [rows(scan, -0.0)])
    assert told(dataflow.round()) == []
    dataflow.add(scan, [rows(scan, -0.0)], weight=-1)
    dataflow.add(scan, [rows(scan, 0.0)])
    assert told(dataflow.round()) == [(-1, -1), (1, 1)]


def test_a_stored_zero_of_the_other_sign_is_put_right() -> None:
    dataflow, scan = made()
    dataflow.add(scan, [rows(scan, 0.0)])
    stored = pa.table({"id": ["a"], "x": [-0.0]})
    assert told(dataflow.begin([stored], twice)) == [(-1, -1), (1, 1)]


def test_followers_of_a_table_are_told_of_the_sign(tmp_path: Path) -> None:
    nan, before = float("nan"), [0.0, -0.0, 0.0, 1.5, float("nan"), None]
    for values in (before, [-0.0, 0.0, 0.0, 1.5, nan, None]):
        rows = pa.table({"id": [*range(6)], "x": pa.array(values, pa.float32())})
        write_deltalake(tmp_path, rows, mode="overwrite")
    versions = [DeltaTable(tmp_path, version=number) for number in (0, 1)]
    found = difference(*versions, ("id",), 2**20)
    assert found is not None
    changes = [change for some in found.after(0) for change in some]
    assert [(each.key["id"], str(each.new and each.new["x"])) for each in changes] == [
        (0, "-0.0"),
        (1, "0.0"),
    ]
