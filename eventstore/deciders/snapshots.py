"""Folded states, kept so that long streams need not be folded from their start each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Keeps some snapshots of each stream and decider. May forget any at any time."""

    async def newest(
        self,
        stream: str,
        decider: str,
        *,
        version: int | None = None,
        at: datetime | None = None,
    ) -> Snapshot | None:
        """Return the kept one of the greatest version, of those up to `version` and `at`."""
        ...

    async def would_keep(self, stream: str, decider: str, stand: Stands) -> bool:
        """Whether `keep` would keep such a snapshot now: to be asked before one is made."""
        ...

    async def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot beside others of the same events; see `kept_beside`."""
        ...


MOST = 32
"""So many snapshots of a stream are kept, evenly over the versions it shows, and the newest one."""


class Stands(Protocol):
    """What a snapshot stands for."""

    @property
    def first_version(self) -> Version:
        """The first of its events."""
        ...

    @property
    def version(self) -> Version:
        """The last of its events."""
        ...

    @property
    def shapes(self) -> Mapping[str, int]:
        """The shapes in which they were folded."""
        ...


@dataclass(frozen=True, slots=True)
class Stand:
    """What a snapshot stands for, without its state."""

    first_version: Version
    version: Version
    shapes: Mapping[str, int]


def kept_beside(new: Stands, kept: Iterable[Stands]) -> frozenset[Version] | None:
    """Return the versions that stay when `new` is kept, its own among them if it is worth it.

    None where the beginning of its events was hidden since: all stay as they are. Others of other
    events go, and those with a type in another shape; one that had not seen a type yet says nothing
    of its shape. Of each stretch of versions the first one stays, and the newest of all.
    Stretches are a power of two long, so that at most `MOST` have one: as a stream grows they
    double, and every second one goes.
    """
    alike = [each for each in kept if _alike(each.shapes, new.shapes)]
    later = [each.version for each in alike if each.first_version > new.first_version]
    if later and max(later) >= new.version:
        return None
    versions = {each.version for each in alike if each.first_version == new.first_version}
    versions.add(new.version)
    newest, length = max(versions), 1
    while (newest - new.first_version) // length >= MOST:
        length *= 2
    firsts: dict[int, Version] = {}
    for version in sorted(versions):
        firsts.setdefault((version - new.first_version) // length, version)
    return frozenset([*firsts.values(), newest])


def _alike(shapes: Mapping[str, int], others: Mapping[str, int]) -> bool:
    """Whether every type that both have has one shape."""
    return all(others.get(subject, shape) == shape for subject, shape in shapes.items())
