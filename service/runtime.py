"""The parts of a running service, and how they come up.

HTTP answers at once; the store opens in the background and is tried until it is there. Until then
whatever needs it answers 503, and `/health/ready` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from delivery.deliveries import Deliveries
from eventstore.appender import AppendLimits
from eventstore.codecs import Codecs
from eventstore.deciders.decided_events import DecidedLimits
from eventstore.deciders.live_deciders import LiveDeciders, begin_code
from eventstore.deciders.workspace_code import PATTERNS
from eventstore.intake import Intake
from eventstore.lake_archive import LakeArchive
from eventstore.postgres.connect import connect
from eventstore.postgres.groups import PostgresSubscriptionGroups
from eventstore.postgres.migrate import migrate
from eventstore.postgres.old_snapshots import OpenSnapshot
from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.snapshots import PostgresLevels
from eventstore.postgres.store import PostgresEventStore
from eventstore.tail import Tail
from eventstore.workspace_files import stamp_of
from kernel.errors import PenstockError, Unavailable
from schemas.records import RecordedEvent
from schemas.registry import SchemaRegistry
from service.admission import Admission
from service.config import ServiceConfig
from service.feed_channels import EventFeeds
from service.lake_reading import LakeReader
from service.metrics import ServiceMetrics
from service.open_question import OpenQuestion
from service.render import event_document, event_json
from service.storage import StorageGuard
from service.streams import Streams

_log = logging.getLogger("penstock.service")
_OPEN_AGAIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What is there once PostgreSQL was reached."""

    store: PostgresEventStore
    intake: Intake
    storage: StorageGuard
    groups: PostgresSubscriptionGroups
    deliveries: Deliveries
    deciders: LiveDeciders
    levels: PostgresLevels
    feeds: EventFeeds


class Runtime:
    """One service's parts. `start` and `stop` belong to the server's life."""

    def __init__(self, config: ServiceConfig, registry: SchemaRegistry) -> None:
        self.config = config
        self.registry = registry
        self._seen = stamp_of(config.workspace, PATTERNS)
        self.metrics = ServiceMetrics()
        self._begin_code = partial(
            begin_code,
            config.workspace,
            most=config.decider_processes,
            limit_s=config.decider_seconds,
            memory_bytes=config.decider_memory_bytes,
            killed=self.metrics.killed,
        )
        self._code = self._begin_code()
        self.admission = Admission(config.access)
        self.streams = Streams(config.clients)
        self.lake = LakeReader(config.lake, memory_bytes=config.lookup_memory_bytes)
        self.store_question: OpenQuestion[tuple[int, OpenSnapshot | None]] = OpenQuestion(
            "the event store's database"
        )
        self.trouble = "starting"
        self.stopping = False
        self._opened: Opened | None = None
        self._stack = contextlib.AsyncExitStack()
        self._opening: asyncio.Task[None] | None = None

    @property
    def opened(self) -> Opened:
        """The open store. Raises `Unavailable` while there is none."""
        if self._opened is None:
            raise Unavailable(f"the event store is not open: {self.trouble}")
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether the store was reached."""
        return self._opened is not None

    def start(self) -> None:
        """Begin to open the store."""
        self._opening = asyncio.create_task(self._open_until_done(), name="open store")

    def end_feeds(self) -> None:
        """Let subscribers go: called before the server waits for its connections to end."""
        self.stopping = True
        self.lake.close()
        if self._opened is not None:
            self._opened.store.feed_head.close()
            self._opened.deliveries.stop()

    async def stop(self) -> None:
        """Commit what is queued and close everything."""
        self.end_feeds()
        self.store_question.close()
        await self.lake.stop()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self._stack.aclose()
        if self._code is not None:
            await asyncio.to_thread(self._code.close)

    async def _open_until_done(self) -> None:
        while self._opened is None:
            try:
                self._opened = await self._open()
            except PenstockError as error:
                self.trouble = f"{error.message} ({error.remedy})"
                await asyncio.sleep(_OPEN_AGAIN_S)
            except Exception as error:  # As when this machine has no room: it may have later.
                before, self.trouble = self.trouble, f"{type(error).__name__}: {error}"
                if self.trouble != before:
                    _log.error("the event store was not opened: %s", error, exc_info=error)
                await asyncio.sleep(_OPEN_AGAIN_S)

    async def _open(self) -> Opened:
        config = self.config
        await migrate(config.dsn)
        folders = await _folders(config)
        codecs = Codecs()
        archive = LakeArchive(config.lake)
        store = PostgresEventStore(
            config.dsn,
            limits=AppendLimits(standby_s=config.standby_s),
            observer=self.metrics,
            same_data=codecs.same_data,
            lease_ttl_s=config.lease_ttl_s,
            archive=archive,
        )
        intake = Intake(self.registry, PostgresSchemaCache(store), config.mode, codecs)
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(store)
            groups = await stack.enter_async_context(
                PostgresSubscriptionGroups(
                    config.dsn, store=store, head=store.feed_head, archive=archive
                )
            )
            await intake.load()
            deciders = await stack.enter_async_context(
                LiveDeciders(
                    config.workspace,
                    self._code or await asyncio.to_thread(self._begin_code),
                    self._begin_code,
                    self._seen,
                    store,
                    self.registry,
                    intake,
                    dsn=config.dsn,
                    limits=DecidedLimits(
                        events=config.limits.events,
                        event_bytes=config.limits.event_bytes,
                        tags=config.limits.tags,
                    ),
                )
            )
            self._code = None  # Whoever follows the files ends it.
            deliveries = await stack.enter_async_context(
                Deliveries(
                    workspace=config.workspace,
                    groups=groups,
                    render=lambda event: event_document(event, intake),
                    metrics=self.metrics.subscriptions,
                )
            )
            self._stack = stack.pop_all()
        return Opened(
            store=store,
            intake=intake,
            storage=StorageGuard(folders, config.min_free_bytes),
            groups=groups,
            deliveries=deliveries,
            deciders=deciders,
            levels=PostgresLevels(store),
            feeds=self._feeds(store, intake, deciders),
        )

    def _feeds(
        self, store: PostgresEventStore, intake: Intake, deciders: LiveDeciders
    ) -> EventFeeds:
        return EventFeeds(
            _tail(store, intake, self.config.feed_memory_bytes),
            store.feed_head,
            idle_s=self.config.heartbeat_s,
            upcast=partial(event_json, data=deciders),
            delivered=self.metrics.delivered.inc,
        )


def _tail(store: PostgresEventStore, intake: Intake, max_bytes: int) -> Tail:
    """Return what feeds read from: they send events as they were written."""

    async def render(event: RecordedEvent) -> bytes:
        return await event_json(event, intake)

    return Tail(store, store.feed_head, max_bytes=max_bytes, render=render)


async def _folders(config: ServiceConfig) -> tuple[Path, ...]:
    """Return the folders whose disks must keep room: the workspace's and PostgreSQL's, where
    that is a folder of this machine.
    """
    async with await connect(config.dsn, role=None) as connection:
        cursor = await connection.execute(
            "SELECT setting FROM pg_settings WHERE name = 'data_directory'"
        )
        row = await cursor.fetchone()
    return (config.workspace, *([Path(row[0])] if row is not None else []))
