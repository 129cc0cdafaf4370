"""Keys that a copy takes away are known by the names that they have by then."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import ALL, Install
from pipeline.installs.vanished_keys import Vanished, gone_keys
from schemas.registry import MemoryRegistry

TABLE = "public.orders"


@pytest.mark.parametrize("key", ["op", "number"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_key_that_was_renamed_while_its_table_stood_still_vanishes(
    tmp_path: Path, soft: bool, key: str
) -> None:
    lake, tables = Lake.at(tmp_path / "lake"), Tables()
    before = pa.table({"op": [88, 89], "said": ["a", "b"]})
    after = pa.table({"number": [88, 90], "said": ["a", "c"], "_deleted": [False, False]})
    for name, rows in (("before", before), ("after", after)):
        write_deltalake(lake.path(name), rows)
    known, built = tables.open(lake.path("before")), tables.open(lake.path("after"))
    assert known is not None
    assert built is not None
    install = Install(
        id="i1",
        source="shop",
        table=TABLE,
        kind=ALL,
        low=None,
        high=None,
        lsn=1,
        columns=(),
        keys=(key,),
        rows=0,
        read_at=datetime(2013, 1, 1, tzinfo=UTC),
        lsns=(),
    )
    gone = Vanished(lake, tables, MemoryRegistry(), install, called={"op": "number"})
    gone.note(known, built, soft=soft)
    kept = gone_keys(lake, tables, source="shop", table=TABLE, install="i1")
    assert kept is not None
    assert kept.to_pylist() == [{"number": 89}]
    rows = tables.read(lake.path("after"))
    assert rows is not None
    marked = [row for row in rows.to_pylist() if row["_deleted"]]
    assert marked == ([{"number": 89, "said": "b", "_deleted": True}] if soft else [])
