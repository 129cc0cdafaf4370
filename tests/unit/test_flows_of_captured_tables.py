"""Flows over a captured table's changes: what each change did and its own LSN can be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kernel.errors import InvalidRequest
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import Deployment
from projections.run.region_runs import Reading, RegionRuns
from projections.run.relations import LakeCatalog
from projections.sql.plans.plan import plan
from projections.sql.statements.parse import parse_script

MOMENT = pa.timestamp("us", "UTC")
START = datetime(2013, 1, 1, tzinfo=UTC)
PEOPLE = "typed/shop.public.people"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("committed_at", MOMENT),
        ("_epoch", pa.int64()),
        ("_late", pa.bool_()),
        ("_time", MOMENT),
        ("_seq_hi", pa.int64()),
        ("_seq_lo", pa.int64()),
        ("_ingested_at", MOMENT),
        ("_operation", pa.string()),
        ("_transaction", pa.string()),
        ("_lsn", pa.int64()),
    ]
)
CHANGES = (
    # id, name, operation, LSN: in one transaction a row is deleted and made again.
    (1, "Ann", "r", 5),
    (2, "Bob", "r", 5),
    (1, "Anna", "u", 11),
    (2, None, "d", 12),
    (1, None, "d", 13),
    (1, "Ann B.", "c", 14),
)
FLOW = (
    "CREATE FLOW f AS AUTO CDC INTO people FROM STREAM(shop.public.people) KEYS (id) "
    "APPLY AS DELETE WHEN _operation = 'd' SEQUENCE BY _lsn COLUMNS (id, name)"
)


def reading(tmp_path: Path, statement: str) -> tuple[RegionRuns, Reading]:
    lake, tables = Lake.at(tmp_path), Tables()
    rows = [
        {
            "id": key,
            "name": name,
            "_operation": operation,
            "_lsn": lsn,
            "committed_at": START,
            "_time": START,
            "_seq_hi": 20,
            "_seq_lo": lsn,
            "_epoch": 1,
            "_late": False,
            "_ingested_at": START + timedelta(hours=1),
        }
        for key, name, operation, lsn in CHANGES
    ]
    write_deltalake(lake.path(PEOPLE), pa.Table.from_pylist(rows, SCHEMA))
    captured = {"shop": {"public.people": CapturedTable(keys=("id",))}}
    deployment = Deployment(version=1, captures=captured, slots={}, sources={}, projections={})
    catalog = LakeCatalog(lake, tables, deployment, typed=[PEOPLE], fields={})
    planned = plan(parse_script(statement).projections[0], catalog)
    return RegionRuns(lake, tables), Reading(
        plan=planned,
        catalog=catalog,
        app_id="projection/people/g1",
        path=lake.path("projection/people"),
        include_late=False,
        versions={},
    )


def rows_of(tmp_path: Path, statement: str) -> list[dict[str, object]]:
    runs, read = reading(tmp_path, statement)
    return sorted(runs.first(read, Epoch(1)).to_pylist(), key=lambda row: str([*row.values()]))


def test_the_newest_rows_are_those_of_the_table(tmp_path: Path) -> None:
    assert rows_of(tmp_path, FLOW) == [{"id": 1, "name": "Ann B."}]


def test_versions_begin_and_end_where_rows_were_written(tmp_path: Path) -> None:
    found = rows_of(tmp_path, f"{FLOW} STORED AS SCD TYPE 2")
    assert [tuple(row.values()) for row in found] == [
        (1, "Ann B.", 14, None),
        (1, "Ann", 5, 11),
        (1, "Anna", 11, 13),
        (2, "Bob", 5, 12),
    ]


def test_a_query_reads_what_a_change_did_and_a_star_leaves_it_out(tmp_path: Path) -> None:
    counted = (
        "CREATE PROJECTION people WITH (key = 'did') AS SELECT _operation AS did, COUNT(*) AS n, "
        "COUNT(DISTINCT q.name) AS names FROM (SELECT * FROM STREAM shop.public.people) p "
        "JOIN STREAM shop.public.people q ON q.id = p.id AND q._lsn = 14 GROUP BY _operation"
    )
    assert [row["did"] for row in rows_of(tmp_path, counted)] == ["c"]
    with pytest.raises(InvalidRequest, match="_operation"):
        reading(tmp_path / "other", counted.replace("SELECT _operation", "SELECT p._operation"))
