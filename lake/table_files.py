"""Names of a table's files on the disk, of which its log tells in two ways.

The log has paths as URLs. What deltalake finds to be vacuumed it names as it lies on the disk,
where the folder of a partition is called by its value, with signs that are escaped once: of
`a b` by `p=a%20b`, which is `p=a%2520b` in the log.
"""

from __future__ import annotations

from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable


def live_files(table: DeltaTable) -> set[str]:
    """Return the files that a table consists of, by path below its root."""
    return {unquote(str(path)) for path in pa.table(table.get_add_actions())["path"].to_pylist()}


def removed_files(table: DeltaTable) -> set[str]:
    """Return the files that the log says were removed and that are still there, likewise."""
    return {*table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False)}
