"""How Penstock makes Delta tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from arro3.core.types import ArrowSchemaExportable
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError

LOG_KEPT: Final = timedelta(days=7)
"""For so long a table's log has its old versions: nobody reads one that is older."""
KNOWN_LONGER: Final = timedelta(minutes=150)
"""So much longer than they stay a log knows which files were removed: more than the pause between
two vacuums. A vacuum removes those that the log knows, and a checkpoint forgets."""
REMOVED_KEPT: Final = LOG_KEPT + KNOWN_LONGER
REMOVED: Final = "delta.deletedFileRetentionDuration"

TABLE_SETTINGS: Mapping[str, str] = {
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
    # Of all columns, not of the first 32: `_epoch` stands behind the source's own.
    "delta.dataSkippingNumIndexedCols": "-1",
    "delta.logRetentionDuration": f"interval {LOG_KEPT.days} days",
    REMOVED: f"interval {REMOVED_KEPT // timedelta(minutes=1)} minutes",
}
"""Of every table that Penstock makes: plain reader features, so that any engine opens it."""


def make_table(
    path: str,
    schema: ArrowSchemaExportable,
    *,
    partition_by: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
    description: str | None = None,
) -> DeltaTable:
    """Make a table, empty, and return it; or the one that another process made meanwhile.

    deltalake leaves one alone that it finds, and fails where it finds it at its commit only.
    """
    try:
        return DeltaTable.create(
            path,
            schema,
            mode="ignore",
            partition_by=list(partition_by) or None,
            configuration={**TABLE_SETTINGS, **(settings or {})},
            description=description,
        )
    except CommitFailedError as error:
        try:
            return DeltaTable(path)
        except TableNotFoundError:
            raise error from None
