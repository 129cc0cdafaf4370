"""The archive: where events are that were moved out of the database, and the port to it.

    es.events -> [in the log, byte for byte] -> es.archived + the log

What the database keeps of an archived event answers whether its id is used, which conditions and
filters it meets, and where it stands. Only its body is elsewhere. Every read puts it back in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kernel.errors import Unavailable
from kernel.positions import Position
from schemas.records import RecordedEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """Where an archived event is: the log of the store with this id, at this position."""

    store_id: str
    position: Position
    bytes: int = 0


class Archive(Protocol):
    """Finds events in the log. May be called concurrently."""

    async def find(self, places: Sequence[Archived]) -> Mapping[Position, RecordedEvent]:
        """Return those of the asked events that are in the log, for good.

        Raises `Unavailable` when the log cannot be read.
        """
        ...


class NoArchive:
    """For a store that has no log beside it."""

    async def find(self, places: Sequence[Archived]) -> Mapping[Position, RecordedEvent]:
        """Say that there is none."""
        raise Unavailable(
            f"{len(places)} events are in the archive, and this process has none",
            remedy="Set lake.path to the lake that has the log of this store.",
        )


async def fetched(archive: Archive, places: Sequence[Archived]) -> list[RecordedEvent]:
    """Return archived events in the order of `places`.

    Raises `Unavailable` when one is not there: it was when it left the database.
    """
    if not places:
        return []
    found = await archive.find(places)
    for place in places:
        if place.position not in found:
            raise Unavailable(
                f"position {place.position} is in the archive, but the log of store "
                f"{place.store_id} does not show it",
                remedy="Point lake.path at the lake that the events were archived to, or restore "
                "its log/events from a backup.",
            )
    return [found[place.position] for place in places]
