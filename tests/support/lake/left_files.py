"""Files of a lake that no table has."""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from lake import storage
from lake.layout import Lake
from pipeline.log.staged_rows import tables_of


def left_files(lake: Lake) -> list[str]:
    """Return the names of data files that no log table has, and of deciding rows."""
    left = [file.name for file in storage.files_below(lake.path("log/_attempts"))]
    for name in tables_of(lake):
        root = lake.path(name)
        known: list[str] = []
        if DeltaTable.is_deltatable(root):
            known = pa.table(DeltaTable(root).get_add_actions())["path"].to_pylist()
        names = {unquote(path).rpartition("/")[2] for path in known}
        found = (file.name for file in storage.files_below(root) if "_delta_log" not in file.path)
        left += [file for file in found if file.endswith(".parquet") and file not in names]
    return left
