"""A workspace's deciders and upcasters in a service: those of the files as they are now.

changed files -> load_code -> a new `Deciders` in the place of the old one

What is under way keeps the object that it began with, so no command sees two versions of the code.
Files that cannot be loaded change nothing: the code before goes on, and `trouble` says why.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from apps.deciders import PATTERNS, Deciders, WorkspaceCode, load_code
from apps.workspace_files import Stamp, changes
from eventstore.deciders.decided import DecidedLimits
from eventstore.deciders.entities import Entities
from eventstore.deciders.handling import CommandHandler, Encoder
from eventstore.deciders.workers import Workers
from eventstore.postgres.snapshots import PostgresAnswers, PostgresSnapshots, PostgresVersions
from eventstore.postgres.store import PostgresEventStore
from eventstore.upcasting import Upcasting
from kernel.clock import SystemClock
from kernel.errors import PenstockError
from schemas.records import RecordedEvent
from schemas.registry import SchemaRegistry

_log = logging.getLogger("penstock.deciders")
_LOAD_S = 60.0


class LiveDeciders:
    """Deciders that follow their files. Use as an async context manager.

    `code` is what the files held when they had the stamp `seen`.
    """

    def __init__(
        self,
        workspace: Path,
        code: WorkspaceCode,
        seen: Stamp,
        store: PostgresEventStore,
        registry: SchemaRegistry,
        encoder: Encoder,
        *,
        dsn: str,
        threads: int,
        limit_s: float,
        limits: DecidedLimits | None = None,
    ) -> None:
        self.trouble: str | None = None
        self._workspace = workspace
        self._seen = seen
        self._store = store
        self._registry = registry
        self._encoder = encoder
        self._limits = limits
        self._workers = Workers(threads=threads, limit_s=limit_s)
        self._answers = PostgresAnswers(store, dsn)
        self._watching: asyncio.Task[None] | None = None
        self.current = self._over(code)

    async def __aenter__(self) -> LiveDeciders:
        self._watching = asyncio.create_task(self._watch(), name="watch deciders")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._workers.close()
        await self._answers.close()

    @property
    def hung(self) -> int:
        """Calls of users' code that took too long and have not come back."""
        return self._workers.hung

    async def decode(self, event: RecordedEvent) -> dict[str, Any]:
        """Return an event's data in its newest shape; see `Deciders.decode`."""
        return await self.current.decode(event)

    async def _watch(self) -> None:
        async for _ in changes(self._workspace, PATTERNS, self._seen):
            await self._load()

    async def _load(self) -> None:
        try:
            code = await self._workers.run(
                lambda: load_code(self._workspace), of="the workspace's code", limit_s=_LOAD_S
            )
        except PenstockError as error:
            self.trouble = f"{error.message} ({error.remedy})"
            _log.error("deciders stay as they were: %s", self.trouble)
            return
        self.current, self.trouble = self._over(code), None
        _log.info("deciders loaded anew: %s", ", ".join(sorted(code.deciders)) or "none")

    def _over(self, code: WorkspaceCode) -> Deciders:
        """Set code to work over the store. Snapshots carry its version, so each has its own."""
        store, workers = self._store, self._workers
        upcasting = Upcasting(code.upcasters, self._registry, PostgresVersions(store))
        entities = Entities(code.deciders, store, upcasting, PostgresSnapshots(store), workers)
        handler = CommandHandler(
            entities,
            store,
            self._encoder,
            self._answers,
            workers,
            SystemClock(),
            limits=self._limits,
        )
        return Deciders(handler=handler, entities=entities, upcasting=upcasting, workers=workers)
