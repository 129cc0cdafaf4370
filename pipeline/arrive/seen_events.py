"""Whether records of one position tell of one event.

An event comes twice when the connector was started again, and then it is the same to the byte. A
record with other content means that the store lost events and used their positions again, or that
somebody else writes to the topics: whichever came first, none may be dropped without a word.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import StoreDiverged
from lake.table_columns import EVENT

CONTENT = ("position", "event_id", "stream", "version", "type", "data")
"""Columns of the log that make up what is compared."""


class _Content(NamedTuple):
    event_id: str
    stream: str
    version: int
    type: str
    digest: bytes


@dataclass(slots=True)
class SeenEvents:
    """What the events of one store say, by position. Keeps digests of their data, not the data."""

    store: str
    _seen: dict[int, _Content] = field(default_factory=dict)

    def take(self, events: pa.Table) -> None:
        """Take events (`CONTENT`) in the order in which they came.

        Raises `StoreDiverged` for one with other content than the first of its position.
        """
        columns = (events[name].to_pylist() for name in CONTENT)
        for position, event_id, stream, version, kind, data in zip(*columns, strict=True):
            digest = blake2b(data or b"", digest_size=16).digest()
            own = _Content(event_id, stream, version, kind, digest)
            before = self._seen.setdefault(position, own)
            if before != own:
                raise StoreDiverged(
                    f"position {position} of store {self.store} is event {event_id} now and was "
                    f"{before.event_id} before",
                    store=self.store,
                    position=position,
                )

    def knows(self, position: int) -> bool:
        """Say whether an event of a position was taken."""
        return position in self._seen


def among(
    store: str, decoded: pa.Table, logged: pa.Table | None
) -> tuple[set[int], dict[int, str]]:
    """Return the places of events that the log has, or that are twice among `decoded` itself.

    With them, by place, why an event is not the one of its position.
    """
    seen, again, others = SeenEvents(store), set[int](), dict[int, str]()
    if logged is not None:
        seen.take(logged)
    content = content_of(decoded)
    for place, position in enumerate(content["position"].to_pylist()):
        known = seen.knows(position)
        try:
            seen.take(content.slice(place, 1))
        except StoreDiverged as error:
            others[place] = error.message
        else:
            again |= {place} if known else set()
    return again, others


def content_of(decoded: pa.Table) -> pa.Table:
    """Return what `SeenEvents` takes, of rows with the columns of `frames.DECODED`."""
    return decoded.select(["value" if name == "data" else name for name in CONTENT]).rename_columns(
        list(CONTENT)
    )


def events_at(decoded: pa.Table, store: str, positions: Collection[int]) -> pa.Table:
    """Return the events of some positions of a store, of rows with the columns of `DECODED`."""
    named = pc.is_in(pc.field("position"), pa.array(sorted(positions), pa.int64()))
    return decoded.filter((pc.field("kind") == EVENT) & (pc.field("source") == store) & named)
