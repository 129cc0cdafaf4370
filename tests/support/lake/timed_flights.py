"""Events that are nothing but their times, ingested epoch by epoch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from lake.layout import Lake
from pipeline.commit.manifest_rows import Committed
from schemas.registry import MemoryRegistry
from tests.support.lake.ingested import BatchedLake

SCHEMA = {"type": "record", "name": "departed", "fields": []}


@dataclass
class Flights(BatchedLake):
    """Events of one topic partition, by their times alone."""

    lake: Lake
    ahead: timedelta | None = timedelta(days=1)
    batch: list[dict[str, Any]] = field(default_factory=list)
    idle_timeouts: tuple[timedelta, ...] = ()
    events: int = 0

    def __post_init__(self) -> None:
        self.registry = MemoryRegistry()
        assert self.registry.register("flight.departed", json.dumps(SCHEMA)) == 1
        self.restart()

    def take(self, times: list[datetime]) -> Committed:
        """Commit an epoch of events with these times."""
        first = self.events
        self.batch = [self.event(at) for at in times]
        start, end = ({"events.flight": {"0": number}} for number in (first, self.events))
        return self.between(start, end)

    def event(self, at: datetime) -> dict[str, Any]:
        """Return the next event, of the first partition."""
        self.events += 1
        return {
            "kind": "event",
            "topic": "events.flight",
            "partition": 0,
            "offset": self.events - 1,
            "source": "store",
            "table": "flight",
            "position": self.events,
            "event_id": f"e{self.events}",
            "type": "departed",
            "event_time": at,
            "schema_id": 1,
            "value": b"\0\0\0\0\1",
        }

    def logged(self) -> list[tuple[int, bool, datetime | None]]:
        """Return position, verdict and watermark of each row of the log."""
        rows = self.tables.read(self.lake.path("log/events/store"))
        assert rows is not None
        columns = ("position", "closed_late", "watermark")
        return sorted(tuple(row[name] for name in columns) for row in rows.to_pylist())
