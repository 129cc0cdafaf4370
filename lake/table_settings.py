"""How Penstock makes Delta tables."""

from __future__ import annotations

from collections.abc import Mapping

TABLE_SETTINGS: Mapping[str, str] = {
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
    # Of all columns, not of the first 32: `_epoch` stands behind the source's own.
    "delta.dataSkippingNumIndexedCols": "-1",
    "delta.logRetentionDuration": "interval 7 days",
}
"""Of every table that Penstock makes: plain reader features, so that any engine opens it."""
