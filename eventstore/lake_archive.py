"""Events read back from the log, `log/events/<store>`: the event store's `Archive`."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from eventstore.archive import Archived
from kernel.errors import Unavailable
from kernel.positions import Position
from lake.layout import Lake, events_log
from schemas.logged_event import event_of_row
from schemas.records import RecordedEvent

if TYPE_CHECKING:
    from lake.tables import Tables

_COLUMNS = (
    *("position", "event_id", "stream", "version", "category", "type", "schema_id"),
    *("data_format", "data", "subject", "key_id", "metadata", "tags"),
    *("occurred_at", "recorded_at"),
)
_FAR = 50_000
"""Positions that lie further apart are looked for by themselves: files are skipped in between."""


class LakeArchive:
    """The log of a lake. It is opened at the first archived event: who has none pays nothing."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._tables: Tables | None = None
        self._lock = threading.Lock()

    async def find(self, places: Sequence[Archived]) -> Mapping[Position, RecordedEvent]:
        """Return those of the events that the log has; see `Archive.find`."""
        return await asyncio.to_thread(self.read, places)

    def read(self, places: Sequence[Archived]) -> Mapping[Position, RecordedEvent]:
        """Read from this thread what `find` returns."""
        wanted: dict[str, list[int]] = defaultdict(list)
        for place in places:
            wanted[place.store_id].append(place.position)
        found: dict[Position, RecordedEvent] = {}
        for store_id, positions in wanted.items():
            for row in self._rows(store_id, sorted(positions)):
                event = event_of_row(row | {"store_id": store_id})
                found[event.position] = event
        return found

    def _rows(self, store_id: str, positions: Sequence[int]) -> list[dict[str, Any]]:
        # pyarrow and deltalake take a second and 100 MB to load.
        import pyarrow.compute as pc
        from deltalake.exceptions import DeltaError

        from lake.tables import Tables

        path = Lake(self._root).path(events_log(store_id))
        rows: list[dict[str, Any]] = []
        try:
            with self._lock:
                self._tables = self._tables or Tables()
            for near in _clusters(positions):
                position = pc.field("position")
                where = (position >= near[0]) & (position <= near[-1]) & position.isin(list(near))
                table = self._tables.read(path, where=where, columns=_COLUMNS)
                if table is not None:
                    rows += table.to_pylist()
        except (DeltaError, OSError) as error:
            raise Unavailable(f"the log {path} cannot be read: {error}") from error
        return rows


def _clusters(positions: Sequence[int]) -> list[list[int]]:
    """Split ordered positions where they lie far apart."""
    clusters: list[list[int]] = []
    for position in positions:
        if clusters and position - clusters[-1][-1] <= _FAR:
            clusters[-1].append(position)
        else:
            clusters.append([position])
    return clusters
