"""What commands with an `Idempotency-Key` were answered, where the store cannot tell.

A command that led to events is found again by their ids, for ever. One that led to none is kept
here, for `KEEP`. A refused command changed nothing and is decided anew when it is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

KEEP = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """A command's answer as JSON text. `fingerprint` tells whether it was the same command."""

    key: str
    fingerprint: str
    answer: str


class KeptAnswers(Protocol):
    """Answers by key."""

    def alone(self, key: str) -> AbstractAsyncContextManager[None]:
        """Keep others, in other services too, from handling a command with the same key now.

        Raises `Unavailable` when the key stays taken.
        """
        ...

    async def find(self, key: str) -> KeptAnswer | None:
        """Return the answer that is kept for a key."""
        ...

    async def keep(self, answer: KeptAnswer) -> None:
        """Keep the first answer for a key; durable when it returns. Those older than `KEEP` are
        forgotten.
        """
        ...


class KeyLocks:
    """One task of this process at a time for each key."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Wait for the key, and hold it."""
        lock, users = self._held.get(key, (asyncio.Lock(), 0))
        self._held[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._held[key]
            if users == 1:
                del self._held[key]
            else:
                self._held[key] = (lock, users - 1)
