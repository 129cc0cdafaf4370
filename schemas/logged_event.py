"""An event as a row of the log, `log/events/<store>`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any
from uuid import UUID

from kernel.positions import Position, Version
from schemas.records import RecordedEvent


def event_of_row(row: Mapping[str, Any]) -> RecordedEvent:
    """Return the event that a row of the log has, its times in UTC."""
    return RecordedEvent(
        store_id=row["store_id"],
        position=Position(row["position"]),
        id=UUID(row["event_id"]),
        stream=row["stream"],
        version=Version(row["version"]),
        category=row["category"],
        type=row["type"],
        schema_id=row["schema_id"],
        data_format=row["data_format"],
        data=row["data"],
        subject=row["subject"],
        key_id=row["key_id"],
        metadata=json.loads(row["metadata"]),
        tags=tuple(row["tags"]),
        occurred_at=row["occurred_at"].astimezone(UTC),
        recorded_at=row["recorded_at"].astimezone(UTC),
    )
