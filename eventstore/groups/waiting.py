"""Consumers that wait: woken by a new event, by what other consumers finish, by time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from eventstore.feed import Head
from kernel.errors import Overloaded

MAX_WAITING = 500
"""Consumers that one service lets wait at a time, all groups together."""


class _Place:
    """What the consumers of one group in this process share while at least one is there."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.stirred = asyncio.Event()


class Waiters:
    """The waiting consumers of this process.

    One consumer of a group looks at a time, so that those who wait do not hold connections to
    queue for the group's row lock. What another process finishes is noticed by looking again.
    """

    def __init__(self, head: Head) -> None:
        self._head = head
        self._places: WeakValueDictionary[str, _Place] = WeakValueDictionary()
        self._count = 0

    @property
    def count(self) -> int:
        """Consumers that are asking or waiting now."""
        return self._count

    @contextmanager
    def joined(self, group: str) -> Iterator[_Place]:
        """Count one more waiting consumer and lend its group's place."""
        if self._count >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} consumers wait for events already")
        self._count += 1
        try:
            yield self.place(group)
        finally:
            self._count -= 1

    def place(self, group: str) -> _Place:
        """Return a group's place."""
        found = self._places.get(group)
        if found is None:
            found = self._places[group] = _Place()
        return found

    def stir(self, group: str) -> None:
        """Let all waiting consumers of a group look again."""
        place = self._places.get(group)
        if place is not None:
            stirred, place.stirred = place.stirred, asyncio.Event()
            stirred.set()

    async def woken(self, stirred: asyncio.Event, *, beyond: int, timeout_s: float) -> None:
        """Wait for the group, for the head to be beyond a position, or for the time to be up."""
        waits = {
            asyncio.create_task(stirred.wait()),
            asyncio.create_task(self._head.beyond(beyond, timeout_s=timeout_s)),
        }
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
