"""What became of one attempt to send one event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

Document = Mapping[str, Any]
"""An event as callers see it, its data decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The receiver has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Not now. `delay`: when the receiver would like it; None: as the subscription says."""

    reason: str
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopeless:
    """Trying again changes nothing: a person must look."""

    reason: str


Outcome = Sent | TryAgain | Hopeless


class Sender(Protocol):
    """Sends events somewhere. May be called concurrently; never raises for what the other side
    does, and ends within its time-out.
    """

    async def send(self, message_id: str, document: Document) -> Outcome:
        """Send one event. `message_id` is the same for each attempt."""
        ...

    async def close(self) -> None:
        """Close what is open."""
        ...


def message_id(subscription: str, event_id: UUID) -> str:
    """Return what receivers drop doubles by: the same for every attempt, of whatever process."""
    return f"{subscription}.{event_id}"
