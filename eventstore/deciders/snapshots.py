"""Folded states, kept so that long streams need not be folded from their start each time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from kernel.positions import Position, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of a stream after its event `version`, as JSON text.

    It stands for exactly the events from `first_version` to `version`, folded by the code that
    `decider` names, each type in the shape that `shapes` says; anything else makes it worthless.
    """

    stream: str
    decider: str
    first_version: Version
    version: Version
    position: Position
    recorded_at: datetime
    shapes: Mapping[str, int]
    state: str
    whole_stream: bool = field(default=False, compare=False)
    """The keeper saw just now that the stream shows all its events, from version 0 on."""


class Snapshots(Protocol):
    """Keeps the newest snapshot of each stream and decider. May forget any at any time."""

    async def newest(self, stream: str, decider: str) -> Snapshot | None:
        """Return what is kept."""
        ...

    async def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot instead of an older one of the same stream and decider."""
        ...


class MemorySnapshots:
    """Snapshots kept in this process."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Snapshot] = {}

    async def newest(self, stream: str, decider: str) -> Snapshot | None:
        """Return what is kept."""
        return self.kept.get((stream, decider))

    async def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot instead of an older one."""
        key = (snapshot.stream, snapshot.decider)
        before = self.kept.get(key)
        if before is None or replaces(snapshot, before):
            self.kept[key] = snapshot


def replaces(new: Snapshot, old: Snapshot) -> bool:
    """Return whether `new` is worth more: it stands for a later or another part of the stream."""
    return new.version > old.version or (
        new.first_version > old.first_version or new.shapes != old.shapes
    )
