from __future__ import annotations

import pyarrow as pa

from kernel.positions import Epoch
from projections.log.compaction import MANY_FILES, compact
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.log.writer import ArrowWriter, Guard


def test_compaction_keeps_rows_versions_and_guards(lake: Lake) -> None:
    tables = Tables()
    writer = ArrowWriter(tables)
    path = lake.path("log/x")
    for n in range(1, MANY_FILES + 1):
        writer.append(path, pa.table({"epoch": [n]}), Guard("log/x", Epoch(n)))
    assert compact(lake, tables, ["log/x", "log/absent"]) == ["log/x"]
    table = tables.open(path)
    assert table is not None
    assert len(table.file_uris()) == 1
    rows = tables.read(path)
    assert rows is not None
    assert sorted(rows["epoch"].to_pylist()) == list(range(1, MANY_FILES + 1))
    assert table.transaction_version("log/x") == MANY_FILES
    old = tables.read(path, version=3)
    assert old is not None
    assert sorted(old["epoch"].to_pylist()) == [1, 2, 3]
    assert compact(lake, tables, ["log/x"]) == []
