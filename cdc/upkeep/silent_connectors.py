"""Connectors that run and bring nothing, although their database was written to.

A WAL sender or a task that hangs says nothing, and Connect goes on to call it running. Every
healthy connector brings at least its own heartbeat, every five seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kernel.errors import FIX

SILENT_LOOKS = 60
"""So many looks without anything new, one a second, are no pause: a dozen heartbeats are missing.
They are counted and not timed: a process that was stopped has seen nothing meanwhile."""


@dataclass(slots=True)
class _Still:
    """What a connector had brought, since when it is no more, and how often that was seen."""

    marks: object
    since: float
    looks: int = 0


class SilentConnectors:
    """Looks at each connector again and again; `reasons` says which are silent."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._still: dict[str, _Still] = {}
        self.reasons: dict[str, str] = {}

    def look(self, name: str, *, behind: bool, marks: object, unread: Callable[[], bool]) -> None:
        """Take note of how far a connector has come.

        `behind`: the database has what it has not brought. `marks` differ whenever something new
        came. `unread`, whether Kafka has what ingest did not read, is asked once all else says that
        it is silent: then it is ingest that others wait for.
        """
        known = self._still.get(name)
        if known is None or not behind or known.marks != marks:
            known = self._still[name] = _Still(marks, self._now())
        known.looks += behind
        if known.looks < SILENT_LOOKS or unread():
            self.reasons.pop(name, None)
            return
        seconds = self._now() - known.since
        said = f"it runs, and has brought nothing for {seconds:.0f} s, although there is something"
        self.reasons[name] = f"{said}{FIX}penstock restart connect"

    def forget(self, name: str) -> None:
        """Stop speaking of a connector."""
        self._still.pop(name, None)
        self.reasons.pop(name, None)
