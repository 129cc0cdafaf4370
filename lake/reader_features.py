"""What a Delta table must say of itself before it takes columns of some types.

A table is made with the features that its first columns need, and deltalake adds one where it adds
a column itself. It does not where files or another schema are committed as they are, and Spark
never does: both refuse such a commit, however often it is tried.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, TableFeatures

from kernel.errors import LeaseLost

LOCAL_TIMES: Final = "timestampNtz"
"""Delta's name for the feature of timestamps without a time zone."""


def enable_for(table: DeltaTable, columns: pa.Schema) -> None:
    """Let a table take these columns: at most one commit, which changes no row.

    The handle is at that commit then. Raises `LeaseLost` where somebody else committed meanwhile:
    what the caller knows of the table is older than its handle.
    """
    if not any(map(_local, columns.types)) or LOCAL_TIMES in features_of(table):
        return
    before = table.version()
    table.alter.add_feature(
        [TableFeatures.TimestampWithoutTimezone], allow_protocol_versions_increase=True
    )
    table.update_incremental()
    if table.version() > before + 1:
        raise LeaseLost(f"somebody else committed to {table.table_uri} at the same moment")


def features_of(table: DeltaTable) -> frozenset[str]:
    """Return the names of the features that a writer of the table must know."""
    return frozenset(table.protocol().writer_features or ())


def _local(kind: pa.DataType) -> bool:
    """Say whether values of a type have times without a zone among them."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_local(kind.field(place).type) for place in range(kind.num_fields))
